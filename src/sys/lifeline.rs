//! The lifeline: a pipe whose write end only the launcher holds. Each rank gets a read end of its
//! own, set so that the kernel sends SIGKILL to the rank (or its whole process group) when the last
//! write end closes, whatever closed it: `_exit`, SIGKILL, the OOM killer (fcntl(2), F_SETOWN and
//! F_SETSIG). Unlike PR_SET_PDEATHSIG it is not tied to the thread that started the rank.

use nix::fcntl::OFlag;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

// fcntl(2); not among the libc crate's constants for every target.
const F_SETSIG: i32 = 10;

/// Whom the kernel kills when the launcher is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The process that arms the lifeline.
    Process,
    /// Its whole process group.
    Group,
}

/// Both ends of the pipe, as the launcher holds them.
#[derive(Debug)]
pub struct Lifeline {
    read: OwnedFd,
    /// The write end's number, or -1 once it has been closed.
    write: AtomicI32,
}

impl Lifeline {
    /// A new pipe, both ends close-on-exec.
    pub fn new() -> io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok(Self { read, write: AtomicI32::new(write.into_raw_fd()) })
    }

    /// A read end with an open file description of its own, so that F_SETOWN of one rank does not
    /// overwrite that of another. Close-on-exec until the child clears it.
    pub fn open_end(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.read.as_raw_fd());
        Ok(nix::fcntl::open(
            path.as_str(),
            OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC,
            nix::sys::stat::Mode::empty(),
        )?)
    }

    /// Closes the write end, once: on drop, and in a process that was forked off this one without an
    /// exec, which would otherwise keep the ranks alive after the launcher's death.
    pub fn close_write_end(&self) {
        let fd = self.write.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor came from pipe2, is ours alone, and is closed only here.
            unsafe { libc::close(fd) };
        }
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.close_write_end();
    }
}

/// Arms a read end for this very process. See `arm_raw`.
pub fn arm(fd: RawFd) -> io::Result<()> {
    match arm_raw(fd, Scope::Process) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Arms a read end in the process that is to die with the launcher. Returns 0 or an errno. Only
/// async-signal-safe calls: it runs between clone and exec.
pub fn arm_raw(fd: RawFd, scope: Scope) -> i32 {
    // SAFETY: getpid and fcntl on integers; no memory is passed.
    unsafe {
        let pid = libc::getpid();
        let owner = match scope {
            Scope::Process => pid,
            Scope::Group => -libc::getpgrp(),
        };
        if libc::fcntl(fd, libc::F_SETOWN, owner) < 0
            || libc::fcntl(fd, F_SETSIG, libc::SIGKILL) < 0
            || libc::fcntl(fd, libc::F_SETFL, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_ASYNC) < 0
        {
            return *libc::__errno_location();
        }
        // The write end may have closed before O_ASYNC was set; then no signal will ever come.
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        if libc::poll(&mut poll, 1, 0) > 0 && poll.revents & libc::POLLHUP != 0 {
            libc::kill(owner, libc::SIGKILL);
        }
    }
    0
}
