//! Thread pool; each thread gets one contiguous slice of the rows.

mod crew;
mod ordered;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::HostError;
use crate::topology::default_threads;

use crew::Crew;
use ordered::OrderedResults;

/// Maximum number of threads of a [`Pool`]: far above any machine, but it keeps a mistyped number from starting thousands.
pub const MAX_THREADS: usize = 1024;

/// Minimum number of f32 multiply-adds per thread, some microseconds of work; below that, a hand-over costs more than it saves. A
/// hand-over and its response take 0.3 us if both cores are free. If another program takes the core of a worker that has begun, the
/// response takes a scheduler time slice, so the number of hand-overs per token must be small.
const WORK_PER_THREAD: usize = 1 << 17;
/// [`WORK_PER_THREAD`] while the workers sleep: waking one takes tens of microseconds.
const WORK_PER_SLEEPER: usize = 1 << 19;

/// A thread pool: the caller's thread and, for more than one thread, workers.
///
/// The workers serve one call at a time: a call that finds them busy (from another thread, or from within a task) runs
/// all its tasks on its own thread, so it neither waits nor deadlocks.
#[derive(Clone, Debug)]
pub struct Pool {
    threads: usize,
    crew: Option<Arc<Crew>>,
}

impl Pool {
    /// A pool of this many threads, including the caller's; 0 = one per physical core within the process's affinity mask and
    /// control-group quota, or per logical CPU if the operating system does not report which CPUs share a core.
    ///
    /// # Errors
    ///
    /// [`HostError::TooManyThreads`] above [`MAX_THREADS`], [`HostError::Threads`] if the operating system cannot start the
    /// threads.
    pub fn new(threads: usize) -> Result<Self, HostError> {
        let threads = match threads {
            0 => default_threads().min(MAX_THREADS),
            n => n,
        };
        if threads > MAX_THREADS {
            return Err(HostError::TooManyThreads { requested: threads, maximum: MAX_THREADS });
        }
        let crew = (threads > 1).then(|| Crew::new(threads - 1).map(Arc::new)).transpose()?;
        Ok(Self { threads, crew })
    }

    /// Number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The number of threads that this many multiply-adds justify.
    ///
    /// It depends on whether the workers are awake, so results must not depend on it. Work that would be split
    /// if the workers were awake wakes them for the following calls.
    pub fn parts(&self, work: usize) -> usize {
        let Some(crew) = &self.crew else { return 1 };
        if crew.is_awake() {
            return (work / WORK_PER_THREAD).clamp(1, self.threads);
        }
        let parts = (work / WORK_PER_SLEEPER).clamp(1, self.threads);
        if parts == 1 && work >= 2 * WORK_PER_THREAD {
            crew.wake();
        }
        parts
    }

    /// Runs `f` on every task, in contiguous shares of the list, one share per thread; the last on the caller's thread. A share
    /// runs on the same thread every time, so that its weights stay in that core's cache. Only if that thread has not begun when
    /// the caller finishes its own share, as on a busy machine, the caller runs it.
    ///
    /// A panic in a task is resumed on the caller's thread after all tasks have ended.
    pub fn run<T: Send>(&self, tasks: Vec<T>, f: impl Fn(T) + Sync) {
        let Some(crew) = self.crew.as_ref().filter(|_| tasks.len() > 1) else {
            return tasks.into_iter().for_each(f);
        };
        let shares: Vec<_> = ranges(tasks.len(), self.threads).collect();
        let tasks: Vec<_> = tasks.into_iter().map(|task| Mutex::new(Some(task))).collect();
        // No task runs with the lock held, so a panic cannot poison it.
        let take = |slot: &Mutex<Option<T>>| slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let share = |thread: usize| tasks[shares[thread].clone()].iter().filter_map(take).for_each(&f);
        if !crew.run(shares.len() - 1, &share) {
            (0..shares.len()).for_each(share);
        }
    }

    /// Applies `work` to independent items of uneven cost and returns the results in item order. Threads take items dynamically.
    ///
    /// A panic in an item is resumed on the caller's thread after all threads have finished.
    ///
    /// ```
    /// use trike_host::Pool;
    ///
    /// assert_eq!(Pool::new(3)?.map(vec![1, 2, 3], |i| 10 * i), [10, 20, 30]);
    /// # Ok::<(), trike_host::HostError>(())
    /// ```
    pub fn map<T: Send, R: Send>(&self, items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        let threads = self.threads.min(items.len());
        if threads <= 1 {
            return items.into_iter().map(work).collect();
        }
        let queue = Mutex::new(items.into_iter().enumerate());
        // No item is processed with the lock held.
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let mut done: Vec<Vec<(usize, R)>> = (0..threads).map(|_| Vec::new()).collect();
        self.run(done.iter_mut().collect(), |done| {
            while let Some((i, item)) = next() {
                done.push((i, work(item)));
            }
        });
        let mut done: Vec<(usize, R)> = done.into_iter().flatten().collect();
        done.sort_unstable_by_key(|&(i, _)| i);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// Applies `work` to independent items like [`map`](Self::map), and passes the results to `take` in item order, as early as
    /// possible. A thread waits until its result is taken, so there are at most as many results as threads.
    ///
    /// A panic in `work` or `take` is resumed on the caller's thread; results that were not taken by then are dropped.
    ///
    /// ```
    /// use trike_host::Pool;
    ///
    /// let mut text = String::new();
    /// Pool::new(3)?.map_in_order(vec![1, 2, 3], |i| 10 * i, |tens| text += &format!("{tens} "));
    /// assert_eq!(text, "10 20 30 ");
    /// # Ok::<(), trike_host::HostError>(())
    /// ```
    pub fn map_in_order<T: Send, R: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(T) -> R + Sync,
        take: impl FnMut(R) + Send,
    ) {
        let results = OrderedResults::new(take);
        self.map(items.into_iter().enumerate().collect(), |(i, item)| {
            let _guard = results.panic_guard();
            results.pass(i, work(item));
        });
    }

    /// Splits `out` at multiples of `unit` elements into one contiguous slice per thread, and calls `f` with the start of the slice
    /// (in units) and the slice. `work` is the total number of multiply-adds, see [`Pool::parts`].
    pub fn for_each_chunk<T: Send>(
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

/// Splits `0..n` into at most `parts` ranges whose lengths differ by at most one; empty ranges are omitted.
pub fn ranges(n: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = parts.clamp(1, n.max(1));
    (0..parts).map(move |p| n / parts * p + p.min(n % parts)..n / parts * (p + 1) + (p + 1).min(n % parts))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::{MAX_THREADS, Pool, WORK_PER_SLEEPER, WORK_PER_THREAD, ranges};

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

    const THREADS: [usize; 4] = [1, 2, 3, 7];

    fn pools() -> impl Iterator<Item = Pool> {
        THREADS.into_iter().map(|threads| Pool::new(threads).expect("a few threads"))
    }

    #[test]
    fn every_unit_is_visited_once_whatever_the_threads() {
        for pool in pools() {
            let mut out = vec![0usize; 21];
            pool.for_each_chunk(&mut out, 3, usize::MAX, |start, part| {
                for (i, v) in part.iter_mut().enumerate() {
                    *v += start * 3 + i + 1;
                }
            });
            assert_eq!(out, (1..=21).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_task_runs_once_on_the_thread_of_its_share_or_on_the_caller() {
        let caller = std::thread::current().id();
        for pool in pools() {
            for n in [0, 1, 2, 3, 8, 50] {
                let mut all = vec![(0usize, None); n];
                let shares: Vec<_> = ranges(n, pool.threads).collect();
                // The threads other than the caller's that have run a share.
                let mut workers = vec![HashSet::new(); shares.len()];
                for round in 1..=20 {
                    pool.run(all.iter_mut().collect(), |(count, thread)| {
                        *count += 1;
                        *thread = Some(std::thread::current().id());
                    });
                    assert!(all.iter().all(|(count, _)| *count == round), "{n} tasks: {all:?}");
                    for (share, workers) in shares.iter().zip(&mut workers) {
                        let mut threads: Vec<_> =
                            all[share.clone()].iter().filter_map(|(_, thread)| *thread).collect();
                        threads.dedup();
                        assert!(n == 0 || threads.len() == 1, "a share is not split: {threads:?}");
                        workers.extend(threads.into_iter().filter(|&thread| thread != caller));
                    }
                }
                let (last, others) = workers.split_last().expect("at least one share, if only an empty one");
                assert!(last.is_empty(), "the caller runs the last share");
                assert!(others.iter().all(|workers| workers.len() <= 1), "a share has one worker");
                let distinct: HashSet<_> = others.iter().flatten().collect();
                assert_eq!(distinct.len(), others.iter().flatten().count(), "a worker has one share");
            }
        }
    }

    #[test]
    fn mapped_items_keep_their_order() {
        for pool in pools() {
            for n in [0, 1, 2, 57] {
                let want: Vec<i32> = (0..n).map(|i| i * i).collect();
                assert_eq!(pool.map((0..n).collect(), |i| i * i), want);
            }
            // A nested call on the same pool completes, on its own thread.
            let nested = pool.map(vec![3, 4], |n| pool.map((0..n).collect(), |i| i + 1));
            assert_eq!(nested, [vec![1, 2, 3], vec![1, 2, 3, 4]]);
            let result = catch_unwind(AssertUnwindSafe(|| pool.map(vec![0, 1, 2], |i| assert!(i != 1))));
            assert!(result.is_err(), "a panic is passed on");
        }
    }

    #[test]
    fn results_are_taken_in_order_and_few_wait() {
        for pool in pools() {
            for n in [0, 1, 2, 57] {
                let (mut taken, alive) = (Vec::new(), AtomicUsize::new(0));
                pool.map_in_order(
                    (0..n).collect(),
                    |i: usize| {
                        // Early items take longest.
                        std::thread::sleep(Duration::from_micros(10 * (n - i) as u64));
                        assert!(
                            alive.fetch_add(1, Ordering::SeqCst) < pool.threads,
                            "more results than threads"
                        );
                        i
                    },
                    |i| {
                        alive.fetch_sub(1, Ordering::SeqCst);
                        taken.push(i);
                    },
                );
                assert_eq!(taken, (0..n).collect::<Vec<_>>());
            }
            // Other threads do not wait for an item whose thread panicked.
            for (in_work, in_take) in [(3, usize::MAX), (usize::MAX, 3)] {
                let mut taken = Vec::new();
                let result = catch_unwind(AssertUnwindSafe(|| {
                    pool.map_in_order(
                        (0..9).collect(),
                        |i| {
                            assert!(i != in_work);
                            i
                        },
                        |i| {
                            assert!(i != in_take);
                            taken.push(i);
                        },
                    );
                }));
                assert!(result.is_err(), "a panic is passed on");
                assert_eq!(taken, [0, 1, 2]);
            }
        }
    }

    #[test]
    fn work_is_shared_from_a_limit_on() {
        let pool = Pool::new(3).expect("a few threads");
        for (work, awake, parts) in [
            (0, true, 1),
            (2 * WORK_PER_THREAD - 1, true, 1),
            (2 * WORK_PER_THREAD, true, 2),
            (3 * WORK_PER_THREAD, true, 3),
            (usize::MAX, true, 3),
            (2 * WORK_PER_SLEEPER - 1, false, 1),
            (2 * WORK_PER_SLEEPER, false, 2),
        ] {
            let crew = pool.crew.as_ref().expect("workers");
            let got = AtomicUsize::new(0);
            if awake {
                // Workers are awake while they have a task.
                let asked = AtomicBool::new(false);
                pool.run(vec![false, false, true], |asks| {
                    if asks {
                        got.store(pool.parts(work), Ordering::Relaxed);
                        asked.store(true, Ordering::Relaxed);
                    }
                    while !asked.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                });
            } else {
                while crew.is_awake() {
                    std::thread::yield_now();
                }
                got.store(pool.parts(work), Ordering::Relaxed);
            }
            let got = got.into_inner();
            assert_eq!(got, parts, "{work}, awake: {awake}");
        }
        assert_eq!(Pool::new(1).expect("the caller").parts(usize::MAX), 1);
    }

    #[test]
    fn a_panic_reaches_the_caller_when_all_is_done() {
        for pool in pools() {
            for bad in [vec![0], vec![6], vec![3], vec![0, 6], (0..7).collect()] {
                let (started, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
                let result = catch_unwind(AssertUnwindSafe(|| {
                    pool.run((0..7).collect(), |i| {
                        started.fetch_add(1, Ordering::Relaxed);
                        if bad.contains(&i) {
                            // Unlike `panic_any` it prints no message.
                            std::panic::resume_unwind(Box::new(i));
                        }
                        std::thread::sleep(Duration::from_millis(1));
                        ended.fetch_add(1, Ordering::Relaxed);
                    });
                }));
                let said = result.expect_err("the panic is passed on");
                assert!(bad.contains(said.downcast_ref::<i32>().expect("its own payload")));
                let started = started.into_inner();
                let panics = started - ended.into_inner();
                assert!((1..=bad.len()).contains(&panics), "{started} started, {panics} panicked");
            }
            // The pool stays usable.
            let mut out = [0; 9];
            pool.run(out.iter_mut().collect(), |v| *v += 1);
            assert_eq!(out, [1; 9]);
        }
    }

    #[test]
    fn calls_within_tasks_and_from_many_threads_all_finish() {
        for pool in pools() {
            std::thread::scope(|scope| {
                for caller in 0..4u64 {
                    let pool = &pool;
                    scope.spawn(move || {
                        for round in 0..300 {
                            let mut out = [0u64; 8];
                            pool.for_each_chunk(&mut out, 1, usize::MAX, |start, part| {
                                // A task that uses the pool itself completes, on its own thread.
                                pool.for_each_chunk(part, 1, usize::MAX, |inner, part| {
                                    for (i, v) in part.iter_mut().enumerate() {
                                        *v = 1000 * caller + round + (start + inner + i) as u64;
                                    }
                                });
                            });
                            let want: Vec<u64> = (0..8).map(|i| 1000 * caller + round + i).collect();
                            assert_eq!(out[..], want);
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn workers_wake_up_again() {
        for pool in pools() {
            let mut sum = [0usize; 7];
            for pause in [0, 1, 5, 20] {
                std::thread::sleep(Duration::from_millis(pause));
                pool.run(sum.iter_mut().collect(), |v| *v += 1);
            }
            assert_eq!(sum, [4; 7]);
        }
    }
}
