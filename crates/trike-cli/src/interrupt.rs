//! Ctrl-C.

use std::sync::{
    Mutex,
    atomic::{AtomicU8, Ordering},
};

use crate::output;

/// Exit code of an interrupted command: 128 plus the signal number, as in shells.
pub(crate) const CODE: u8 = 130;

/// Ctrl-C exits immediately.
const ABRUPT: u8 = 0;
/// The command polls [`requested`] between its steps.
const GRACEFUL: u8 = 1;
/// Ctrl-C was pressed; the command will stop.
const REQUESTED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(ABRUPT);

/// Message of an interrupted command.
type Advice = Box<dyn Fn() -> String + Send>;

static ADVICE: Mutex<Option<Advice>> = Mutex::new(None);

/// Installs the Ctrl-C handler. Ctrl-C exits with [`CODE`], unless the command stops gracefully; a second Ctrl-C
/// always exits. If the handler cannot be installed, the system default applies.
pub(crate) fn install() {
    let _ = ctrlc::set_handler(|| {
        if STATE.compare_exchange(GRACEFUL, REQUESTED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            if let Some(advice) = ADVICE.lock().ok().as_deref().and_then(Option::as_ref) {
                output::interrupted(&advice());
            }
            exit();
        }
    });
}

/// Ends an interrupted command at once.
pub(crate) fn exit() -> ! {
    trike::format::remove_unfinished();
    std::process::exit(i32::from(CODE))
}

/// Sets the line that Ctrl-C prints before it exits; it is formatted only when needed.
pub(crate) fn advise(advice: impl Fn() -> String + Send + 'static) {
    if let Ok(mut place) = ADVICE.lock() {
        *place = Some(Box::new(advice));
    }
}

/// Reverts [`advise`].
#[cfg(feature = "hub")]
pub(crate) fn advise_nothing() {
    if let Ok(mut place) = ADVICE.lock() {
        *place = None;
    }
}

/// Declares that the command now polls [`requested`].
pub(crate) fn stop_gracefully() {
    // On failure the state was already set, and remains.
    let _ = STATE.compare_exchange(ABRUPT, GRACEFUL, Ordering::SeqCst, Ordering::SeqCst);
}

/// Declares that the command has stopped; the next Ctrl-C exits.
pub(crate) fn resume() {
    STATE.store(ABRUPT, Ordering::SeqCst);
}

/// Whether Ctrl-C was pressed.
pub(crate) fn requested() -> bool {
    STATE.load(Ordering::SeqCst) == REQUESTED
}
