//! Worker threads, in addition to the caller's thread.
//!
//! A layer of a small model takes microseconds, so idle workers first spin, then yield, and sleep only after a while
//! without work. A job is a borrowed closure; its lifetime is erased only in this module.
//!
//! On a busy machine a worker may be without a core for some milliseconds, a scheduler time slice. The caller does not wait for a
//! worker that has not begun: it takes the share back and runs it. It must wait for a worker that has begun, and soon sleeps:
//! spinning or yielding would use up its own time slice, so that it would lose its core by the time the worker is done.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::hint::spin_loop;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::error::HostError;

/// Number of spins before a waiting thread yields its core: about ten microseconds.
const SPINS: u32 = 400;
/// Time that a caller yields before it sleeps. Shares that end at different times differ by less, so that on an idle machine
/// no caller sleeps.
const PATIENCE: Duration = Duration::from_micros(50);
/// Time that a worker yields before it sleeps. Sampling and printing a token takes less, so workers stay awake during decoding.
const AWAKE: Duration = Duration::from_micros(400);

/// Mailbox state: no job, and the worker is awake.
const IDLE: *mut Job<'static> = null_mut();
/// Mailbox state: no job, and the worker sleeps or is about to. Jobs are aligned, so no job has an odd address.
const ASLEEP: *mut Job<'static> = without_provenance_mut(1);
/// Mailbox state: the worker must exit.
const STOP: *mut Job<'static> = without_provenance_mut(3);
/// Mailbox state: the worker has begun the job.
const BEGUN: *mut Job<'static> = without_provenance_mut(5);
/// Mailbox state: the worker has begun the job, and the caller sleeps until it is done.
const AWAITED: *mut Job<'static> = without_provenance_mut(7);

/// A closure that runs once per share, with the share's number.
struct Job<'a> {
    run: &'a (dyn Fn(usize) + Sync),
    /// Payload of the first panic.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// The thread that the worker of an [`AWAITED`] share must wake.
    caller: Mutex<Option<Thread>>,
}

impl Job<'_> {
    /// Runs a share and records its panic.
    fn run_share(&self, number: usize) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.run)(number))) {
            // The first payload is resumed. Further ones are leaked, because dropping a payload could panic.
            let mut first = lock(&self.panic);
            match *first {
                None => *first = Some(panic),
                Some(_) => std::mem::forget(panic),
            }
        }
    }
}

/// Locks a mutex that no code can poison, because none panics while it holds the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State shared by a worker and the callers, on its own cache lines.
///
/// A job's address is in the mailbox until the worker begins the job or the caller takes it back; both replace the address with a
/// compare-and-exchange, so exactly one of them runs the share.
///
/// Memory orderings: a caller initializes a job, then publishes it with a release store that the worker acquires when it
/// begins; the worker's last access to the job precedes the release store that makes the mailbox [`IDLE`] again, which
/// the caller acquires before it continues.
#[repr(align(128))]
struct Mailbox(AtomicPtr<Job<'static>>);

/// Worker threads that serve one caller at a time.
pub(super) struct Crew {
    workers: Vec<(Arc<Mailbox>, JoinHandle<()>)>,
    busy: AtomicBool,
    spins: u32,
}

impl Crew {
    /// Starts this many workers.
    pub(super) fn new(workers: usize) -> Result<Self, HostError> {
        // Spinning threads must not take time from other threads on the same core.
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let spins = if workers < cores { SPINS } else { 0 };
        let mut crew = Self { workers: Vec::with_capacity(workers), busy: AtomicBool::new(false), spins };
        for number in 0..workers {
            let mailbox = Arc::new(Mailbox(AtomicPtr::new(IDLE)));
            let mine = Arc::clone(&mailbox);
            let worker = thread::Builder::new()
                .name(format!("trike-cpu-{number}"))
                .spawn(move || work(&mine, number, spins))
                // Dropping `crew` stops the workers already started.
                .map_err(|e| HostError::Threads { requested: workers + 1, reason: e.to_string() })?;
            crew.workers.push((mailbox, worker));
        }
        Ok(crew)
    }

    /// Whether the workers would start a job immediately. A hint: the state may change at any time.
    pub(super) fn is_awake(&self) -> bool {
        // The first worker takes part in every job, so if it sleeps, all do. No other data is read, so relaxed is enough.
        self.workers.first().is_some_and(|(mailbox, _)| mailbox.0.load(Ordering::Relaxed) != ASLEEP)
    }

    /// Wakes the workers for a job that will soon follow. Does not wait for them.
    pub(super) fn wake(&self) {
        for (mailbox, worker) in &self.workers {
            // No data is passed, so relaxed is enough.
            if mailbox.0.compare_exchange(ASLEEP, IDLE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                worker.thread().unpark();
            }
        }
    }

    /// Runs `run(0), ..., run(helpers)`, the last on the caller's thread, every other one on its worker or, if that worker has not
    /// begun when the caller is free, on the caller's thread. Returns `true` when all are done, and `false` without running
    /// anything if the workers are busy with another call.
    ///
    /// A panic in any of them is resumed on the caller's thread after all are done.
    pub(super) fn run(&self, helpers: usize, run: &(dyn Fn(usize) + Sync)) -> bool {
        let workers = &self.workers[..helpers];
        // Acquire: pairs with the release of the previous caller, whose workers are then idle.
        if self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        let job = Job { run, panic: Mutex::new(None), caller: Mutex::new(None) };
        let address = (&raw const job).cast_mut().cast::<Job<'static>>();
        for (mailbox, worker) in workers {
            // Release: the worker must see the initialized job. The previous call ensured that it is idle or asleep.
            if mailbox.0.swap(address, Ordering::Release) == ASLEEP {
                worker.thread().unpark();
            }
        }
        // From here to the end of the last loop nothing unwinds, so no worker holds a dangling job.
        job.run_share(helpers);
        for (number, (mailbox, _)) in workers.iter().enumerate() {
            // Loaded first because a failing exchange would also take the cache line from a running worker. Relaxed: the worker of
            // a share that is taken back has written nothing.
            if mailbox.0.load(Ordering::Relaxed) == address
                && mailbox.0.compare_exchange(address, IDLE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                job.run_share(number);
            }
        }
        for (mailbox, _) in workers {
            self.wait(mailbox, &job);
        }
        self.busy.store(false, Ordering::Release);
        if let Some(panic) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
        true
    }

    /// Waits until a worker that has begun this job is done; others are idle or asleep.
    fn wait(&self, mailbox: &Mailbox, job: &Job<'_>) {
        let mut left = self.spins;
        let mut since = None;
        // Acquire: the caller must see the writes of the worker.
        while mailbox.0.load(Ordering::Acquire) == BEGUN {
            pause(&mut left);
            if left > 0 || since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                continue;
            }
            *lock(&job.caller) = Some(thread::current());
            // The lock orders the handle before the worker's access, so relaxed is enough.
            if mailbox.0.compare_exchange(BEGUN, AWAITED, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                while mailbox.0.load(Ordering::Acquire) == AWAITED {
                    thread::park();
                }
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (mailbox, worker) in &self.workers {
            // No call is in progress, since calls borrow the crew.
            if mailbox.0.swap(STOP, Ordering::Relaxed) == ASLEEP {
                worker.thread().unpark();
            }
        }
        for (_, worker) in self.workers.drain(..) {
            // Workers do not panic; panics of their jobs were passed to the callers.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

/// Waits briefly: spins while `spins` lasts, then yields.
fn pause(spins: &mut u32) {
    if let Some(left) = spins.checked_sub(1) {
        *spins = left;
        spin_loop();
    } else {
        thread::yield_now();
    }
}

/// Main loop of a worker.
fn work(mailbox: &Mailbox, number: usize, spins: u32) {
    loop {
        let found = receive(mailbox, spins);
        if found == STOP {
            return;
        }
        // Acquire: pairs with the release of `Crew::run`, which may have posted another job at the same address meanwhile.
        if mailbox.0.compare_exchange(found, BEGUN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // The caller has taken the job back.
            continue;
        }
        // SAFETY: `receive` returns only values stored by a caller: STOP, which is handled above, or the address of a
        // job in `Crew::run`. The exchange found that address in the mailbox, so the job is not taken back, and the call
        // does not return or unwind before this mailbox holds another value than BEGUN and AWAITED.
        let job: &Job<'_> = unsafe { &*found };
        job.run_share(number);
        // Release: the worker's last access to this job, unless the caller sleeps. Only the caller of this job can have
        // stored another value meanwhile: other callers are locked out by `busy`.
        if mailbox.0.compare_exchange(BEGUN, IDLE, Ordering::Release, Ordering::Relaxed).is_err() {
            let caller = lock(&job.caller).clone();
            mailbox.0.store(IDLE, Ordering::Release);
            if let Some(caller) = caller {
                caller.unpark();
            }
        }
    }
}

/// Waits for a job or for [`STOP`].
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
            // The clock is read only after spinning.
            if left == 0 && idle_since.get_or_insert_with(Instant::now).elapsed() > AWAKE {
                break;
            }
        }
        // A caller that finds ASLEEP unparks this thread; a value stored just before is returned instead.
        if let Err(found) = mailbox.0.compare_exchange(IDLE, ASLEEP, Ordering::Relaxed, Ordering::Acquire) {
            return found;
        }
        // Sleeps until there is a job, STOP, or a wake-up for a coming job.
        while mailbox.0.load(Ordering::Acquire) == ASLEEP {
            thread::park();
        }
    }
}
