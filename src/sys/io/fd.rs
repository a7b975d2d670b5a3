//! Descriptors that arrive as numbers, from Python or from the shell; and a barrier across a fork.

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A close-on-exec copy, numbered 3 or above, of a descriptor with another owner.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes integers; a closed descriptor is an error that is returned.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fcntl has just created this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Takes ownership of an open descriptor by its number and makes it close-on-exec.
pub fn take(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD takes integers; a closed descriptor is an error that is returned.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and a process that passes a descriptor by its number gives up ownership.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor that its owner keeps open for `'a`; `None` for a negative number.
pub fn borrow<'a>(fd: RawFd) -> Option<BorrowedFd<'a>> {
    // SAFETY: callers use only descriptors that are passed to them for the duration of a call. If the owner closed one too
    // early, calls on it would fail with EBADF or act on another file.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Takes an advisory lock on a file (flock(2)), shared or exclusive. The lock ends when the last copy of the descriptor is
/// closed, at the latest when the process ends. If another process has a conflicting lock, the error is `WouldBlock`.
pub fn try_lock(file: impl AsFd, is_shared: bool) -> io::Result<()> {
    let kind = if is_shared { libc::LOCK_SH } else { libc::LOCK_EX };
    // SAFETY: flock takes integers, and the descriptor is open for the duration of the call.
    Errno::result(unsafe { libc::flock(file.as_fd().as_raw_fd(), kind | libc::LOCK_NB) })?;
    Ok(())
}

/// A barrier between two processes of which one forked the other: `pass` blocks until `open`.
pub struct ForkGate(EventFd);

impl ForkGate {
    /// A closed gate.
    pub fn new() -> io::Result<Self> {
        Ok(Self(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?))
    }

    /// Lets one process pass.
    pub fn open(&self) -> io::Result<()> {
        self.0.write(1)?;
        Ok(())
    }

    /// Waits until it is open.
    pub fn pass(&self) -> io::Result<()> {
        loop {
            match self.0.read() {
                Err(Errno::EINTR) => {}
                other => return Ok(other.map(drop)?),
            }
        }
    }
}
