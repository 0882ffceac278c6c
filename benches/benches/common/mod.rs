//! Shared by the benchmarks: short Criterion runs that return their medians.

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput};
use trike_bench::clock;

/// Samples per benchmark: enough for a stable median, few enough to run the whole catalogue within minutes.
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

/// Times `call`, which processes `elements` elements, and returns the median seconds per call; `None` if the command line
/// filters the benchmark out.
pub(crate) fn time<T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    elements: u64,
    mut call: impl FnMut() -> T,
) -> Option<f64> {
    time_by(group, id, elements, |calls| clock(calls, &mut call))
}

/// [`time`] with a custom loop over the calls, for example inside a thread pool.
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
    // Everything before the last samples was warm-up.
    let mut measured = samples.split_off(samples.len().saturating_sub(SAMPLES));
    measured.sort_by(f64::total_cmp);
    measured.get(measured.len() / 2).copied()
}
