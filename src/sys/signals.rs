//! Signal handling of the launcher: handlers write the signal and its time to a pipe, which the event loop reads. Dropping
//! `Signals` restores the previous actions.

use crate::sys::clock;
use nix::fcntl::OFlag;
use nix::unistd::{getpgrp, tcgetpgrp};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

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

/// Signals that did not fit into the pipe, a bit for each. The kernel too keeps one of each while a process does not take them.
static OVERFLOW: AtomicU64 = AtomicU64::new(0);

/// A signal that a process has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// The signal.
    pub signal: i32,
    /// When its handler ran (`clock::now`), however late the event loop reads it.
    pub at: Duration,
}

/// Bytes of a signal in a pipe. Writes of up to PIPE_BUF bytes are atomic (pipe(7)), so a read of a multiple returns whole signals.
const RECORD: usize = 16;

impl ReceivedSignal {
    /// As it is written to a pipe.
    pub fn to_bytes(self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&i64::from(self.signal).to_ne_bytes());
        bytes[8..].copy_from_slice(&(self.at.as_nanos() as u64).to_ne_bytes());
        bytes
    }

    /// Reads what has been written to a nonblocking pipe. The second value is false once the pipe has no writer any more.
    pub fn read_all(pipe: impl AsFd) -> (Vec<Self>, bool) {
        let (mut received, mut buffer) = (Vec::new(), [0; 64 * RECORD]);
        loop {
            match nix::unistd::read(&pipe, &mut buffer) {
                Ok(0) => return (received, false),
                Ok(read) => received.extend(buffer[..read].chunks_exact(RECORD).map(Self::from_bytes)),
                Err(_) => return (received, true),
            }
        }
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let number = |range: std::ops::Range<usize>| bytes[range].try_into().map_or(0, u64::from_ne_bytes);
        Self { signal: number(0..8) as i32, at: Duration::from_nanos(number(8..RECORD)) }
    }
}

extern "C" fn on_signal(signal: libc::c_int) {
    let fd = PIPE.load(Ordering::Relaxed);
    // SAFETY: clock_gettime(2) and write(2) are async-signal-safe; `record` outlives the call; errno is restored.
    unsafe {
        let errno = *libc::__errno_location();
        let record = ReceivedSignal { signal, at: clock::now() }.to_bytes();
        // A pipe that is full is readable, so the loop looks. Signal 0 only wakes.
        if libc::write(fd, record.as_ptr().cast(), record.len()) < 0 && signal > 0 {
            OVERFLOW.fetch_or(1 << (signal - 1), Ordering::Relaxed);
        }
        *libc::__errno_location() = errno;
    }
}

/// The action of a signal.
fn action_of(signal: i32) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only reads the old one into `action`, which is plain data.
    unsafe { (libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init()) }
}

fn is_ignored(signal: i32) -> bool {
    action_of(signal).is_some_and(|action| action.sa_sigaction == libc::SIG_IGN)
}

/// Whether Ctrl-C in the terminal reaches this process. A shell without job control ignores SIGINT in `command &`, but leaves it in
/// the group of its script: if SIGHUP is not ignored as well (nohup), Ctrl-C is meant for the command too.
fn is_in_foreground() -> bool {
    let terminal = File::options().read(true).custom_flags(libc::O_NOCTTY).open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
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
    old: Vec<(i32, libc::sigaction)>,
    ignored: Vec<i32>,
}

impl Signals {
    /// Installs the handlers of `STOP` and `NOTIFY`.
    pub fn install() -> io::Result<Self> {
        let pipe = SignalPipe::new()?;
        PIPE.store(pipe.write.as_raw_fd(), Ordering::Relaxed);
        let mut signals = Self { pipe, old: Vec::new(), ignored: Vec::new() };
        // `trap '' INT` ignores SIGINT alone, nohup SIGHUP too.
        let is_of_shell = is_ignored(libc::SIGINT) && is_ignored(libc::SIGQUIT) && !is_ignored(libc::SIGHUP);
        let is_background_job = is_of_shell && is_in_foreground();
        for signal in STOP.into_iter().chain(NOTIFY) {
            signals.install_unless(signal, !(signal == libc::SIGINT && is_background_job));
        }
        Ok(signals)
    }

    /// A pipe that no handler writes to, and the end to write to.
    #[cfg(test)]
    pub fn stub() -> io::Result<(Self, OwnedFd)> {
        let pipe = SignalPipe::new()?;
        let write = pipe.write.try_clone()?;
        Ok((Self { pipe, old: Vec::new(), ignored: Vec::new() }, write))
    }

    /// Installs the handler of one more signal, unless it was ignored before, and unblocks it: a parent may have blocked it (Ray does
    /// so). SIGCHLD is always handled: while it is ignored, the exit status of children is lost (waitpid(2)). Returns false if it was
    /// handled or ignored.
    pub fn install_one(&mut self, signal: i32) -> bool {
        self.install_unless(signal, signal != libc::SIGCHLD)
    }

    /// The same. `if_ignored`: whether an ignored signal stays so.
    fn install_unless(&mut self, signal: i32, if_ignored: bool) -> bool {
        let Some(before) = action_of(signal) else { return false };
        let keep = if_ignored && before.sa_sigaction == libc::SIG_IGN;
        self.ignored.extend(keep.then_some(signal));
        let is_new = !keep && before.sa_sigaction != handled().sa_sigaction;
        // SAFETY: the handler of the new action is async-signal-safe.
        let installed = is_new && unsafe { libc::sigaction(signal, &handled(), ptr::null_mut()) } == 0;
        if installed {
            self.old.push((signal, before));
            unblock(&[signal]);
        }
        installed
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

    /// The signals that arrived since the last call, in order. Signal 0: `wake`. In the supervisor process only its inbox may call it
    /// (`run/signal_inbox.rs`), which forgets none.
    pub fn drain(&self) -> Vec<ReceivedSignal> {
        let mut received = ReceivedSignal::read_all(&self.pipe.read).0;
        if PIPE.load(Ordering::Relaxed) != self.pipe.write.as_raw_fd() {
            return received;
        }
        let (overflow, at) = (OVERFLOW.swap(0, Ordering::Relaxed), clock::now());
        received.extend(
            (1..=64).filter(|signal| overflow >> (signal - 1) & 1 == 1).map(|signal| ReceivedSignal { signal, at }),
        );
        received
    }
}

/// SIGTSTP, blocked, so that it stays pending until this process stops by it. A SIGCONT that comes before discards it (signal(7)): with
/// a handler, the process would stop after it, for good.
pub struct HeldStop(OwnedFd);

impl HeldStop {
    /// Blocks the signal in this thread; `None` if it is ignored.
    pub fn new() -> io::Result<Option<Self>> {
        if is_ignored(libc::SIGTSTP) {
            return Ok(None);
        }
        let set = set_of(&[libc::SIGTSTP]);
        // SAFETY: the set is a local value; the descriptor is new and has no other owner.
        let fd = unsafe {
            match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        block(&[libc::SIGTSTP]);
        Ok(Some(Self(fd)))
    }

    /// Lets the default action stop this process until it is continued. Returns at once if the signal is not pending any more, and in
    /// an orphaned process group, in which the kernel discards it (setpgid(2)).
    pub fn stop_self(&self) {
        unblock(&[libc::SIGTSTP]);
        block(&[libc::SIGTSTP]);
    }
}

impl AsFd for HeldStop {
    /// Readable while the signal is pending (signalfd(2)).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Wakes the event loop of this process, from any thread that has `wake_descriptor`. No signal: those of the process may be blocked.
pub fn wake() {
    on_signal(0);
}

/// The descriptor that `wake` writes to, for threads with a table of descriptors of their own.
pub fn wake_descriptor() -> RawFd {
    PIPE.load(Ordering::Relaxed)
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: `set` is local plain data; an invalid signal number is an error without effect.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        set
    }
}

/// Unblocks signals with which this process was started blocked.
pub fn unblock(signals: &[i32]) {
    // SAFETY: the set is a local value.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set_of(signals), ptr::null_mut()) };
}

fn block(signals: &[i32]) {
    // SAFETY: the set is a local value.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set_of(signals), ptr::null_mut()) };
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
    fn signals_are_read_in_order_with_the_times_of_their_handlers() -> io::Result<()> {
        let signals = Signals::install()?;
        let before = clock::now();
        // SAFETY: the handlers are installed.
        unsafe { (libc::raise(libc::SIGUSR1), libc::raise(libc::SIGTERM)) };
        wake();
        let received = signals.drain();
        assert_eq!(received.iter().map(|one| one.signal).collect::<Vec<_>>(), [libc::SIGUSR1, libc::SIGTERM, 0]);
        assert!(
            received.is_sorted_by_key(|one| one.at)
                && received.iter().all(|one| one.at >= before && one.at <= clock::now())
        );
        assert_eq!(signals.drain(), []);

        // SAFETY: the same. The pipe holds some thousands.
        (0..20_000).for_each(|_| unsafe { _ = libc::raise(libc::SIGUSR1) });
        // SAFETY: the same.
        unsafe { libc::raise(libc::SIGTERM) };
        let received = signals.drain();
        assert!(received.len() < 20_000);
        assert_eq!(received.last().map(|one| one.signal), Some(libc::SIGTERM), "a stop is never lost");
        Ok(())
    }
}
