//! Descriptors: those that arrive as numbers, from Python or from the shell; new ones, which are never 0, 1 or 2; and a barrier
//! across a fork.

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A close-on-exec copy, numbered 3 or above, of a descriptor with another owner.
pub fn duplicate(fd: RawFd) -> nix::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes integers; a closed descriptor is an error that is returned.
    let copy = Errno::result(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: fcntl has just created this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Gives a new descriptor (close-on-exec) a number above 2. If the host program runs with closed standard descriptors, the
/// kernel hands out their numbers; the host or a library may then write to the descriptor as to stderr, and a child's own
/// stderr would replace it.
pub fn above_stdio(fd: OwnedFd) -> nix::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 { Ok(fd) } else { duplicate(fd.as_raw_fd()) }
}

/// A pipe, close-on-exec: its read end and its write end.
pub fn pipe(flags: OFlag) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | flags)?;
    Ok((above_stdio(read)?, above_stdio(write)?))
}

/// An eventfd, close-on-exec, at 0.
pub fn eventfd(flags: EfdFlags) -> io::Result<EventFd> {
    let fd = above_stdio(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | flags)?.into())?;
    // SAFETY: it is an eventfd, or a copy of one.
    Ok(unsafe { EventFd::from_owned_fd(fd) })
}

/// Shared memory (memfd_create(2)), close-on-exec.
pub fn memory(name: &str) -> io::Result<OwnedFd> {
    Ok(above_stdio(memfd_create(name, MFdFlags::MFD_CLOEXEC)?)?)
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
        Ok(Self(eventfd(EfdFlags::empty())?))
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
