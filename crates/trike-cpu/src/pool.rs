//! Threads: each gets one contiguous slice of the rows.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{CpuError, Result, check_range};
use crate::isa::Isa;

/// Threads that a [`Cpu`] may have; far above any machine, it only stops a mistyped number from starting thousands.
pub const MAX_THREADS: usize = 1024;

/// Multiply-adds in f32 below which waking a thread costs more than it saves: about ten microseconds of work.
const WORK_PER_THREAD: usize = 1 << 19;

/// The executor of every host kernel: an instruction set and a number of threads.
///
/// Slices go in, slices come out; nothing is kept between calls, so one `Cpu` may be shared by many models, and a clone
/// shares the threads.
///
/// ```
/// use trike_cpu::{Cpu, Isa};
///
/// let cpu = Cpu::new(2)?;
/// assert_eq!(cpu.threads(), 2);
/// assert_eq!(cpu.isa(), Isa::detect());
/// let mut x = [1.0, 2.0];
/// cpu.add(&mut x, &[0.5, 0.5])?;
/// assert_eq!(x, [1.5, 2.5]);
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cpu {
    isa: Isa,
    pool: Pool,
}

impl Cpu {
    /// The best instruction set of this machine with this many threads; 0 means all that the system offers.
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`] above [`MAX_THREADS`], [`CpuError::Threads`] when the system does not give the threads.
    pub fn new(threads: usize) -> Result<Self> {
        Self::with_isa(Isa::detect(), threads)
    }

    /// A chosen instruction set; for tests, benches and bug reports.
    ///
    /// # Errors
    ///
    /// As [`Cpu::new`].
    pub fn with_isa(isa: Isa, threads: usize) -> Result<Self> {
        Ok(Self { isa, pool: Pool::new(threads)? })
    }

    /// Threads, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads
    }

    /// The instruction set.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// The caller's thread and, when there are more, a pool of workers beside it.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    threads: usize,
    workers: Option<Arc<rayon::ThreadPool>>,
}

impl Pool {
    fn new(threads: usize) -> Result<Self> {
        let threads = match threads {
            // A machine that cannot say how many it has gets one.
            0 => std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS)),
            n => n,
        };
        check_range("threads", 1, MAX_THREADS, threads)?;
        let workers = (threads > 1)
            .then(|| {
                rayon::ThreadPoolBuilder::new()
                    .num_threads(threads - 1)
                    .thread_name(|i| format!("trike-cpu-{i}"))
                    .build()
                    .map(Arc::new)
                    .map_err(|e| CpuError::Threads { requested: threads, reason: e.to_string() })
            })
            .transpose()?;
        Ok(Self { threads, workers })
    }

    /// How many threads this many multiply-adds are worth.
    pub(crate) fn parts(&self, work: usize) -> usize {
        (work / WORK_PER_THREAD).clamp(1, self.threads)
    }

    /// Runs `f` on every task, each on its own thread; the last one on the caller's.
    pub(crate) fn run<T: Send>(&self, mut tasks: Vec<T>, f: impl Fn(T) + Sync) {
        let Some(last) = tasks.pop() else { return };
        match &self.workers {
            Some(workers) if !tasks.is_empty() => workers.in_place_scope(|scope| {
                for task in tasks {
                    scope.spawn(|_| f(task));
                }
                f(last);
            }),
            _ => {
                tasks.into_iter().for_each(&f);
                f(last);
            }
        }
    }

    /// Cuts `out` between whole units, one contiguous slice a thread, and tells each where its slice starts (in units).
    pub(crate) fn for_units<T: Send>(
        &self,
        out: &mut [T],
        unit: usize,
        work: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let mut rest = out;
        let mut tasks = Vec::new();
        for range in ranges(rest.len() / unit, self.parts(work)) {
            let (part, tail) = rest.split_at_mut(range.len() * unit);
            tasks.push((range.start, part));
            rest = tail;
        }
        self.run(tasks, |(start, part)| f(start, part));
    }
}

/// `n` items in at most `parts` ranges whose lengths differ by one at most; empty ranges are left out.
pub(crate) fn ranges(n: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = parts.clamp(1, n.max(1));
    (0..parts).map(move |p| n / parts * p + p.min(n % parts)..n / parts * (p + 1) + (p + 1).min(n % parts))
}

#[cfg(test)]
mod tests {
    use super::{MAX_THREADS, Pool, ranges};

    #[test]
    fn ranges_cover_everything_once() {
        for n in [0, 1, 2, 7, 8, 9, 100] {
            for parts in [1, 2, 3, 8, 200] {
                let all: Vec<usize> = ranges(n, parts).flatten().collect();
                assert_eq!(all, (0..n).collect::<Vec<_>>(), "{n} in {parts}");
            }
        }
    }

    #[test]
    fn threads_at_the_limits() {
        for (threads, good) in [(0, true), (1, true), (2, true), (MAX_THREADS + 1, false)] {
            assert_eq!(Pool::new(threads).is_ok(), good, "{threads}");
        }
    }

    #[test]
    fn every_unit_is_visited_once_whatever_the_threads() {
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads).expect("a few threads");
            let mut out = vec![0usize; 21];
            pool.for_units(&mut out, 3, usize::MAX, |start, part| {
                for (i, v) in part.iter_mut().enumerate() {
                    *v += start * 3 + i + 1;
                }
            });
            assert_eq!(out, (1..=21).collect::<Vec<_>>());
        }
    }
}
