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

/// Holds the handlers. Signals that were ignored before (nohup, `cmd &` in a script) stay ignored.
pub struct Signals {
    read: OwnedFd,
    _write: OwnedFd,
    old: Vec<(i32, libc::sigaction)>,
}

impl Signals {
    /// Installs the handlers.
    pub fn install() -> io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        PIPE.store(write.as_raw_fd(), Ordering::Relaxed);
        let mut old = Vec::new();
        for signal in STOP.into_iter().chain(NOTIFY) {
            let mut before = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: a null new action only reads the old one into `before`; then the new action is
            // a zeroed struct with a handler that is async-signal-safe.
            unsafe {
                if libc::sigaction(signal, ptr::null(), before.as_mut_ptr()) != 0 {
                    continue;
                }
                let before = before.assume_init();
                if before.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
                action.sa_flags = libc::SA_RESTART;
                if libc::sigaction(signal, &action, ptr::null_mut()) == 0 {
                    old.push((signal, before));
                }
            }
        }
        Ok(Self { read, _write: write, old })
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
