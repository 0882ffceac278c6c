//! Results that are taken in order.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Takes the results of numbered items in order, whatever the order in which they come.
pub(super) struct Turns<F> {
    state: Mutex<State<F>>,
    changed: Condvar,
}

struct State<F> {
    /// The item whose turn it is.
    next: usize,
    /// Whether an item will not come.
    broken: bool,
    take: F,
}

/// Lets others go on when its thread panics.
pub(super) struct Ended<'t, F>(&'t Turns<F>);

impl<F> Turns<F> {
    pub(super) fn new(take: F) -> Self {
        Self { state: Mutex::new(State { next: 0, broken: false, take }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<F>> {
        // After a panic of `take`, `broken` keeps it from being called again.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be alive while an item is worked on.
    pub(super) fn ends_with_a_panic(&self) -> Ended<'_, F> {
        Ended(self)
    }

    /// Waits for the turn of item `i` and takes its result.
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

impl<F> Drop for Ended<'_, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().broken = true;
            self.0.changed.notify_all();
        }
    }
}
