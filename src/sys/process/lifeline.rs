//! The lifeline: a pipe whose write end only the launcher holds. Each rank has a read end of its own. When the write end
//! closes, for any reason (`_exit`, SIGKILL, the OOM killer), the kernel sends SIGKILL to the rank or its process group
//! (fcntl(2), F_SETOWN and F_SETSIG). Unlike PR_SET_PDEATHSIG, it does not depend on the thread that started the rank.

use crate::sys::io::fd;
use nix::fcntl::OFlag;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

// fcntl(2); the libc crate does not define it for every target.
const F_SETSIG: i32 = 10;

/// What the kernel kills when the launcher is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillScope {
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
        let (read, write) = fd::pipe(OFlag::O_NONBLOCK)?;
        Ok(Self { read, write: AtomicI32::new(write.into_raw_fd()) })
    }

    /// Opens a read end with an open file description of its own, so that F_SETOWN of one rank does not overwrite that of
    /// another. Close-on-exec until the child clears the flag.
    pub fn open_end(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.read.as_raw_fd());
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        Ok(fd::above_stdio(nix::fcntl::open(path.as_str(), flags, nix::sys::stat::Mode::empty())?)?)
    }

    /// Closes the write end: on drop, and in a process that was forked from this one without an exec, whose copy would keep
    /// the ranks alive after the launcher's death.
    pub fn close_write_end(&self) {
        let fd = self.write.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor comes from pipe2, has no other owner, and is closed only here.
            unsafe { libc::close(fd) };
        }
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.close_write_end();
    }
}

/// Arms a read end for this process. See `arm_raw`.
pub fn arm(fd: RawFd) -> io::Result<()> {
    match arm_raw(fd, KillScope::Process) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Arms a read end in the process that has to die with the launcher. Returns 0 or an errno. Makes only async-signal-safe
/// calls, because it runs between clone and exec.
pub fn arm_raw(fd: RawFd, scope: KillScope) -> i32 {
    // SAFETY: getpid and fcntl on integers; no memory is passed.
    unsafe {
        let pid = libc::getpid();
        let owner = match scope {
            KillScope::Process => pid,
            KillScope::Group => -libc::getpgrp(),
        };
        if libc::fcntl(fd, libc::F_SETOWN, owner) < 0
            || libc::fcntl(fd, F_SETSIG, libc::SIGKILL) < 0
            || libc::fcntl(fd, libc::F_SETFL, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_ASYNC) < 0
        {
            return *libc::__errno_location();
        }
        // If the write end closed before O_ASYNC was set, the kernel sends no signal.
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        if libc::poll(&mut poll, 1, 0) > 0 && poll.revents & libc::POLLHUP != 0 {
            libc::kill(owner, libc::SIGKILL);
        }
    }
    0
}
