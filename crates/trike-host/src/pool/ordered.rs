//! Consumption of concurrent results in item order.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Passes the results of numbered items to `take` in item order, whatever the order of completion.
pub(super) struct OrderedResults<F> {
    state: Mutex<State<F>>,
    changed: Condvar,
}

struct State<F> {
    /// The next item to take.
    next: usize,
    /// Set while `take` runs and after a panic; further results are then dropped.
    broken: bool,
    take: F,
}

/// Wakes the waiting threads if its thread panics.
pub(super) struct PanicGuard<'t, F>(&'t OrderedResults<F>);

impl<F> OrderedResults<F> {
    pub(super) fn new(take: F) -> Self {
        Self { state: Mutex::new(State { next: 0, broken: false, take }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<F>> {
        // After a panic of `take`, `broken` prevents another call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Must be held while an item is processed.
    pub(super) fn panic_guard(&self) -> PanicGuard<'_, F> {
        PanicGuard(self)
    }

    /// Waits until it is the turn of item `i` and takes its result.
    pub(super) fn pass<R>(&self, i: usize, result: R)
    where
        F: FnMut(R),
    {
        let waits = |state: &mut State<F>| state.next != i && !state.broken;
        let mut state = self.changed.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        if state.broken {
            return;
        }
        // Until it has returned.
        state.broken = true;
        (state.take)(result);
        (state.broken, state.next) = (false, i + 1);
        drop(state);
        self.changed.notify_all();
    }
}

impl<F> Drop for PanicGuard<'_, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().broken = true;
            self.0.changed.notify_all();
        }
    }
}
