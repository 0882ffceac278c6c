//! Whole models with random ternary weights, as in `trike bench --synthetic`.

use anyhow::{Context, Result};
use trike_bench::{Ceiling, Launching, Limit, Measured, Model, ModelRun, raise, rounded};
use trike_cpu::{Cost, Cpu, Isa};
use trike_eval::bench::{self, BenchOptions, BenchRow};
use trike_llm::{Device, LoadOptions, Synthetic};
use trike_trit::{Encoding, Granularity};

use crate::ceilings::raise_all;
use crate::measure::LIMITS;
use crate::plan::Plan;

/// Kernel name in the rows of models.
pub const MODEL_KERNEL: &str = "model, ternary x int8";

/// A model and its timing parameters.
#[derive(Clone, Copy, Debug)]
pub struct TimedModel {
    /// The model, and the numbers of tokens to time.
    pub run: ModelRun,
    /// Size of the synthetic model to load.
    pub size: Synthetic,
    /// Number of rounds; each times all phases and numbers of threads, after a warm-up.
    pub rounds: usize,
    /// Whether quick runs include it.
    pub quick: bool,
}

/// Models to time.
pub const MODELS: &[TimedModel] = &[
    TimedModel {
        run: ModelRun { model: Model::M125, prompt: 512, generate: 128 },
        size: Synthetic::M125,
        rounds: 7,
        quick: true,
    },
    TimedModel {
        run: ModelRun { model: Model::B2, prompt: 512, generate: 32 },
        size: Synthetic::B2,
        rounds: 4,
        quick: false,
    },
];

/// Rounds of a quick run.
const QUICK_ROUNDS: usize = 3;

impl TimedModel {
    fn problem(&self, kind: &str) -> String {
        let [decode, prefill] = self.run.problems();
        if kind == "prefill" { prefill } else { decode }
    }
}

/// Times the models of the plan. Times and costs are per token.
///
/// # Errors
///
/// If threads cannot be started, memory is insufficient, or the decoder returns an error.
pub fn models(
    plan: &Plan,
    ceilings: &mut Vec<Ceiling>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measured>> {
    let isa = Isa::detect().name();
    let mut measured: Vec<Measured> = Vec::new();
    for model in MODELS.iter().filter(|model| model.quick || !plan.quick) {
        let has = |kind: &str, threads| plan.has_row(&model.problem(kind), MODEL_KERNEL, isa, threads);
        let threads = Plan::threads(Cpu::new(0)?.threads());
        let threads: Vec<usize> =
            threads.into_iter().filter(|&n| has("prefill", n) || has("decode", n)).collect();
        if threads.is_empty() {
            continue;
        }
        progress(&format!("{}: generating weights", model.size.name()));
        let mut made = Device::cpu().load_synthetic(
            model.size,
            (Encoding::TwoBit, Granularity::Row),
            &LoadOptions::default(),
            &mut |_, _| {},
        )?;
        let any = |kind: &str, tokens: usize| if threads.iter().any(|&n| has(kind, n)) { tokens } else { 0 };
        let options = BenchOptions::default()
            .with_prompt(any("prefill", model.run.prompt))
            .with_generate(any("decode", model.run.generate))
            .with_threads(threads.clone())
            .with_repetitions(1);
        let rounds = if plan.quick { QUICK_ROUNDS } else { model.rounds };
        for round in 1..=rounds {
            progress(&format!("{}: round {round} of {rounds}", model.size.name()));
            // One repetition per round, so that phases and numbers of threads are interleaved.
            let report = bench::run(&mut *made.model, &options, &mut |_, _| {})?;
            let kind = Round { kernel: MODEL_KERNEL, isa, problem: &|kind| model.problem(kind) };
            add_round(&mut measured, &report.rows, &kind)?;
            raise_found(ceilings, report.ceilings);
        }
        raise_all(ceilings, &threads)?;
    }
    // The report expects the rows of a problem to be adjacent.
    let problems: Vec<String> = MODELS.iter().flat_map(|timed| timed.run.problems()).collect();
    measured.sort_by_key(|row| problems.iter().position(|problem| *problem == row.problem));
    Ok(measured)
}

/// Names in the rows of a round.
pub(crate) struct Round<'a> {
    pub(crate) kernel: &'a str,
    pub(crate) isa: &'a str,
    /// The problem of `prefill` or `decode`.
    pub(crate) problem: &'a dyn Fn(&str) -> String,
}

/// Adds one round of `trike bench` to the samples.
pub(crate) fn add_round(measured: &mut Vec<Measured>, rows: &[BenchRow], round: &Round<'_>) -> Result<()> {
    for row in rows {
        let problem = (round.problem)(row.kind);
        let seconds = 1.0 / row.tokens_per_second;
        let threads = row.threads.context("benchmark row of a host model without threads")?;
        let is_same =
            |m: &&mut Measured| m.kernel == round.kernel && m.problem == problem && m.threads == threads;
        if let Some(known) = measured.iter_mut().find(is_same) {
            known.samples.push(seconds);
            continue;
        }
        let whole = |figure: Option<f64>| figure.unwrap_or(0.0).round() as u64;
        let (macs, bytes) = (whole(row.macs_per_token), whole(row.bytes_per_token));
        measured.push(Measured {
            problem,
            kernel: round.kernel.to_owned(),
            isa: round.isa.to_owned(),
            threads,
            rival: false,
            blueprint: String::new(),
            samples: vec![seconds],
            cost: Cost { macs, bytes },
            limits: LIMITS,
            launching: Launching::default(),
        });
    }
    Ok(())
}

/// Merges the ceilings that `trike bench` measured.
pub(crate) fn raise_found(ceilings: &mut Vec<Ceiling>, found: Vec<bench::Ceiling>) {
    for c in found {
        for (limit, figure, variant) in
            [(Limit::Memory, c.bandwidth, c.bandwidth_variant), (Limit::Int8, c.int8_peak, c.int8_variant)]
        {
            let (per_second, variant) = (rounded(figure), variant.to_owned());
            raise(ceilings, Ceiling { limit, threads: c.threads, per_second, variant });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_made_with_the_sizes_of_the_catalogue() {
        for TimedModel { run: ModelRun { model, .. }, size, .. } in MODELS {
            let spec = size.spec();
            let heads = (spec.heads, spec.kv_heads, spec.head_dim);
            assert_eq!(heads, (model.heads.heads, model.heads.kv_heads, model.heads.head_dim));
            let made = Model {
                name: size.name(),
                layers: spec.layers,
                hidden: spec.hidden,
                intermediate: spec.intermediate,
                heads: model.heads,
                vocab: spec.vocab,
            };
            assert_eq!(made, *model);
        }
    }
}
