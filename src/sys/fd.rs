//! Descriptors that come as bare numbers, from Python or from the shell; and a gate across a fork.

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A close-on-exec copy, numbered 3 or above, of a descriptor that somebody else owns.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes integers; a closed number is an error that we pass on.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fcntl has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Takes over an open descriptor of which nothing but the number is known; from now on it closes at exec.
pub fn take(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD takes integers; a closed number is an error that we pass on.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and whoever passed it to this process by its number gave it away.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor that its owner keeps open for `'a`; `None` for a negative number.
pub fn borrow<'a>(fd: RawFd) -> Option<BorrowedFd<'a>> {
    // SAFETY: a number that its owner closed too early makes the calls on it fail with EBADF, or act
    // on another file; the callers name no descriptor but those handed in for the time of their call.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Shut until another process, forked off this one or the other way round, opens it.
pub struct Gate(EventFd);

impl Gate {
    /// A shut gate.
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
