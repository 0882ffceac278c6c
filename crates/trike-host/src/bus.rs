//! A sentence where a mapped file cannot be read any more.
//!
//! The system then sends SIGBUS to the thread that reads, and a program that does nothing about it is killed without a word. The
//! handler looks the address up among the mapped files, writes which one it was, and exits. Other signals of this kind, such as
//! those of a stack that overflows, go to the handler that was there before.

use std::{
    path::Path,
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Mapped files that the handler knows: those of a model in a thousand shards. It does not know more.
const SLOTS: usize = 1024;
/// A slot that is being filled.
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

/// The entry of a mapped file, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    slot: Option<usize>,
    /// Read by the handler.
    _name: Box<[u8]>,
}

impl Watched {
    /// Enters the memory of a file.
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

/// From now on, a mapped file that cannot be read, because another process truncated it or its disk failed, ends the process with
/// a sentence on stderr and this exit code, and not with a signal. For programs, not for libraries: it is a matter of the whole
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
    /// The action that was there before.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    pub(super) fn install(code: u8) {
        CODE.store(i32::from(code), Relaxed);
        BEFORE.get_or_init(|| {
            // SAFETY: integers and an optional pointer to a function, for which zeros are values.
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
        // SAFETY: every SIGBUS of an access has an address; that of another process has 0, which no file is at.
        let address = unsafe { info.si_addr() }.addr();
        for slot in &MAPPED {
            let start = slot.start.load(Acquire);
            if start > super::RESERVED && (start..slot.end.load(Relaxed)).contains(&address) {
                let (name, len) = (slot.name.load(Relaxed), slot.name_len.load(Relaxed));
                say(b"error: ");
                // SAFETY: the thread that is here reads the file, so it is mapped, and its entry owns the name.
                say(unsafe { std::slice::from_raw_parts(name, len) });
                say(b": cannot be read any more: another process truncated the file, or its disk failed; ");
                say(b"keep a model as it is while it is used, and run the command again\n");
                // SAFETY: allowed in a handler; nothing of this process runs afterwards.
                unsafe { libc::_exit(CODE.load(Relaxed)) }
            }
        }
        // Not a mapped file: the access is repeated under the action that was there before.
        match BEFORE.get() {
            // SAFETY: an action that the system returned.
            Some(before) => unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) },
            None => {
                // SAFETY: the default action, which ends the process.
                unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
                0
            }
        };
    }

    fn say(text: &[u8]) {
        // SAFETY: allowed in a handler; the bytes are valid. What cannot be written is lost.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}
