//! Ctrl-C.

use std::sync::atomic::{AtomicU8, Ordering};

/// The exit code of a command that was interrupted: 128 and the number of the signal, as shells have it.
pub(crate) const CODE: u8 = 130;

/// There is nothing to finish: stop at once.
const ABRUPT: u8 = 0;
/// A command looks at [`requested`] between its steps.
const GRACEFUL: u8 = 1;
/// It was asked to stop.
const REQUESTED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(ABRUPT);

/// Takes Ctrl-C over. It ends the process with [`CODE`], unless a command said that it stops by itself; a second one
/// ends that too. Where the system does not allow this, Ctrl-C ends the process in its own way.
pub(crate) fn install() {
    let _ = ctrlc::set_handler(|| {
        if STATE.compare_exchange(GRACEFUL, REQUESTED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            std::process::exit(i32::from(CODE));
        }
    });
}

/// Says that the command looks at [`requested`] from now on.
pub(crate) fn stop_gracefully() {
    // A failure means that the state was set before; it stands.
    let _ = STATE.compare_exchange(ABRUPT, GRACEFUL, Ordering::SeqCst, Ordering::SeqCst);
}

/// Says that the command has stopped what it was asked to stop; the next Ctrl-C ends it.
pub(crate) fn resume() {
    STATE.store(ABRUPT, Ordering::SeqCst);
}

/// Whether Ctrl-C came.
pub(crate) fn requested() -> bool {
    STATE.load(Ordering::SeqCst) == REQUESTED
}
