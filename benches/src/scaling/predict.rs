//! Steps of more ranks than this machine can start.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CodecCost, Exchange, Link, Model, Place, Task};

/// What the predictions assume, and nothing measured says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assumed {
    /// Seconds that a message takes in a network, beside those of the software.
    pub latency: f64,
    /// Bits per second of the networks.
    pub networks: Vec<f64>,
    /// Numbers of ranks.
    pub ranks: Vec<usize>,
    /// Floating-point operations per second of a rank that trains a large model.
    pub rate: f64,
    /// Floating-point operations per weight and token of a step: forward, and twice as much backward.
    pub operations: f64,
    /// Tokens of a rank that trains a large model, per step.
    pub tokens: u64,
    /// Large models.
    pub models: Vec<ModelSize>,
}

/// The size of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSize {
    /// Its name.
    pub name: String,
    /// Weights.
    pub elements: u64,
    /// Those of its largest tensor, the embedding.
    pub largest: u64,
}

impl Default for Assumed {
    /// Ethernet, a GPU per rank at a good part of its peak in bf16, and two well-known sizes.
    fn default() -> Self {
        let size = |name: &str, elements, largest| ModelSize { name: name.to_owned(), elements, largest };
        Self {
            latency: 30e-6,
            networks: vec![1e9, 1e10, 1e11],
            ranks: vec![8, 64, 256, 1024],
            rate: 1e14,
            operations: 6.0,
            tokens: 16_384,
            models: vec![
                size("2B (BitNet-b1.58-2B-4T)", 2_412_820_480, 128_256 * 2560),
                size("8B (Llama-3.1-8B)", 8_030_261_248, 128_256 * 4096),
            ],
        }
    }
}

/// A predicted step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The model.
    pub model: String,
    /// What is exchanged.
    pub exchange: String,
    /// Bits per second.
    pub bits_per_second: f64,
    /// Ranks.
    pub ranks: usize,
    /// Seconds per step.
    pub seconds: f64,
    /// The step of a rank alone divided by it: the tokens per second of all ranks, divided by those of as many ranks that send
    /// nothing.
    pub efficiency: f64,
    /// Bytes of the rank that has most, per step.
    pub bytes: f64,
}

/// A row of the predictions: an exchange as the program has it, or as it could be.
struct Way {
    name: String,
    exchange: Exchange,
    codec: Option<CodecCost>,
    /// Whether a tensor belongs to one rank as a whole.
    is_whole: bool,
}

/// The ways of the exchange: of the exact sum also the one that would divide tensors.
fn ways(codecs: &BTreeMap<Exchange, CodecCost>) -> Vec<Way> {
    let mut all = Vec::new();
    for exchange in Exchange::ALL {
        let codec = codecs.get(&exchange).copied();
        let way = |name: String, codec, is_whole| Way { name, exchange, codec, is_whole };
        let name = exchange.name();
        match codec {
            None if exchange == Exchange::Exact => {
                all.push(way(name.to_owned(), None, true));
                all.push(way(format!("{name}, if tensors were divided"), None, false));
            }
            codec => all.push(way(name.to_owned(), codec, false)),
        }
    }
    all
}

/// Steps of a measured model, `measured` with its name, and of the assumed ones, each with one rank per machine. `mean` is the
/// processor time per element that an exchange without a codec takes on one rank.
#[must_use]
pub fn predictions(
    model: &Model,
    codecs: &BTreeMap<Exchange, CodecCost>,
    mean: f64,
    (name, measured): (&str, Task),
    assumed: &Assumed,
) -> Vec<Prediction> {
    let mut all = Vec::new();
    // Of a large model the fixed time is the exchange only.
    let mut add = |name: &str, model: &Model, is_large: bool, task: Task| {
        for way in ways(codecs) {
            let task = Task { largest: if way.is_whole { task.largest } else { 0 }, ..task };
            let codec = way.codec.as_ref();
            for &bits_per_second in &assumed.networks {
                let link = Link { latency: assumed.latency, bits_per_second };
                for &ranks in &assumed.ranks {
                    let own = if is_large { 0.0 } else { model.fixed_of(way.exchange, ranks) };
                    let alone = own + model.token * task.tokens as f64;
                    let step = model.step(way.exchange, ranks, task, codec, Place::ALONE, Some(link));
                    all.push(Prediction {
                        model: name.to_owned(),
                        exchange: way.name.clone(),
                        bits_per_second,
                        ranks,
                        seconds: step.total,
                        efficiency: alone / step.total,
                        bytes: step.bytes,
                    });
                }
            }
        }
    };
    add(name, model, false, measured);
    for size in &assumed.models {
        let fixed = Exchange::ALL.into_iter().map(|exchange| {
            let per_element = codecs.get(&exchange).map_or(mean, |codec| codec.seconds(1));
            (exchange, per_element * size.elements as f64 / f64::from(exchange.steps()))
        });
        let large = Model {
            token: assumed.operations * size.elements as f64 / assumed.rate,
            fixed: fixed.collect(),
            divided: 0.0,
            ..*model
        };
        add(
            &size.name,
            &large,
            true,
            Task { elements: size.elements, tokens: assumed.tokens, largest: size.largest },
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::Scheme;
    use trike_testkit::assert_near;

    fn all() -> Vec<Prediction> {
        let model = Model { alpha: 1e-5, beta: 1e-10, token: 1e-4, fixed: BTreeMap::new(), divided: 0.0 };
        let cost = |bytes_per_element| CodecCost {
            bytes_per_element,
            scheme: Scheme::TwoStages,
            encode: 1e-9,
            decode: 1e-9,
        };
        let codecs = BTreeMap::from([(Exchange::Ternary, cost(0.2)), (Exchange::LocalSigns, cost(0.03))]);
        let task = Task { elements: 1_000_000, tokens: 512, largest: 100_000 };
        predictions(&model, &codecs, 1e-9, ("small", task), &Assumed::default())
    }

    fn of(all: &[Prediction], model: &str, exchange: &str, network: f64, ranks: usize) -> Prediction {
        let found = all.iter().find(|p| {
            p.model.starts_with(model)
                && p.exchange == exchange
                && p.bits_per_second == network
                && p.ranks == ranks
        });
        found.unwrap_or_else(|| panic!("{model}, {exchange}")).clone()
    }

    #[test]
    fn every_way_is_predicted_on_every_network() {
        let all = all();
        assert_eq!(all.len(), 3 * 5 * 3 * 4);
        assert!(all.iter().all(|p| p.seconds > 0.0 && p.efficiency > 0.0 && p.efficiency <= 1.0), "{all:?}");
    }

    /// By hand: the exact sum of eight ranks with 7/8 of the weights twice, each of four bytes, over 10 Gbit/s.
    #[test]
    fn a_large_model_over_a_network_is_bound_by_its_bytes() {
        let all = all();
        let found = of(&all, "2B", "exact, if tensors were divided", 1e10, 8);
        let weights = 2_412_820_480.0;
        let wire = 2.0 * 7.0 / 8.0 * 4.0 * weights * 8.0 / 1e10;
        let computing = 6.0 * weights * 16_384.0 / 1e14 + 1e-9 * weights;
        let software = 2.0 * 7.0 / 8.0 * 4.0 * weights * 1e-10;
        // To seven ranks in each of the pieces of a shard, of 2^18 weights, and back.
        let pieces = 2.0 * (weights / 8.0 / f64::from(1 << 18)).ceil();
        let messages = 7.0 * pieces * 1e-5 + pieces * 30e-6;
        assert_near!(found.seconds, wire + computing + software + messages, rel = 0.01);
        // A rank alone neither writes gradients nor reads them.
        let alone = 6.0 * weights * 16_384.0 / 1e14;
        assert_near!(found.efficiency, alone / found.seconds, rel = 1e-6);
    }

    #[test]
    fn faster_networks_and_fewer_bytes_are_better() {
        let all = all();
        let time = |exchange, network| of(&all, "8B", exchange, network, 64).seconds;
        assert!(time("exact", 1e9) > time("exact", 1e10) && time("exact", 1e10) > time("exact", 1e11));
        assert!(
            time("exact", 1e9) > time("ternary", 1e9)
                && time("ternary", 1e9) > time("16 local steps, signs", 1e9)
        );
        assert!(time("exact", 1e9) > time("16 local steps", 1e9));
        assert!(time("exact", 1e9) > time("exact, if tensors were divided", 1e9));
    }
}
