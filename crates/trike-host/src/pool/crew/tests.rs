//! Tests of the workers: shares that are taken back, awaited, and raced for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::{AWAITED, BEGUN, Crew, IDLE, Mailbox, STOP, work};

/// A crew with one worker that runs this main loop.
fn crew_of(main: impl FnOnce(&Mailbox) + Send + 'static) -> Crew {
    let mailbox = Arc::new(Mailbox(IDLE.into()));
    let mine = Arc::clone(&mailbox);
    let worker = thread::spawn(move || main(&mine));
    Crew { workers: vec![(mailbox, worker)], busy: AtomicBool::new(false), spins: 0 }
}

/// Runs two shares, and returns the threads that ran them, in order.
fn threads_of(crew: &Crew) -> Vec<(usize, ThreadId)> {
    let ran = Mutex::new(Vec::new());
    assert!(crew.run(1, &|share| ran.lock().expect("no panic").push((share, thread::current().id()))));
    ran.into_inner().expect("no panic")
}

#[test]
fn a_share_that_is_not_begun_runs_on_the_caller() {
    // A worker that never begins, as if it never got a core.
    let crew = crew_of(|mailbox| {
        while mailbox.0.load(Ordering::Relaxed) != STOP {
            thread::sleep(Duration::from_millis(1));
        }
    });
    let caller = thread::current().id();
    for _ in 0..3 {
        assert_eq!(threads_of(&crew), [(1, caller), (0, caller)]);
    }
    for bad in [vec![0], vec![1], vec![0, 1]] {
        let ran = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            crew.run(1, &|share| {
                ran.fetch_add(1, Ordering::Relaxed);
                if bad.contains(&share) {
                    // Unlike `panic_any` it prints no message.
                    std::panic::resume_unwind(Box::new(share));
                }
            })
        }));
        let said = result.expect_err("the panic is propagated");
        assert_eq!(said.downcast_ref::<usize>(), bad.last(), "the first one: the caller's share comes first");
        assert_eq!(ran.into_inner(), 2, "the other share runs nevertheless");
    }
}

#[test]
fn a_late_worker_serves_later_calls() {
    let (begin, may_begin) = mpsc::channel();
    let crew = crew_of(move |mailbox| {
        may_begin.recv().expect("the test goes on");
        work(mailbox, 0, 0);
    });
    let caller = thread::current().id();
    assert_eq!(threads_of(&crew), [(1, caller), (0, caller)]);
    begin.send(()).expect("the worker waits");
    while threads_of(&crew).iter().all(|&(_, thread)| thread == caller) {
        thread::yield_now();
    }
}

#[test]
fn the_caller_sleeps_until_a_share_in_progress_is_done() {
    let crew = Crew::new(1).expect("a thread");
    let (mailbox, _) = &crew.workers[0];
    let wait_for = |state| {
        while mailbox.0.load(Ordering::Relaxed) != state {
            thread::yield_now();
        }
    };
    for bad in [false, true, false] {
        let result = catch_unwind(AssertUnwindSafe(|| {
            crew.run(1, &|share| {
                // The caller's share ends when the worker has begun, the worker's when the caller sleeps.
                wait_for(if share == 1 { BEGUN } else { AWAITED });
                assert!(!bad || share == 1);
            })
        }));
        assert_eq!(result.is_err(), bad);
    }
}

#[test]
fn shares_that_both_sides_want_run_once() {
    let crew = Crew::new(3).expect("a few threads");
    let counts = [const { AtomicUsize::new(0) }; 4];
    for round in 1..=20_000 {
        // The caller has no work of its own, so it takes shares back while the workers begin them.
        assert!(crew.run(3, &|share| {
            counts[share].fetch_add(1, Ordering::Relaxed);
        }));
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == round), "{counts:?}");
    }
}

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
