//! A handler of SIGTERM that ignores it until a time which another process sets in shared memory.

use crate::sys::clock;
use crate::sys::io::shared_words::SharedWords;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The memory with the time. Never freed: the handler may run at any moment, also in forks of this process.
static WORDS: AtomicPtr<SharedWords> = AtomicPtr::new(ptr::null_mut());
static INDEX: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_term(signal: libc::c_int) {
    // SAFETY: the pointer is null or that of memory which is never freed.
    let words = unsafe { WORDS.load(Ordering::SeqCst).as_ref() };
    let at = words.map_or(0, |words| words.get(INDEX.load(Ordering::SeqCst)));
    if words.is_none() || at != 0 && clock::now().as_micros() >= u128::from(at) {
        // SAFETY: both calls are async-signal-safe (signal-safety(7)). The signal is blocked until this handler returns.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// Until the word at `index`, which is below the count, has a time that is over (microseconds of `clock::now`; 0: none), this process
/// and its forks ignore SIGTERM. Then SIGTERM ends them as by default, also while they are blocked in C code. Does nothing if SIGTERM
/// has a handler or is ignored.
pub fn install(words: SharedWords, index: usize) -> io::Result<()> {
    // SAFETY: sigaction is plain data, for which all zeroes is a valid value.
    let (mut old, mut new): (libc::sigaction, libc::sigaction) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: `old` is a local value that outlives the call.
    if unsafe { libc::sigaction(libc::SIGTERM, ptr::null(), &mut old) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if old.sa_sigaction != libc::SIG_DFL {
        return Ok(());
    }
    INDEX.store(index, Ordering::SeqCst);
    WORDS.store(Box::into_raw(Box::new(words)), Ordering::SeqCst);
    new.sa_sigaction = on_term as *const () as libc::sighandler_t;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler makes async-signal-safe calls only; `new` outlives the call.
    if unsafe { libc::sigaction(libc::SIGTERM, &new, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
