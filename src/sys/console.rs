//! The terminal, pipe or file that people watch: opened privately, so that non-blocking mode is ours
//! alone (O_NONBLOCK on a shared description would break the shell's own writes).

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::{Mode, SFlag, fstat};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// How bytes get out without ever blocking us.
#[derive(Debug)]
enum Way {
    /// Our own description, non-blocking.
    Private,
    /// A regular file: never blocks, and a second description would have its own offset.
    File,
    /// A socket, which cannot be reopened: MSG_DONTWAIT.
    Socket,
    /// May not be reopened (a terminal of another user): ask poll first, write little.
    Polled,
}

/// An output that takes what it can.
#[derive(Debug)]
pub struct Console {
    fd: OwnedFd,
    way: Way,
}

// Pipes that poll as writable take this much without blocking (pipe(7), PIPE_BUF).
const PIPE_BUF: usize = 4096;

impl Console {
    /// Opens the console behind one of our descriptors (1 or 2). Fails if it is closed.
    pub fn open(fd: RawFd) -> io::Result<Self> {
        let copy = super::fd::duplicate(fd)?;
        let kind = SFlag::from_bits_truncate(fstat(&copy)?.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFREG {
            return Ok(Self { fd: copy, way: Way::File });
        }
        if kind == SFlag::S_IFSOCK {
            return Ok(Self { fd: copy, way: Way::Socket });
        }
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        match nix::fcntl::open(path.as_str(), flags, Mode::empty()) {
            Ok(own) => Ok(Self { fd: own, way: Way::Private }),
            Err(_) => Ok(Self { fd: copy, way: Way::Polled }),
        }
    }

    /// A file of ours instead of a console.
    pub fn file(file: std::fs::File) -> Self {
        Self { fd: file.into(), way: Way::File }
    }

    /// Writes as much as goes without waiting; 0 when nothing goes now. An error means that nobody
    /// will ever read it again (the reader is gone, the disk is full).
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.way {
            Way::Private | Way::File => nix::unistd::write(&self.fd, bytes),
            Way::Socket => send(self.fd.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL),
            Way::Polled => {
                let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
                match poll(&mut fds, PollTimeout::ZERO) {
                    Ok(0) => Err(Errno::EAGAIN),
                    Ok(_) => nix::unistd::write(&self.fd, &bytes[..bytes.len().min(PIPE_BUF)]),
                    Err(error) => Err(error),
                }
            }
        };
        match written {
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
            other => Ok(other?),
        }
    }
}

impl Console {
    /// Writes all of it, waiting `patience` at most each time nothing goes. Whether all of it went; an
    /// output that nobody reads is no error.
    pub fn write_all(&self, mut bytes: &[u8], patience: Duration) -> bool {
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        while !bytes.is_empty() {
            match self.write(bytes) {
                Ok(0) => {
                    let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
                    if poll(&mut fds, timeout) == Ok(0) {
                        return false;
                    }
                }
                Ok(written) => bytes = &bytes[written..],
                Err(_) => return false,
            }
        }
        true
    }

    /// Whether it is a terminal.
    pub fn is_terminal(&self) -> bool {
        nix::unistd::isatty(&self.fd).unwrap_or(false)
    }

    /// Whether this is the very file that is open as `file`.
    pub fn is(&self, file: impl AsFd) -> bool {
        match (fstat(&self.fd), fstat(file)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        }
    }
}

/// Puts /dev/null in the place of standard descriptors that are closed (`>&-`): else the next file that
/// is opened, a signal pipe say, would be taken for one.
pub fn fill_standard_descriptors() {
    while let Ok(fd) = nix::fcntl::open("/dev/null", OFlag::O_RDWR, Mode::empty()) {
        if fd.as_raw_fd() > 2 {
            return;
        }
        // It stays open, as descriptor 0, 1 or 2.
        let _ = fd.into_raw_fd();
    }
}

impl AsFd for Console {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
