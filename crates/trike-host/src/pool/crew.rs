//! Threads that wait for work beside the caller's.
//!
//! A layer of a small model takes microseconds, so workers first spin, then yield, and sleep only when nothing came for a
//! while. A job is a borrowed closure: its lifetime is erased here and nowhere else.

use std::any::Any;
use std::fmt;
use std::hint::spin_loop;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::HostError;

/// Looks at a flag before a waiting thread starts to yield its core: some ten microseconds.
const SPINS: u32 = 400;
/// How long a worker yields before it sleeps. A token is sampled and printed in less, so decoding never wakes anyone.
const AWAKE: Duration = Duration::from_micros(400);

/// Mailbox state: no job, and the worker is awake.
const IDLE: *mut Job<'static> = null_mut();
/// Nothing, and it sleeps or is about to. Odd addresses are no jobs, which are aligned.
const ASLEEP: *mut Job<'static> = without_provenance_mut(1);
/// The end.
const STOP: *mut Job<'static> = without_provenance_mut(3);

/// Something that every thread runs, with its own number.
struct Job<'a> {
    run: &'a (dyn Fn(usize) + Sync),
    /// Payload of the first worker that panicked.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// State shared by a worker and the callers, on its own cache lines.
///
/// The orderings: a caller fills a job and then publishes it with a release that the worker acquires; the worker's last
/// access to anything of the job comes before the release that makes the mailbox [`IDLE`] again, which the caller acquires
/// before it goes on.
#[repr(align(128))]
struct Mailbox(AtomicPtr<Job<'static>>);

/// Workers for one caller at a time.
pub(super) struct Crew {
    workers: Vec<(Arc<Mailbox>, JoinHandle<()>)>,
    busy: AtomicBool,
    spins: u32,
}

impl Crew {
    /// Starts that many workers.
    pub(super) fn new(workers: usize) -> Result<Self, HostError> {
        // Threads that share a core must not spin in each other's way.
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let spins = if workers < cores { SPINS } else { 0 };
        let mut crew = Self { workers: Vec::with_capacity(workers), busy: AtomicBool::new(false), spins };
        for number in 0..workers {
            let mailbox = Arc::new(Mailbox(AtomicPtr::new(IDLE)));
            let mine = Arc::clone(&mailbox);
            let worker = thread::Builder::new()
                .name(format!("trike-cpu-{number}"))
                .spawn(move || work(&mine, number, spins))
                // The workers that were started end when `crew` is dropped.
                .map_err(|e| HostError::Threads { requested: workers + 1, reason: e.to_string() })?;
            crew.workers.push((mailbox, worker));
        }
        Ok(crew)
    }

    /// Whether the workers would take a job at once. A hint: it may have changed when the caller reads it.
    pub(super) fn is_awake(&self) -> bool {
        // The first worker is part of every job, so when it sleeps all do. Nothing else is read, so any ordering serves.
        self.workers.first().is_some_and(|(mailbox, _)| mailbox.0.load(Ordering::Relaxed) != ASLEEP)
    }

    /// Tells the workers that there will soon be a job, so that they are awake then. It does not wait for them.
    pub(super) fn wake(&self) {
        for (mailbox, worker) in &self.workers {
            // Nothing is handed over, so any ordering serves.
            if mailbox.0.compare_exchange(ASLEEP, IDLE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                worker.thread().unpark();
            }
        }
    }

    /// Runs `run(0), ..., run(helpers)` at once, the last on the caller's thread, and returns when all are done, true; or
    /// false, with nothing run, when the workers are busy with another call.
    ///
    /// A panic of any of them is continued on the caller's thread, when all are done.
    pub(super) fn run(&self, helpers: usize, run: &(dyn Fn(usize) + Sync)) -> bool {
        let workers = &self.workers[..helpers];
        // Acquires what the previous caller released: that its workers are idle.
        if self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        let job = Job { run, panic: Mutex::new(None) };
        let address = (&raw const job).cast_mut().cast::<Job<'static>>();
        for (mailbox, worker) in workers {
            // Release: the worker must see the whole job. That it is idle or asleep was ensured by the previous call.
            if mailbox.0.swap(address, Ordering::Release) == ASLEEP {
                worker.thread().unpark();
            }
        }
        // From here to the end of the loop nothing unwinds, so no worker is left with a job that is gone.
        let own = catch_unwind(AssertUnwindSafe(|| run(helpers)));
        for (mailbox, _) in workers {
            let mut spins = self.spins;
            // Acquire: what the worker wrote must be seen by the caller.
            while mailbox.0.load(Ordering::Acquire) == address {
                pause(&mut spins);
            }
        }
        self.busy.store(false, Ordering::Release);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        if let Some(panic) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
        true
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (mailbox, worker) in &self.workers {
            // No call is under way, since each borrows the crew.
            if mailbox.0.swap(STOP, Ordering::Relaxed) == ASLEEP {
                worker.thread().unpark();
            }
        }
        for (_, worker) in self.workers.drain(..) {
            // Workers do not panic; their jobs' panics went to the callers.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

/// Waits a moment: spins while there are spins left, and lets others run after that.
fn pause(spins: &mut u32) {
    if let Some(left) = spins.checked_sub(1) {
        *spins = left;
        spin_loop();
    } else {
        thread::yield_now();
    }
}

/// The life of a worker.
fn work(mailbox: &Mailbox, number: usize, spins: u32) {
    loop {
        let found = receive(mailbox, spins);
        if found == STOP {
            return;
        }
        // SAFETY: `receive` returns nothing but what a caller put there: STOP, which ended the loop, or the address of a
        // job in `Crew::run`, which does not return or unwind before this mailbox holds something else.
        let job: &Job<'_> = unsafe { &*found };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (job.run)(number))) {
            // Dropping a payload could panic; only this worker's goes anywhere if it is the first.
            let mut first = job.panic.lock().unwrap_or_else(PoisonError::into_inner);
            match *first {
                None => *first = Some(panic),
                Some(_) => std::mem::forget(panic),
            }
        }
        // Release: the last thing that this job sees of the worker. No other value can have come meanwhile: the caller of
        // this job waits, and no other has its turn.
        mailbox.0.store(IDLE, Ordering::Release);
    }
}

/// Waits for a job or for the end.
fn receive(mailbox: &Mailbox, spins: u32) -> *mut Job<'static> {
    loop {
        let mut left = spins;
        let mut idle_since = None;
        loop {
            // Acquire: pairs with the release of `Crew::run`.
            let found = mailbox.0.load(Ordering::Acquire);
            if found != IDLE {
                return found;
            }
            pause(&mut left);
            // The clock is read only when spinning is over.
            if left == 0 && idle_since.get_or_insert_with(Instant::now).elapsed() > AWAKE {
                break;
            }
        }
        // Whoever finds ASLEEP unparks; if something came at the last moment, it is returned instead.
        if let Err(found) = mailbox.0.compare_exchange(IDLE, ASLEEP, Ordering::Relaxed, Ordering::Acquire) {
            return found;
        }
        // Until there is a job or the end, or somebody says that there will be one.
        while mailbox.0.load(Ordering::Acquire) == ASLEEP {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Crew;

    #[test]
    fn dropping_a_crew_ends_its_workers_awake_or_asleep() {
        for pause in [0, 20] {
            let crew = Crew::new(3).expect("a few threads");
            assert!(crew.run(3, &|_| ()));
            std::thread::sleep(std::time::Duration::from_millis(pause));
            let mailboxes: Vec<_> = crew.workers.iter().map(|(mailbox, _)| Arc::clone(mailbox)).collect();
            drop(crew);
            // A worker that has ended has dropped its share of the mailbox.
            assert!(mailboxes.iter().all(|mailbox| Arc::strong_count(mailbox) == 1));
        }
    }

    #[test]
    fn a_busy_crew_says_so() {
        let crew = Crew::new(1).expect("a thread");
        let outer = crew.run(1, &|_| assert!(!crew.run(1, &|_| panic!("not run"))));
        assert!(outer && crew.run(1, &|_| ()), "it is free again");
    }

    #[test]
    fn a_crew_that_is_woken_is_awake_until_it_sleeps_again() {
        let crew = Crew::new(2).expect("a few threads");
        for round in 0..20 {
            while crew.is_awake() {
                std::thread::yield_now();
            }
            crew.wake();
            if round % 2 == 0 {
                assert!(crew.run(2, &|_| ()), "a job on the way up");
            }
        }
    }
}
