//! Division of a model's layers between devices, computed from their memory before anything is loaded.

use std::{fmt, ops::Range};

use crate::{DecoderSpec, KvSpec, MemoryPlan, NnError};

/// Bytes of a model's weights, by the stage of a pipeline that holds them.
///
/// Layers stay in order: the first device has the embedding and the first layers, the last one the last layers, the final norm and
/// the LM head. Keys and values are on the device of their layer.
///
/// ```
/// use trike_nn::{DecoderSpec, StageDevice, KvPrecision, KvSpec, LayerWeights};
///
/// let spec = DecoderSpec::llama(64, 4, 2, 100);
/// let weights = LayerWeights { embedding: 0, layers: vec![1_000_000; 4], head: 0 };
/// let kv = KvSpec::new(KvPrecision::F16, 1);
/// let device = |name: &str, available| StageDevice { name: name.to_owned(), available, kv };
/// let devices = [device("cuda:0", Some(9_000_000)), device("cuda:1", Some(3_000_000))];
/// let stages = weights.split(&spec, 1, &devices)?;
/// assert_eq!([stages[0].layers.clone(), stages[1].layers.clone()], [0..3, 3..4]);
/// # Ok::<(), trike_nn::NnError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerWeights {
    /// The embedding.
    pub embedding: u64,
    /// Each layer.
    pub layers: Vec<u64>,
    /// The final norm and the LM head: a second copy of the embedding if they are one matrix.
    pub head: u64,
}

/// A device for some layers of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageDevice {
    /// The device's name in messages.
    pub name: String,
    /// Free bytes; `None` if the device does not report them.
    pub available: Option<u64>,
    /// The KV cache of one sequence, in a precision that the device supports.
    pub kv: KvSpec,
}

/// The layers of one device, and the memory that they need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagePlan {
    /// The device.
    pub device: String,
    /// Its layers.
    pub layers: Range<usize>,
    /// Bytes required by these layers, including the embedding or the head on the first or last stage.
    pub plan: MemoryPlan,
    /// Free bytes of the device; `None` if it does not report them.
    pub available: Option<u64>,
}

impl StagePlan {
    /// Whether the memory is known to be too small.
    pub fn overflows(&self) -> bool {
        self.available.is_some_and(|available| self.plan.total() > available)
    }
}

impl fmt::Display for StagePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, layers, plan, available } = self;
        write!(
            f,
            "{device} needs {} bytes for layers {} to {} ({plan}), ",
            plan.total(),
            layers.start,
            layers.end - 1
        )?;
        match available {
            Some(available) => write!(f, "{available} are free"),
            None => f.write_str("its free memory is not known"),
        }
    }
}

impl LayerWeights {
    /// Divides the layers so that each device uses about the same share of its free memory, and never more than is free if such a
    /// division exists. A device that does not report its memory counts as the mean of the others; if no device does, all count
    /// equally. Steps have up to `step` tokens.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] for no devices or more devices than layers; [`NnError::SplitMemory`] with the division of the smallest
    /// deficit if none fits.
    pub fn split(
        &self,
        spec: &DecoderSpec,
        step: usize,
        devices: &[StageDevice],
    ) -> Result<Vec<StagePlan>, NnError> {
        let layers = self.layers.len();
        if devices.is_empty() || devices.len() > layers {
            return Err(NnError::Spec {
                field: "devices",
                rule: "must be one or more, and at most one per layer",
                got: devices.len().to_string(),
            });
        }
        let weights = shares(devices);
        // The best division of the first `n` layers between the devices so far, and the first layer of the last of these devices.
        let mut best: Vec<Option<Cost>> = vec![None; layers + 1];
        best[0] = Some(Cost::default());
        let mut starts = Vec::with_capacity(devices.len());
        for (at, share) in weights.iter().enumerate() {
            let mut next: Vec<Option<Cost>> = vec![None; layers + 1];
            let mut start = vec![0; layers + 1];
            for end in at + 1..=layers {
                for (begin, before) in best.iter().enumerate().take(end).skip(at) {
                    let Some(before) = before else { continue };
                    let cost = before.with(&self.stage(spec, step, devices, at, begin..end), *share);
                    if next[end].is_none_or(|found| cost.is_below(&found)) {
                        (next[end], start[end]) = (Some(cost), begin);
                    }
                }
            }
            best = next;
            starts.push(start);
        }
        let mut counts = vec![0; devices.len()];
        let mut end = layers;
        for (count, start) in counts.iter_mut().zip(&starts).rev() {
            *count = end - start[end];
            end = start[end];
        }
        self.split_as(spec, step, devices, &counts)
    }

    /// As [`split`](Self::split) with a given number of layers for each device.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] unless there is a number for each device, none is 0 and their sum is the number of layers;
    /// [`NnError::SplitMemory`] if a device has too little memory.
    pub fn split_as(
        &self,
        spec: &DecoderSpec,
        step: usize,
        devices: &[StageDevice],
        counts: &[usize],
    ) -> Result<Vec<StagePlan>, NnError> {
        let sum = counts.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
        if counts.len() != devices.len() || counts.contains(&0) || sum != self.layers.len() {
            let got: Vec<String> = counts.iter().map(ToString::to_string).collect();
            let (count, layers) = (devices.len(), self.layers.len());
            return Err(NnError::Spec {
                field: "layers per device",
                rule: "must be at least 1 each and add up to the layers of the model",
                got: format!("{} for {count} devices and a model of {layers} layers", got.join(",")),
            });
        }
        let mut begin = 0;
        let stages: Vec<StagePlan> = counts
            .iter()
            .enumerate()
            .map(|(at, count)| {
                let layers = begin..begin + count;
                begin = layers.end;
                self.stage(spec, step, devices, at, layers)
            })
            .collect();
        match stages.iter().any(StagePlan::overflows) {
            true => Err(NnError::SplitMemory { stages }),
            false => Ok(stages),
        }
    }

    /// Memory plan of `layers` on the device at index `at`.
    fn stage(
        &self,
        spec: &DecoderSpec,
        step: usize,
        devices: &[StageDevice],
        at: usize,
        layers: Range<usize>,
    ) -> StagePlan {
        let (is_first, is_last) = (layers.start == 0, layers.end == self.layers.len());
        let sum = |sum: u64, bytes: &u64| sum.saturating_add(*bytes);
        let ends = [(is_first, self.embedding), (is_last, self.head)];
        let ends = ends.into_iter().filter(|(holds, _)| *holds).fold(0, |all, (_, bytes)| sum(all, &bytes));
        let weights = self.layers[layers.clone()].iter().fold(ends, sum);
        let StageDevice { name, available, kv } = &devices[at];
        let plan = MemoryPlan::of_layers(spec, layers.clone(), weights, kv, step).on_device(spec, kv);
        StagePlan { device: name.clone(), layers, plan, available: *available }
    }
}

/// The reference memory of each device for balancing.
fn shares(devices: &[StageDevice]) -> Vec<f64> {
    let known: Vec<f64> =
        devices.iter().filter_map(|device| device.available).map(|bytes| bytes as f64).collect();
    let mean = match known.len() {
        0 => 1.0,
        count => known.iter().sum::<f64>() / count as f64,
    };
    devices.iter().map(|device| device.available.map_or(mean, |bytes| bytes as f64).max(1.0)).collect()
}

/// Cost of a division, in order of importance. Both parts are sums over the devices, so the optimal division contains optimal
/// divisions of prefixes (dynamic programming).
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// Deficit: bytes required beyond the free memory.
    lacking: u128,
    /// The sum of `need^2 / memory`, which is least where `need / memory` is the same on all devices.
    uneven: f64,
}

impl Cost {
    fn with(self, stage: &StagePlan, share: f64) -> Self {
        let need = stage.plan.total();
        let lacking = stage.available.map_or(0, |available| need.saturating_sub(available));
        let uneven = self.uneven + (need as f64).powi(2) / share;
        Self { lacking: self.lacking + u128::from(lacking), uneven }
    }

    fn is_below(&self, other: &Self) -> bool {
        (self.lacking, self.uneven) < (other.lacking, other.uneven)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvPrecision;
    use crate::fixtures::small;

    const STEP: usize = 1;

    fn device(name: &str, available: Option<u64>) -> StageDevice {
        StageDevice { name: name.to_owned(), available, kv: KvSpec::new(KvPrecision::F32, 1) }
    }

    fn counts(stages: &[StagePlan]) -> Vec<usize> {
        stages.iter().map(|stage| stage.layers.len()).collect()
    }

    fn devices(available: &[Option<u64>]) -> Vec<StageDevice> {
        available.iter().enumerate().map(|(i, free)| device(&format!("cuda:{i}"), *free)).collect()
    }

    fn split(weights: &LayerWeights, available: &[Option<u64>]) -> Result<Vec<StagePlan>, NnError> {
        let spec = DecoderSpec { layers: weights.layers.len(), ..small() };
        weights.split(&spec, STEP, &devices(available))
    }

    /// Large enough that keys, values and activations of the small model do not count.
    const GIB: u64 = 1 << 30;

    #[test]
    fn layers_are_divided_in_proportion_to_free_memory() {
        let weights = LayerWeights { embedding: 0, layers: vec![GIB; 12], head: 0 };
        for (available, want) in [
            (&[Some(20 * GIB), Some(20 * GIB)][..], &[6, 6][..]),
            (&[Some(20 * GIB), Some(10 * GIB)], &[8, 4]),
            (&[Some(10 * GIB), Some(10 * GIB), Some(40 * GIB)], &[2, 2, 8]),
            (&[None, None, None], &[4, 4, 4]),
            (&[Some(20 * GIB), None], &[6, 6]),
            (&[Some(100 * GIB)], &[12]),
            // Every device has a layer.
            (&[Some(1000 * GIB), Some(2 * GIB)], &[11, 1]),
        ] {
            let stages = split(&weights, available).expect("it fits");
            assert_eq!(counts(&stages), want, "{available:?}");
            let ends: Vec<usize> = stages.iter().map(|stage| stage.layers.end).collect();
            assert_eq!((stages[0].layers.start, ends.last()), (0, Some(&12)));
        }
        // A large head leaves the last device fewer layers, an embedding the first.
        let head = LayerWeights { head: 6 * GIB, ..weights.clone() };
        assert_eq!(counts(&split(&head, &[Some(20 * GIB), Some(20 * GIB)]).expect("it fits")), [9, 3]);
        let table = LayerWeights { embedding: 6 * GIB, ..weights };
        assert_eq!(counts(&split(&table, &[Some(20 * GIB), Some(20 * GIB)]).expect("it fits")), [3, 9]);
    }

    /// The even division would not fit, and another one does.
    #[test]
    fn what_fits_is_found() {
        // One large layer among small ones.
        let layers = vec![GIB, GIB, 8 * GIB, GIB];
        let weights = LayerWeights { embedding: 0, layers, head: 0 };
        let stages = split(&weights, &[Some(11 * GIB), Some(3 * GIB)]).expect("it fits");
        assert_eq!(counts(&stages), [3, 1]);
        let stages = split(&weights, &[Some(3 * GIB), Some(10 * GIB)]).expect("it fits");
        assert_eq!(counts(&stages), [2, 2]);
    }

    #[test]
    fn what_fits_on_no_division_is_refused_with_what_each_device_has() {
        let weights = LayerWeights { embedding: GIB, layers: vec![GIB; 4], head: 0 };
        let free = 2 * GIB;
        let refused = split(&weights, &[Some(free), Some(free)]).expect_err("a GiB too much");
        let NnError::SplitMemory { stages } = &refused else { panic!("{refused}") };
        let message = refused.to_string();
        for stage in stages {
            let numbers = [stage.plan.total().to_string(), free.to_string(), stage.device.clone()];
            assert!(numbers.iter().all(|part| message.contains(part)), "{message}");
        }
        // The total fits, but single layers are not split.
        let weights = LayerWeights { embedding: 0, layers: vec![3 * GIB; 2], head: 0 };
        assert!(matches!(split(&weights, &[Some(2 * GIB), Some(9 * GIB)]), Err(NnError::SplitMemory { .. })));
        // Exactly at the limit, and one byte below it.
        let weights = LayerWeights { embedding: 0, layers: vec![GIB; 2], head: 0 };
        let needed = split(&weights, &[None, None]).expect("unknown")[0].plan.total();
        split(&weights, &[Some(needed), Some(needed)]).expect("just enough");
        split(&weights, &[Some(needed - 1), Some(4 * needed)]).expect_err("a byte too few");
    }

    #[test]
    fn given_counts_are_checked() {
        let weights = LayerWeights { embedding: 0, layers: vec![GIB; 4], head: 0 };
        let spec = DecoderSpec { layers: 4, ..small() };
        let devices = devices(&[Some(4 * GIB), None]);
        let stages = weights.split_as(&spec, STEP, &devices, &[1, 3]).expect("they fit");
        assert_eq!(counts(&stages), [1, 3]);
        for wrong in [&[4][..], &[4, 0], &[2, 1], &[2, 3], &[1, 1, 2], &[usize::MAX, 5]] {
            let refused = weights.split_as(&spec, STEP, &devices, wrong).expect_err("wrong counts");
            assert!(matches!(refused, NnError::Spec { field: "layers per device", .. }), "{refused}");
        }
        let tight = weights.split_as(&spec, STEP, &self::devices(&[Some(GIB), None]), &[1, 3]);
        assert!(
            matches!(tight, Err(NnError::SplitMemory { .. })),
            "keys and values count on the device of their layer"
        );
        assert!(matches!(split(&weights, &[None; 5]), Err(NnError::Spec { field: "devices", .. })));
        assert!(matches!(split(&weights, &[]), Err(NnError::Spec { field: "devices", .. })));
    }

    /// A device without halves holds keys and values of its layers in f32.
    #[test]
    fn caches_are_counted_in_the_precision_of_their_device() {
        let weights = LayerWeights { embedding: 0, layers: vec![0; 2], head: 0 };
        let spec = small();
        let mut devices = devices(&[None, None]);
        devices[1].kv.precision = KvPrecision::F16.into();
        let stages = weights.split_as(&spec, STEP, &devices, &[1, 1]).expect("unknown");
        assert_eq!(stages[0].plan.cache, 2 * stages[1].plan.cache);
    }
}
