//! Non-blocking writes to the console: a terminal, pipe or file. It is opened again, because O_NONBLOCK on the shared open
//! file description would break the writes of the shell.

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::{Mode, SFlag, fstat};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How to write without blocking.
#[derive(Debug)]
enum WriteMode {
    /// An open file description of our own, non-blocking.
    Private,
    /// A regular file: never blocks, and a second description would have its own offset.
    File,
    /// A socket, which cannot be reopened: MSG_DONTWAIT.
    Socket,
    /// Cannot be reopened (a terminal of another user): poll first, then write at most PIPE_BUF bytes.
    Polled,
}

/// Whether a rank at a terminal has left it in the middle of a line, such as a progress bar. Other text begins a new line.
pub static MID_LINE: AtomicBool = AtomicBool::new(false);

/// An output that accepts as much as it can without blocking.
#[derive(Debug)]
pub struct Console {
    fd: OwnedFd,
    mode: WriteMode,
}

// A pipe that polls as writable accepts this many bytes without blocking (pipe(7), PIPE_BUF).
const PIPE_BUF: usize = 4096;

impl Console {
    /// Opens the console behind one of our descriptors (1 or 2). Fails if it is closed.
    pub fn open(fd: impl AsFd) -> io::Result<Self> {
        let copy = crate::sys::io::fd::duplicate(fd)?;
        let kind = SFlag::from_bits_truncate(fstat(&copy)?.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFREG {
            return Ok(Self { fd: copy, mode: WriteMode::File });
        }
        if kind == SFlag::S_IFSOCK {
            return Ok(Self { fd: copy, mode: WriteMode::Socket });
        }
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        match nix::fcntl::open(path.as_str(), flags, Mode::empty()) {
            Ok(own) => Ok(Self { fd: own, mode: WriteMode::Private }),
            Err(_) => Ok(Self { fd: copy, mode: WriteMode::Polled }),
        }
    }

    /// A file instead of a console.
    pub fn file(file: std::fs::File) -> Self {
        Self { fd: file.into(), mode: WriteMode::File }
    }

    /// Writes as much as possible without waiting; returns 0 if nothing can be written now. An error is permanent: the reader
    /// is gone, or the disk is full.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.mode {
            WriteMode::Private | WriteMode::File => nix::unistd::write(&self.fd, bytes),
            WriteMode::Socket => send(self.fd.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL),
            WriteMode::Polled => {
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
    /// Writes all bytes, and waits up to `patience` each time that the output accepts none. Whether all bytes were written;
    /// an output without a reader is no error.
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

    /// Whether this is the same file as `file`.
    pub fn is(&self, file: impl AsFd) -> bool {
        match (fstat(&self.fd), fstat(file)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        }
    }
}

/// Opens /dev/null for standard descriptors that are closed (`>&-`): else the next opened file, such as a signal pipe, would
/// become stdout or stderr.
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
