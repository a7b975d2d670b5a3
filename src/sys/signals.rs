//! Signal handling of the launcher: handlers write the signal number to a pipe, which the event loop reads. Dropping
//! `Signals` restores the previous actions.

use nix::fcntl::OFlag;
use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Signals that ask the job to stop.
pub const STOP: [i32; 5] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGABRT];
/// Signals that are forwarded to the ranks and do not stop the job.
pub const NOTIFY: [i32; 2] = [libc::SIGUSR1, libc::SIGUSR2];

/// Blocked in a launcher that `rlaunch.launch` starts, until its handlers are installed: Python's own handlers would end it
/// with a traceback, and a notice for the ranks would kill it.
pub const BLOCKED_AT_START: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];
/// Blocked for good in the launcher process of such a launcher: it runs in the background, and may write to a terminal with
/// `tostop` only while this signal is blocked (termios(3)).
pub const BLOCKED_IN_LAUNCHER: [i32; 1] = [libc::SIGTTOU];

static PIPE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(signal: libc::c_int) {
    let fd = PIPE.load(Ordering::Relaxed);
    let byte = signal as u8;
    // SAFETY: write(2) is async-signal-safe; `byte` outlives the call; errno is restored. If the pipe is full the byte is
    // dropped, and the loop has many others to read.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(fd, ptr::from_ref(&byte).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

/// A pipe that the handlers write to.
pub struct SignalPipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl SignalPipe {
    /// One that the handlers do not use yet.
    pub fn new() -> io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok(Self { read, write })
    }
}

/// The action with our handler.
fn handled() -> libc::sigaction {
    // SAFETY: sigaction is plain data, for which all zeroes is a valid value: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    action
}

/// The installed handlers. Signals that were ignored before (nohup, `cmd &` in a script) stay ignored.
pub struct Signals {
    pipe: SignalPipe,
    /// Signals that `peek` has read.
    ahead: RefCell<Vec<i32>>,
    old: Vec<(i32, libc::sigaction)>,
    ignored: Vec<i32>,
}

impl Signals {
    /// Installs the handlers of `STOP` and `NOTIFY`.
    pub fn install() -> io::Result<Self> {
        let pipe = SignalPipe::new()?;
        PIPE.store(pipe.write.as_raw_fd(), Ordering::Relaxed);
        let mut signals = Self { pipe, ahead: RefCell::default(), old: Vec::new(), ignored: Vec::new() };
        for signal in STOP.into_iter().chain(NOTIFY) {
            signals.install_one(signal);
        }
        Ok(signals)
    }

    /// A pipe that no handler writes to, and the end to write to.
    #[cfg(test)]
    pub fn stub() -> io::Result<(Self, OwnedFd)> {
        let pipe = SignalPipe::new()?;
        let write = pipe.write.try_clone()?;
        Ok((Self { pipe, ahead: RefCell::default(), old: Vec::new(), ignored: Vec::new() }, write))
    }

    /// Installs the handler of one more signal, unless it was ignored before. SIGCHLD is always handled: while it is
    /// ignored, the exit status of children is lost (waitpid(2)). Returns false if it was handled or ignored.
    pub fn install_one(&mut self, signal: i32) -> bool {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a null new action only reads the old one into `before`, which is plain data; the handler of the new action
        // is async-signal-safe.
        unsafe {
            if libc::sigaction(signal, ptr::null(), before.as_mut_ptr()) != 0 {
                return false;
            }
            let before = before.assume_init();
            let handler = before.sa_sigaction;
            let keep = handler == libc::SIG_IGN && signal != libc::SIGCHLD;
            self.ignored.extend(keep.then_some(signal));
            let installed =
                !keep && handler != handled().sa_sigaction && libc::sigaction(signal, &handled(), ptr::null_mut()) == 0;
            if installed {
                self.old.push((signal, before));
            }
            installed
        }
    }

    /// Whether a signal has no handler because it was ignored before.
    pub fn is_ignored(&self, signal: i32) -> bool {
        self.ignored.contains(&signal)
    }

    /// Uses another pipe, in a process that was forked from the one that installed the handlers.
    pub fn replace_pipe(&mut self, pipe: SignalPipe) {
        PIPE.store(pipe.write.as_raw_fd(), Ordering::Relaxed);
        self.pipe = pipe;
    }

    /// The signals that arrived since the last call, in order.
    pub fn drain(&self) -> Vec<i32> {
        self.read_ahead();
        self.ahead.take()
    }

    /// Whether one of the signals that the next `drain` returns is such a signal.
    pub fn peek(&self, is_wanted: impl Fn(&i32) -> bool) -> bool {
        self.read_ahead();
        self.ahead.borrow().iter().any(is_wanted)
    }

    /// Whether `drain` returns signals although the pipe may be empty.
    pub fn has_read_ahead(&self) -> bool {
        !self.ahead.borrow().is_empty()
    }

    fn read_ahead(&self) {
        let mut buffer = [0u8; 64];
        while let Ok(n @ 1..) = nix::unistd::read(&self.pipe.read, &mut buffer) {
            self.ahead.borrow_mut().extend(buffer[..n].iter().map(|&b| i32::from(b)));
        }
    }

    /// Performs the default action of SIGTSTP: stops this process until it is continued. Returns at once in an orphaned
    /// process group, in which the kernel discards the signal (setpgid(2)).
    pub fn stop_self(&self) {
        // SAFETY: plain data and integers; our handler is installed again.
        unsafe {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGTSTP, &default, ptr::null_mut());
            libc::raise(libc::SIGTSTP);
            libc::sigaction(libc::SIGTSTP, &handled(), ptr::null_mut());
        }
    }
}

/// Wakes the event loop of this process, from any thread, by a signal that means nothing else to it.
pub fn wake() {
    // SAFETY: kill and getpid on integers.
    unsafe { libc::kill(libc::getpid(), libc::SIGCHLD) };
}

/// Unblocks signals with which this process was started blocked.
pub fn unblock(signals: &[i32]) {
    // SAFETY: `set` is local plain data.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
    }
}

/// Keeps all signals blocked until it is dropped.
pub struct BlockedSignals(libc::sigset_t);

/// Blocks all signals in this thread.
pub fn block_all() -> BlockedSignals {
    // SAFETY: both sets are local plain data that outlive the calls.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        BlockedSignals(before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set comes from pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.read.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, action) in &self.old {
            // SAFETY: `action` comes from sigaction for the same signal.
            unsafe { libc::sigaction(*signal, action, ptr::null_mut()) };
        }
        // Not that of other handlers.
        let _ = PIPE.compare_exchange(self.pipe.write.as_raw_fd(), -1, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_was_read_ahead_is_returned_once() -> io::Result<()> {
        let signals = Signals::install()?;
        let is_stop_waiting = || signals.peek(|signal| STOP.contains(signal));
        // SAFETY: the handler is installed.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert!(!is_stop_waiting() && signals.has_read_ahead(), "a signal that is forwarded");
        // SAFETY: the same.
        unsafe { libc::raise(libc::SIGTERM) };
        assert!(is_stop_waiting() && is_stop_waiting());
        // SAFETY: the same.
        unsafe { libc::raise(libc::SIGUSR2) };
        assert_eq!(signals.drain(), [libc::SIGUSR1, libc::SIGTERM, libc::SIGUSR2]);
        assert!(!is_stop_waiting() && !signals.has_read_ahead());
        assert_eq!(signals.drain(), Vec::<i32>::new());
        Ok(())
    }
}
