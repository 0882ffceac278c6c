//! What the benchmarks share: short criterion runs whose medians can be printed.

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput};
use trike_bench::clock;

/// Samples of each benchmark; the median of so few is steady, and the whole catalogue stays within minutes.
const SAMPLES: usize = 15;

/// Criterion with short times and the arguments of the command line.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(Duration::from_millis(80))
        .measurement_time(Duration::from_millis(250))
        .nresamples(2000)
        .configure_from_args()
}

/// A group whose samples all have the same number of calls.
pub(crate) fn group<'a>(c: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat);
    group
}

/// Times `call`, which does `elements` things, and returns the median seconds of one call; `None` when the command line
/// selects other benchmarks.
pub(crate) fn time<T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    elements: u64,
    mut call: impl FnMut() -> T,
) -> Option<f64> {
    time_by(group, id, elements, |calls| clock(calls, &mut call))
}

/// [`time`] for who must choose where the loop over the calls runs.
pub(crate) fn time_by(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    elements: u64,
    mut measure: impl FnMut(u64) -> Duration,
) -> Option<f64> {
    let mut samples = Vec::new();
    group.throughput(Throughput::Elements(elements));
    group.bench_function(id, |b| {
        b.iter_custom(|calls| {
            let elapsed = measure(calls);
            samples.push(elapsed.as_secs_f64() / calls as f64);
            elapsed
        });
    });
    // What came before the last samples was warm-up.
    let mut measured = samples.split_off(samples.len().saturating_sub(SAMPLES));
    measured.sort_by(f64::total_cmp);
    measured.get(measured.len() / 2).copied()
}
