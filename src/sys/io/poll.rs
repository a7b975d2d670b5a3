//! epoll(7).

use crate::sys::io::fd::above_stdio;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

/// A set of descriptors to wait on, each with a token that the caller chooses.
#[derive(Debug)]
pub struct Poller(Epoll);

impl Poller {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        let Epoll(fd) = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self(Epoll(above_stdio(fd)?)))
    }

    /// Waits for `fd` to become readable (or to hang up).
    pub fn readable(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
    }

    /// Waits for more bytes on `fd`, which another thread reads; each arrival wakes one wait (EPOLLET).
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

    /// Waits until a descriptor is ready, for up to `timeout` (`None`: no limit), or until a signal handler has run. Consumes
    /// no event, so any number of threads may wait.
    pub fn ready(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout =
            timeout.map_or(PollTimeout::NONE, |t| PollTimeout::try_from(millis(t)).unwrap_or(PollTimeout::MAX));
        let mut fds = [PollFd::new(self.0.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits like `ready`, and for descriptors that other code owns; returns the indices of those that are readable or have hung
    /// up. Consumes the events of the set. `EBADF` if one is closed; negative numbers are ignored.
    pub fn ready_beside(&self, numbers: &[RawFd], timeout: Option<Duration>) -> io::Result<Vec<usize>> {
        let wanted = |&fd: &RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds: Vec<libc::pollfd> = numbers.iter().chain([&self.0.0.as_raw_fd()]).map(wanted).collect();
        let timeout = timeout.map_or(-1, millis);
        // SAFETY: the array outlives the call. poll(2) neither changes the descriptors nor keeps them.
        match Errno::result(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) }) {
            Err(Errno::EINTR) => return Ok(Vec::new()),
            polled => polled?,
        };
        if fds.pop().is_some_and(|own| own.revents != 0) {
            self.wait(Some(Duration::ZERO))?;
        }
        if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
            return Err(Errno::EBADF.into());
        }
        Ok(fds.iter().enumerate().filter(|(_, fd)| fd.revents != 0).map(|(index, _)| index).collect())
    }

    /// Waits until descriptors are ready, for up to `timeout` (`None`: no limit), and returns their tokens. Empty after the
    /// timeout, or when a signal handler has run.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<u64>> {
        let timeout =
            timeout.map_or(EpollTimeout::NONE, |t| EpollTimeout::try_from(millis(t)).unwrap_or(EpollTimeout::MAX));
        let mut events = [EpollEvent::empty(); 64];
        match self.0.wait(&mut events, timeout) {
            Ok(n) => Ok(events[..n].iter().map(EpollEvent::data).collect()),
            Err(Errno::EINTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Milliseconds, rounded up, because waking too early would spin; at most 24 days.
fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
}
