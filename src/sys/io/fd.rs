//! Descriptors: those that arrive as numbers, from Python or from the shell; new ones, which are never 0, 1 or 2; and a barrier
//! across a fork.

use crate::sys::denied_calls::is_denial;
use crate::sys::random;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A close-on-exec copy, numbered 3 or above, of a descriptor with another owner.
pub fn duplicate(fd: impl AsFd) -> nix::Result<OwnedFd> {
    duplicate_number(fd.as_fd().as_raw_fd())
}

/// As `duplicate`, of a descriptor that Python code has: Python can only pass its number. `EBADF` if it is closed. The caller is
/// attached to the interpreter, so that no Python code closes it meanwhile.
pub fn duplicate_number(number: RawFd) -> nix::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes integers; a closed descriptor is an error that is returned.
    let copy = Errno::result(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: fcntl has just created this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// As `duplicate_number`, but a standard descriptor is `EBADF`: after it was closed, other code may have been given its number.
pub fn duplicate_number_above_stdio(number: RawFd) -> nix::Result<OwnedFd> {
    if number > 2 { duplicate_number(number) } else { Err(Errno::EBADF) }
}

/// Gives a new descriptor (close-on-exec) a number above 2. If the host program runs with closed standard descriptors, the
/// kernel hands out their numbers; the host or a library may then write to the descriptor as to stderr, and a child's own
/// stderr would replace it.
pub fn above_stdio(fd: OwnedFd) -> nix::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 { Ok(fd) } else { duplicate(fd) }
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

/// Shared memory (memfd_create(2)), close-on-exec, empty. Where a sandbox denies the call, an unlinked file, of whose name `name` is the
/// beginning; its length cannot be sealed. `name` has no `/`.
pub fn memory(name: &str) -> io::Result<OwnedFd> {
    match memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING) {
        Err(errno) if is_denial(errno as i32) => unlinked_file(name).map_err(|_| errno.into()),
        made => Ok(above_stdio(made?)?),
    }
}

/// Whether a link in /proc/PID/fd leads to memory of this name.
pub fn is_memory(target: &Path, name: &str) -> bool {
    target == Path::new(&format!("/memfd:{name} (deleted)")) || is_unlinked_file(target, &format!("{name}{UNLINKED}"))
}

/// Whether it leads to a file in place of memory, whose name begins so.
pub fn is_unlinked_file(target: &Path, start: &str) -> bool {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(" (deleted)").is_some_and(|name| name.starts_with(start) && name.contains(UNLINKED))
}

/// What ends the name of an `unlinked_file`, before random letters.
pub const UNLINKED: char = '~';

/// A file that has no name any more, in memory if possible.
fn unlinked_file(name: &str) -> io::Result<OwnedFd> {
    let folders = [PathBuf::from("/dev/shm"), std::env::temp_dir(), PathBuf::from("/tmp")];
    let make = |folder: &Path| {
        let path = folder.join(format!("{name}{UNLINKED}{}", random::alphanumeric(12)));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        fs::remove_file(&path)?;
        Ok(above_stdio(file.into())?)
    };
    let mut made = Err(io::ErrorKind::NotFound.into());
    for folder in folders {
        made = make(&folder);
        if made.is_ok() {
            break;
        }
    }
    made
}

/// Takes ownership of a descriptor that another process passed by its number, and makes it close-on-exec. `EBADF` for a
/// standard descriptor, and for one that is close-on-exec: it was not inherited through an exec or received in a packet, so it
/// has an owner in this process.
pub fn take_inherited(fd: RawFd) -> nix::Result<OwnedFd> {
    // SAFETY: F_GETFD takes an integer; a closed descriptor is an error that is returned.
    let flags = Errno::result(unsafe { libc::fcntl(fd, libc::F_GETFD) })?;
    if fd <= 2 || flags & libc::FD_CLOEXEC != 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: F_SETFD takes integers.
    Errno::result(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open. Rust and Python open their descriptors close-on-exec, so it has no other owner; taking it has set the
    // flag, so it is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `EBADF` if no descriptor has this number.
pub fn check_open(number: RawFd) -> nix::Result<()> {
    // SAFETY: F_GETFD takes an integer; a closed descriptor is an error that is returned.
    Errno::result(unsafe { libc::fcntl(number, libc::F_GETFD) }).map(drop)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    #[test]
    fn only_an_open_descriptor_is_duplicated() {
        let (read, _write) = pipe(OFlag::empty()).unwrap();
        for copy in [duplicate_number(read.as_raw_fd()), duplicate_number_above_stdio(read.as_raw_fd())] {
            let copy = copy.unwrap();
            assert!(copy.as_raw_fd() > 2 && copy.as_raw_fd() != read.as_raw_fd());
            let flags = nix::fcntl::fcntl(&copy, nix::fcntl::FcntlArg::F_GETFD).unwrap();
            assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
            assert_eq!(nix::sys::stat::fstat(&copy).unwrap().st_ino, nix::sys::stat::fstat(&read).unwrap().st_ino);
        }
        // No test opens so many that it could have this number.
        for closed in [-1, 1_000_000] {
            assert_eq!(duplicate_number(closed).unwrap_err(), Errno::EBADF, "{closed}");
            assert_eq!(duplicate_number_above_stdio(closed).unwrap_err(), Errno::EBADF, "{closed}");
        }
        for standard in 0..3 {
            assert_eq!(duplicate_number_above_stdio(standard).unwrap_err(), Errno::EBADF);
        }
    }

    #[test]
    fn a_file_takes_the_place_of_memory() {
        use std::os::unix::fs::FileExt;
        let file = fs::File::from(unlinked_file("rlaunch-test").unwrap());
        file.write_all_at(b"text", 0).unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert!(is_memory(&link, "rlaunch-test") && is_unlinked_file(&link, "rlaunch-"), "{link:?}");
        assert!(!is_memory(&link, "rlaunch-tes") && !is_memory(Path::new("/tmp/rlaunch-test~a"), "rlaunch-test"));
        let memory = memory("rlaunch-test").unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap();
        assert!(is_memory(&link, "rlaunch-test"));
        assert_eq!(fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap(), b"text");
    }

    #[test]
    fn only_an_inherited_descriptor_is_taken_and_once() {
        let (read, _write) = pipe(OFlag::empty()).unwrap();
        let number = read.as_raw_fd();
        assert_eq!(take_inherited(number).unwrap_err(), Errno::EBADF, "it has an owner");
        // As it arrives through an exec.
        let inherited = nix::unistd::dup(&read).unwrap();
        let number = std::os::fd::IntoRawFd::into_raw_fd(inherited);
        let taken = take_inherited(number).unwrap();
        assert_eq!(take_inherited(number).unwrap_err(), Errno::EBADF, "it has been taken");
        drop(taken);
        for standard in 0..3 {
            assert_eq!(take_inherited(standard).unwrap_err(), Errno::EBADF);
        }
    }
}
