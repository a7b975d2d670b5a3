//! Non-blocking writes to the console: a terminal, pipe or file. It is opened again, because O_NONBLOCK on the shared open
//! file description would break the writes of the shell.

use crate::sys::clock;
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

/// What an output did with the bytes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It has accepted this many, one or more.
    Bytes(usize),
    /// It is full, and polls as writable once it is not.
    Full,
    /// It has accepted none, for a reason that may pass and that no poll shows, such as a full disk.
    Refused(Errno),
    /// Its reader is gone for good.
    Gone,
}

/// Time between two writes to an output that refuses them.
pub const RETRY: Duration = Duration::from_millis(200);

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

    /// Writes as much as possible without waiting. `bytes` is not empty.
    pub fn write(&self, bytes: &[u8]) -> Accepted {
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
            Ok(0) | Err(Errno::EAGAIN | Errno::EINTR) => Accepted::Full,
            Ok(written) => Accepted::Bytes(written),
            Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => Accepted::Gone,
            // A terminal that was hung up. Of a file it is an error of its disk.
            Err(Errno::EIO) if !matches!(self.mode, WriteMode::File) => Accepted::Gone,
            Err(error) => Accepted::Refused(error),
        }
    }

    /// Writes all bytes, and waits up to `patience` each time that the output accepts none. Returns how many it has accepted.
    pub fn write_all(&self, bytes: &[u8], patience: Duration) -> usize {
        let (mut written, mut until) = (0, clock::now().saturating_add(patience));
        while written < bytes.len() {
            let accepted = self.write(&bytes[written..]);
            let left = until.saturating_sub(clock::now());
            let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
            // An error of poll(2) is a signal: it is tried again at once.
            let _ = match accepted {
                Accepted::Bytes(more) => {
                    written += more;
                    until = clock::now().saturating_add(patience);
                    continue;
                }
                Accepted::Gone => break,
                _ if left.is_zero() => break,
                Accepted::Full => poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)),
                Accepted::Refused(_) => {
                    poll(&mut [], PollTimeout::try_from(left.min(RETRY)).unwrap_or(PollTimeout::MAX))
                }
            };
        }
        written
    }

    /// Whether it is a terminal.
    pub fn is_terminal(&self) -> bool {
        nix::unistd::isatty(&self.fd).unwrap_or(false)
    }

    /// Whether this is the same file as `file`.
    pub fn is(&self, file: impl AsFd) -> bool {
        is_same(&self.fd, file)
    }
}

/// What kind of output a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// A terminal, which may be hung up.
    Terminal,
    /// A pipe or a socket, whose reader may go.
    Pipe,
    /// A file or a device without a reader, or no open descriptor.
    Other,
}

impl OutputKind {
    /// The kind of a descriptor.
    pub fn of(fd: impl AsFd) -> Self {
        let Ok(found) = fstat(&fd) else { return Self::Other };
        let kind = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK {
            return Self::Pipe;
        }
        if nix::unistd::isatty(&fd).unwrap_or(false) { Self::Terminal } else { Self::Other }
    }
}

/// Whether two descriptors are the same file.
pub fn is_same(one: impl AsFd, other: impl AsFd) -> bool {
    match (fstat(one), fstat(other)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
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
