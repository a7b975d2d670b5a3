//! epoll(7): one set, no tick.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// A set of descriptors to wait on, each with a token of the caller's.
#[derive(Debug)]
pub struct Poll(Epoll);

impl Poll {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    /// Waits for `fd` to become readable (or to hang up).
    pub fn readable(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
    }

    /// Is told once each time more arrives on `fd`, which somebody else reads.
    pub fn edge(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token))?)
    }

    /// Waits once for `fd` to become writable. `Ok(false)` if this kind of file is always ready.
    pub fn writable_once(&self, fd: impl AsFd, token: u64) -> io::Result<bool> {
        let mut event = EpollEvent::new(EpollFlags::EPOLLOUT | EpollFlags::EPOLLONESHOT, token);
        match self.0.add(&fd, event) {
            Err(Errno::EEXIST) => self.0.modify(&fd, &mut event)?,
            Err(Errno::EPERM) => return Ok(false),
            other => other?,
        }
        Ok(true)
    }

    /// Stops waiting for `fd`.
    pub fn forget(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(self.0.delete(fd)?)
    }

    /// Waits until something is ready, for `timeout` at most (`None`: for ever) or until a signal handler
    /// has run, and takes nothing: any number of threads may do so at once.
    pub fn ready(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map_or(PollTimeout::NONE, |t| PollTimeout::from(millis(t)));
        let mut fds = [PollFd::new(self.0.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until something is ready, for `timeout` at most (`None`: for ever), and returns the
    /// tokens. Empty on a timeout, after half a minute of a longer one, or when a signal handler ran.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<u64>> {
        let timeout = timeout.map_or(EpollTimeout::NONE, |t| EpollTimeout::from(millis(t)));
        let mut events = [EpollEvent::empty(); 64];
        match self.0.wait(&mut events, timeout) {
            Ok(n) => Ok(events[..n].iter().map(EpollEvent::data).collect()),
            Err(Errno::EINTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Milliseconds, rounded up (waking a moment early would spin), 32 s at most (waking early once in a
/// while does no harm).
fn millis(time: Duration) -> u16 {
    time.as_micros().div_ceil(1000).min(32_000) as u16
}
