//! The listening sockets of a server, and the pause of accepting while there is no room for another connection.

use super::socket::{Listener, Socket};
use crate::net::listen::BACKLOG;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

/// How long no connection is accepted after there was no room for one.
const PAUSE: Duration = Duration::from_millis(100);

/// What came of an attempt to accept.
pub(super) enum Accepted {
    Socket(Socket),
    /// No connection waits.
    Nothing,
    /// The connection has closed already; others may wait.
    Aborted,
    /// The system has no descriptors or memory left: accepting again at once would fail again.
    Exhausted,
}

pub(super) struct Acceptor {
    listeners: Vec<Listener>,
    /// One that the service has added. It belongs to the table of descriptors of the server's thread.
    added: Option<Listener>,
    /// The first listener's epoll token; the others follow.
    first_token: u64,
    paused_until: Option<Duration>,
}

impl Acceptor {
    pub(super) fn new(listeners: Vec<Listener>, first_token: u64, epoll: &Epoll) -> io::Result<Self> {
        for (token, listener) in (first_token..).zip(&listeners) {
            listener.set_nonblocking()?;
            epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        }
        Ok(Self { listeners, added: None, first_token, paused_until: None })
    }

    /// Accepts connections of this socket too, in place of the one that was added before.
    pub(super) fn add(&mut self, listener: Listener, epoll: &Epoll) -> io::Result<()> {
        listener.set_nonblocking()?;
        let token = self.first_token + self.listeners.len() as u64;
        // Closed first, which takes it out of the epoll set (epoll(7)).
        self.added = None;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        self.added = Some(listener);
        Ok(())
    }

    /// Closes the socket that was added.
    pub(super) fn close_added(&mut self) {
        self.added = None;
    }

    fn all(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().chain(&self.added)
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.listeners.iter().map(|listener| listener.as_fd().as_raw_fd())
    }

    /// Accepts a connection of the listener with this token.
    pub(super) fn accept(&self, token: u64) -> Accepted {
        let Some(listener) = self.all().nth((token - self.first_token) as usize) else { return Accepted::Nothing };
        match listener.accept() {
            Ok(socket) => Accepted::Socket(socket),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAGAIN) => Accepted::Nothing,
                Some(Errno::ECONNABORTED | Errno::EINTR) => Accepted::Aborted,
                _ => Accepted::Exhausted,
            },
        }
    }

    pub(super) fn paused_until(&self) -> Option<Duration> {
        self.paused_until
    }

    /// Accepts no connection for a moment. New ones wait in the kernel.
    pub(super) fn pause(&mut self, epoll: &Epoll, now: Duration) {
        self.listen_for(epoll, EpollFlags::empty());
        self.paused_until = Some(now + PAUSE);
    }

    pub(super) fn resume(&mut self, epoll: &Epoll) {
        if self.paused_until.take().is_some() {
            self.listen_for(epoll, EpollFlags::EPOLLIN);
        }
    }

    fn listen_for(&self, epoll: &Epoll, events: EpollFlags) {
        for (token, listener) in (self.first_token..).zip(self.all()) {
            let _ = epoll.modify(listener, &mut EpollEvent::new(events, token));
        }
    }

    /// Closes the connections that wait to be accepted.
    pub(super) fn reject_waiting(&self) -> io::Result<()> {
        for listener in self.all() {
            // The kernel lets one more wait than its limit says.
            for _ in 0..=BACKLOG {
                match listener.accept() {
                    Ok(_) => {}
                    Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                        Some(Errno::EAGAIN) => break,
                        Some(Errno::ECONNABORTED | Errno::EINTR) => {}
                        _ => return Err(error),
                    },
                }
            }
        }
        Ok(())
    }
}
