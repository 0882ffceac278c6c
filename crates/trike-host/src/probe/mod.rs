//! Measured peak rates of the machine: memory bandwidth and int8 arithmetic.
//!
//! Each probe runs several variants of a loop, because the fastest one depends on the machine, and reports all of them; the peak is
//! the fastest. A probe takes a few tenths of a second.
//!
//! ```
//! use trike_host::{Cpu, probe};
//!
//! let peak = probe::int8_peak(&Cpu::new(1)?);
//! assert!(peak.best().figure > 0.0);
//! # Ok::<(), trike_host::HostError>(())
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::array;

use crate::cpu::Cpu;
use crate::error::HostError;
use crate::isa::IsaToken;
use crate::memory::{CacheLine, Lines};
use crate::pool::ranges;

/// One variant of a measured loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Description of the loop.
    pub name: &'static str,
    /// Measured rate, in the unit of its [`Probe`].
    pub figure: f64,
}

/// The outcome of a probe: at least one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Unit of the rates: `bytes/s` or `MAC/s`.
    pub unit: &'static str,
    /// Number of threads.
    pub threads: usize,
    /// All variants, in a fixed order.
    pub variants: Vec<Variant>,
}

impl Probe {
    /// The fastest variant. A probe without variants, which this crate never returns, has a rate of zero.
    pub fn best(&self) -> &Variant {
        const NOTHING: &Variant = &Variant { name: "none", figure: 0.0 };
        self.variants.iter().fold(NOTHING, |best, v| if v.figure > best.figure { v } else { best })
    }
}

/// Size of the buffer in bytes: much larger than the last-level cache available to one core.
const BUFFER_BYTES: usize = 128 << 20;
/// Number of runs of each variant; the fastest counts. Variants alternate, so that other load affects all of them.
const TURNS: usize = 6;
/// Minimum duration of a measured loop; short, so that some runs are free of other load.
const LONG_ENOUGH: Duration = Duration::from_millis(2);

/// A cache line of eight words.
type WordLine = CacheLine<[u64; 8]>;

/// The measured loops of one instruction set.
trait Loops: Copy + Send + Sync + 'static {
    /// Reads lines in `S` parallel streams, prefetching `ahead` lines ahead (0 = no prefetch); returns a checksum of all words.
    fn read<const S: usize>(self, lines: &[WordLine], ahead: usize) -> u64;

    /// Loops that approach the int8 peak of the instruction set, at least one.
    fn peaks(self) -> &'static [Peak<Self>];
}

/// Runs an expression with the token of an instruction set.
macro_rules! with_token {
    ($isa:expr, $token:ident => $body:expr) => {
        match $isa.token() {
            IsaToken::Scalar($token) => $body,
            #[cfg(target_arch = "x86_64")]
            IsaToken::Sse41($token) => $body,
            #[cfg(target_arch = "x86_64")]
            IsaToken::Avx2($token) => $body,
            #[cfg(target_arch = "x86_64")]
            IsaToken::AvxVnni($token) => $body,
            #[cfg(target_arch = "x86_64")]
            IsaToken::Avx512($token) => $body,
        }
    };
}

/// Splits lines into `S` streams of equal length.
#[inline(always)]
fn streams<const S: usize>(lines: &[WordLine]) -> ([&[WordLine]; S], usize) {
    let len = lines.len() / S;
    (array::from_fn(|s| &lines[s * len..][..len]), len)
}

/// A variant of the memory read loop.
struct Reading<K> {
    name: &'static str,
    /// The kind of pages, which selects the buffer.
    pages: Pages,
    sum: fn(K, &[WordLine]) -> u64,
}

impl<K> Reading<K> {
    fn new(name: &'static str, pages: Pages, sum: fn(K, &[WordLine]) -> u64) -> Self {
        Self { name, pages, sum }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    Huge,
    Usual,
}

/// The variants. The best prefetch distance depends on the hardware prefetchers, which react to some access patterns sooner than
/// to others.
fn readings<K: Loops>() -> [Reading<K>; 10] {
    use Pages::{Huge, Usual};
    [
        Reading::new("huge pages, one stream", Huge, |k: K, lines| k.read::<1>(lines, 0)),
        Reading::new("huge pages, one stream, 4 KiB ahead", Huge, |k: K, lines| k.read::<1>(lines, 64)),
        Reading::new("huge pages, one stream, 8 KiB ahead", Huge, |k: K, lines| k.read::<1>(lines, 128)),
        Reading::new("huge pages, one stream, 16 KiB ahead", Huge, |k: K, lines| k.read::<1>(lines, 256)),
        Reading::new("huge pages, two streams", Huge, |k: K, lines| k.read::<2>(lines, 0)),
        Reading::new("huge pages, two streams, 4 KiB ahead", Huge, |k: K, lines| k.read::<2>(lines, 64)),
        Reading::new("huge pages, four streams, 2 KiB ahead", Huge, |k: K, lines| k.read::<4>(lines, 32)),
        Reading::new("regular pages, one stream, 4 KiB ahead", Usual, |k: K, lines| k.read::<1>(lines, 64)),
        Reading::new("regular pages, four streams", Usual, |k: K, lines| k.read::<4>(lines, 0)),
        Reading::new("regular pages, eight streams", Usual, |k: K, lines| k.read::<8>(lines, 0)),
    ]
}

/// Total memory read bandwidth of all threads of `cpu` in bytes per second; each thread reads a contiguous slice.
///
/// # Errors
///
/// [`HostError::Memory`] if the two buffers of 128 MiB cannot be allocated.
pub fn memory_bandwidth(cpu: &Cpu) -> Result<Probe, HostError> {
    let lines = BUFFER_BYTES / size_of::<WordLine>();
    let mut huge = Lines::zeroed(lines)?;
    let mut usual: Vec<WordLine> = Vec::new();
    usual.try_reserve_exact(lines).map_err(|_| HostError::Memory { requested: BUFFER_BYTES })?;
    // Write to the buffers, because all pages that were never written map to the same zero page.
    huge.fill(CacheLine([1; 8]));
    usual.resize(lines, CacheLine([1; 8]));
    let variants = with_token!(cpu.isa(), token => {
        let read = |reading: &Reading<_>| {
            let buffer: &[WordLine] = if reading.pages == Pages::Huge { &huge } else { &usual };
            let tasks: Vec<_> = ranges(lines, cpu.threads()).map(|range| &buffer[range]).collect();
            let time = time(|| cpu.pool().run(tasks, |part| {
                black_box((reading.sum)(token, black_box(part)));
            }));
            BUFFER_BYTES as f64 / time
        };
        let readings = readings();
        let names = readings.each_ref().map(|reading| reading.name);
        best_of_turns(&names, |i| read(&readings[i]))
    });
    Ok(Probe { unit: "bytes/s", threads: cpu.threads(), variants })
}

/// Run time of a closure in seconds, more than zero.
fn time(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64().max(f64::MIN_POSITIVE)
}

/// The highest rate of each variant; variants alternate.
fn best_of_turns(names: &[&'static str], measure: impl Fn(usize) -> f64) -> Vec<Variant> {
    let mut variants: Vec<_> = names.iter().map(|&name| Variant { name, figure: 0.0 }).collect();
    for _ in 0..TURNS {
        for (i, variant) in variants.iter_mut().enumerate() {
            variant.figure = variant.figure.max(measure(i));
        }
    }
    variants
}

/// A loop of int8 multiply-adds that stays in registers.
struct Peak<K> {
    /// The instructions.
    name: &'static str,
    /// Multiply-adds per step.
    macs: u64,
    /// Runs this many steps.
    run: fn(K, u64),
}

/// Int8 multiply-adds per second of all threads of `cpu` together, with weights and activations in registers.
pub fn int8_peak(cpu: &Cpu) -> Probe {
    let variants = with_token!(cpu.isa(), token => peaks(cpu, token));
    Probe { unit: "MAC/s", threads: cpu.threads(), variants }
}

fn peaks<K: Loops>(cpu: &Cpu, token: K) -> Vec<Variant> {
    let peaks = token.peaks();
    let run = |i: usize, steps: u64| {
        time(|| cpu.pool().run(vec![(); cpu.threads()], |()| (peaks[i].run)(token, steps)))
    };
    // Doubling also gives the CPU clock time to ramp up.
    let long_enough = |i: usize| {
        let mut steps = 1024;
        while run(i, steps) < LONG_ENOUGH.as_secs_f64() {
            steps *= 2;
        }
        steps
    };
    let steps: Vec<u64> = (0..peaks.len()).map(long_enough).collect();
    let names: Vec<_> = peaks.iter().map(|peak| peak.name).collect();
    best_of_turns(&names, |i| {
        let macs = (steps[i] * peaks[i].macs) as f64 * cpu.threads() as f64;
        // Four short bursts per turn: with several threads, it is rare that all of them run undisturbed.
        (0..4).map(|_| macs / run(i, steps[i])).fold(0.0, f64::max)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn every_variant_of_every_isa_reports_something() {
        for isa in Isa::available() {
            let cpu = Cpu::with_isa(isa, 2).expect("two threads");
            let peak = int8_peak(&cpu);
            assert!(peak.variants.iter().all(|v| v.figure.is_finite() && v.figure > 1e6), "{isa}: {peak:?}");
            assert!(peak.variants.iter().all(|v| v.figure <= peak.best().figure));
        }
        let bandwidth = memory_bandwidth(&Cpu::new(2).expect("two threads")).expect("two buffers");
        assert_eq!(bandwidth.variants.len(), 10);
        assert!(bandwidth.variants.iter().all(|v| v.figure.is_finite() && v.figure > 1e6), "{bandwidth:?}");
    }
}
