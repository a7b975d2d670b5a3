//! The lifeline: a pipe for each rank, whose write end only the launcher holds and whose read end the rank. When the write
//! end closes, for any reason (`_exit`, SIGKILL, the OOM killer), the kernel sends SIGKILL to the rank or its process group
//! (fcntl(2), F_SETOWN and F_SETSIG). Unlike PR_SET_PDEATHSIG, it does not depend on the thread that started the rank.

use crate::sys::io::fd;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

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

/// The size of the pipe, which is only ever empty: pages that are not used count against the user's other pipes too
/// (pipe(7), pipe-user-pages-soft).
const PIPE_SIZE: i32 = 4096;

/// The write end. A process that is forked from this one without an exec has to drop its copies: they would keep the ranks
/// alive after the launcher's death.
#[derive(Debug)]
pub struct Lifeline(#[expect(dead_code, reason = "held open")] OwnedFd);

impl Lifeline {
    /// A new pipe and its read end, which the rank arms. Both are close-on-exec until the rank clears the flag of its end.
    pub fn open() -> io::Result<(Self, OwnedFd)> {
        let (read, write) = fd::pipe(OFlag::O_NONBLOCK)?;
        // If that is refused, the pipe is larger.
        let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(PIPE_SIZE));
        Ok((Self(write), read))
    }
}

/// Arms a read end for this process. See `arm_raw`.
pub fn arm(fd: BorrowedFd<'_>) -> io::Result<()> {
    match arm_raw(fd, KillScope::Process) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Arms a read end in the process that has to die with the launcher. Returns 0 or an errno. Makes only async-signal-safe
/// calls, because it runs between clone and exec.
pub fn arm_raw(fd: BorrowedFd<'_>, scope: KillScope) -> i32 {
    let fd = fd.as_raw_fd();
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
