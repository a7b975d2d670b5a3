//! Signals of the launcher: handlers that write the number to a pipe, so that the one loop sees them
//! as events. The old actions come back when the guard is dropped.

use nix::fcntl::OFlag;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Signals that ask the job to stop.
pub const STOP: [i32; 5] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGABRT];
/// Signals that are passed on to the ranks and never stop the job.
pub const NOTIFY: [i32; 2] = [libc::SIGUSR1, libc::SIGUSR2];

/// Held back in a launcher that `rlaunch.launch` starts, until it has its handlers: Python's own would end
/// it with a traceback.
pub const HELD_AT_START: [i32; 2] = [libc::SIGINT, libc::SIGTERM];
/// Held back in such a launcher's front for good: it is in the background, and may write to a terminal with
/// `tostop` only while it blocks this (termios(3)).
pub const HELD_IN_FRONT: [i32; 1] = [libc::SIGTTOU];

static PIPE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(signal: libc::c_int) {
    let fd = PIPE.load(Ordering::Relaxed);
    let byte = signal as u8;
    // SAFETY: write(2) is async-signal-safe; `byte` lives across the call; errno is put back. A full
    // pipe drops the byte, and a full pipe already holds plenty of news.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(fd, ptr::from_ref(&byte).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?)
}

/// What the handler is installed with.
fn handled() -> libc::sigaction {
    // SAFETY: sigaction is plain data, for which all zeroes is a value: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    action
}

/// Holds the handlers. Signals that were ignored before (nohup, `cmd &` in a script) stay ignored.
pub struct Signals {
    read: OwnedFd,
    _write: OwnedFd,
    old: Vec<(i32, libc::sigaction)>,
}

impl Signals {
    /// Installs the handlers of `STOP` and `NOTIFY`.
    pub fn install() -> io::Result<Self> {
        let (read, write) = pipe()?;
        PIPE.store(write.as_raw_fd(), Ordering::Relaxed);
        let mut signals = Self { read, _write: write, old: Vec::new() };
        for signal in STOP.into_iter().chain(NOTIFY) {
            signals.also(signal);
        }
        Ok(signals)
    }

    /// Handles one more signal, unless it was ignored before. SIGCHLD is handled all the same: while it
    /// is ignored, the status of children is lost (waitpid(2)).
    pub fn also(&mut self, signal: i32) {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a null new action only reads the old one into `before`, which is plain data; the new
        // action has a handler that is async-signal-safe.
        unsafe {
            if libc::sigaction(signal, ptr::null(), before.as_mut_ptr()) != 0 {
                return;
            }
            let before = before.assume_init();
            let handler = before.sa_sigaction;
            let keep = handler == libc::SIG_IGN && signal != libc::SIGCHLD;
            if !keep && handler != handled().sa_sigaction && libc::sigaction(signal, &handled(), ptr::null_mut()) == 0 {
                self.old.push((signal, before));
            }
        }
    }

    /// For a process that was forked off the one which installed the handlers: a pipe of its own.
    pub fn renew(&mut self) -> io::Result<()> {
        let (read, write) = pipe()?;
        PIPE.store(write.as_raw_fd(), Ordering::Relaxed);
        (self.read, self._write) = (read, write);
        Ok(())
    }

    /// The signals that have come since the last call, in order.
    pub fn drain(&self) -> Vec<i32> {
        let mut seen = Vec::new();
        let mut buffer = [0u8; 64];
        while let Ok(n) = nix::unistd::read(&self.read, &mut buffer) {
            if n == 0 {
                break;
            }
            seen.extend(buffer[..n].iter().map(|&b| i32::from(b)));
        }
        seen
    }

    /// Does what SIGTSTP does by default: stops this process until somebody continues it. Returns at once
    /// where nobody could (an orphaned process group, in which the kernel drops it: setpgid(2)).
    pub fn stop_self(&self) {
        // SAFETY: plain data and integers; the handler in place before is put back.
        unsafe {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGTSTP, &default, ptr::null_mut());
            libc::raise(libc::SIGTSTP);
            libc::sigaction(libc::SIGTSTP, &handled(), ptr::null_mut());
        }
    }
}

/// Lets signals through that a process was started with held back.
pub fn let_through(signals: &[i32]) {
    // SAFETY: the set is plain data of ours.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
    }
}

/// Keeps all signals waiting for as long as it lives.
pub struct Held(libc::sigset_t);

/// Lets signals wait.
pub fn hold() -> Held {
    // SAFETY: both sets are plain data of ours that outlive the calls.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        Held(before)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the set is what pthread_sigmask gave us.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, action) in &self.old {
            // SAFETY: `action` is what sigaction gave us for this very signal.
            unsafe { libc::sigaction(*signal, action, ptr::null_mut()) };
        }
        PIPE.store(-1, Ordering::Relaxed);
    }
}
