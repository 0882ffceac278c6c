//! An error message for a mapped file that has become unreadable.
//!
//! The system sends SIGBUS to the thread that reads such a file, which by default kills the program without a message. The handler
//! looks the address up among the mapped files, prints the file's path, and exits. SIGBUS of other causes, such as a stack
//! overflow, goes to the previously installed handler.

use std::{
    path::Path,
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Maximum number of mapped files that the handler knows, for a model in a thousand shards.
const SLOTS: usize = 1024;
/// Marks a slot that is being filled.
const RESERVED: usize = 1;

/// A mapped file. Atomics, because a signal handler may neither lock nor allocate.
struct Slot {
    /// Address of the first byte; 0 for a free slot.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The path, which the [`Watched`] of the slot owns.
    name: AtomicPtr<u8>,
    name_len: AtomicUsize,
}

static MAPPED: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        name: AtomicPtr::new(ptr::null_mut()),
        name_len: AtomicUsize::new(0),
    }
}; SLOTS];

/// The registration of a mapped file, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    slot: Option<usize>,
    /// Read by the handler.
    _name: Box<[u8]>,
}

impl Watched {
    /// Registers the memory of a file.
    pub(crate) fn new(memory: &[u8], path: &Path) -> Self {
        let name: Box<[u8]> = path.as_os_str().as_encoded_bytes().into();
        let take = |slot: &&Slot| slot.start.compare_exchange(0, RESERVED, Acquire, Relaxed).is_ok();
        let slot = MAPPED.iter().enumerate().find(|(_, slot)| take(slot)).map(|(at, slot)| {
            slot.end.store(memory.as_ptr_range().end.addr(), Relaxed);
            slot.name.store(name.as_ptr().cast_mut(), Relaxed);
            slot.name_len.store(name.len(), Relaxed);
            slot.start.store(memory.as_ptr().addr(), Release);
            at
        });
        Self { slot, _name: name }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(at) = self.slot {
            MAPPED[at].start.store(0, Release);
        }
    }
}

/// From now on, a mapped file that becomes unreadable, because another process truncated it or its disk failed, ends the process
/// with a message on stderr and this exit code instead of a signal. For programs, not for libraries, since it affects the whole
/// process. Does nothing on systems without signals.
pub fn exit_on_unreadable_map(code: u8) {
    #[cfg(unix)]
    handler::install(code);
    #[cfg(not(unix))]
    let _ = code;
}

#[cfg(unix)]
mod handler {
    use std::{
        mem::MaybeUninit,
        ptr,
        sync::{
            OnceLock,
            atomic::{
                AtomicI32,
                Ordering::{Acquire, Relaxed},
            },
        },
    };

    use super::MAPPED;

    static CODE: AtomicI32 = AtomicI32::new(1);
    /// The previously installed action.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    pub(super) fn install(code: u8) {
        CODE.store(i32::from(code), Relaxed);
        BEFORE.get_or_init(|| {
            // SAFETY: the fields are integers and an optional function pointer, for which all zeros are valid.
            let mut before: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            let mut action = before;
            action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: both structures are valid; the handler has the signature of SA_SIGINFO and calls only functions that POSIX
            // allows in a handler.
            unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
            before
        });
    }

    extern "C" fn on_signal(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: the system passes a valid structure to a handler with SA_SIGINFO.
        let info = unsafe { &*info };
        // SAFETY: every SIGBUS caused by an access has an address; one sent by another process has 0, where no file is mapped.
        let address = unsafe { info.si_addr() }.addr();
        for slot in &MAPPED {
            let start = slot.start.load(Acquire);
            if start > super::RESERVED && (start..slot.end.load(Relaxed)).contains(&address) {
                let (name, len) = (slot.name.load(Relaxed), slot.name_len.load(Relaxed));
                say(b"error: ");
                // SAFETY: this thread is reading the file, so it is still mapped, and its registration owns the name.
                say(unsafe { std::slice::from_raw_parts(name, len) });
                say(b": cannot be read any more: another process truncated the file, or its disk failed; ");
                say(b"do not modify a model while it is in use, and run the command again\n");
                // SAFETY: async-signal-safe; nothing of this process runs afterwards.
                unsafe { libc::_exit(CODE.load(Relaxed)) }
            }
        }
        // Not a mapped file: restore the previous action and let the access fault again.
        match BEFORE.get() {
            // SAFETY: the action was returned by `sigaction`.
            Some(before) => unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) },
            None => {
                // SAFETY: installs the default action, which ends the process.
                unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
                0
            }
        };
    }

    fn say(text: &[u8]) {
        // SAFETY: async-signal-safe, and the bytes are valid. Write errors are ignored.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}
