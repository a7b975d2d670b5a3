//! One connection of a server: what has arrived and what waits to be sent. It never blocks.

use super::outbox::{Outbox, OutputChunk};
use super::socket::Socket;
use nix::errno::Errno;
use std::io;
use std::io::{ErrorKind, Read};
use std::time::Duration;

/// Memory of the kernel and of the tables for a connection, roughly.
const COST: usize = 512;

/// What a protocol keeps of a connection: its parser, and what the client has declared.
pub trait ConnectionState {
    /// Bytes that several connections are sent. Clones share them.
    type Shared: AsRef<[u8]>;

    /// Takes received bytes.
    fn feed(&mut self, bytes: &[u8]);

    /// Memory that it holds, in bytes.
    fn held(&self) -> usize;

    /// Whether the next request may be handled while `backlog` bytes wait to be sent. If not, nothing is read either.
    fn may_handle(&self, backlog: usize) -> bool;

    /// Whether the client waits for an answer, while `backlog` bytes wait to be sent: then the connection is not closed to make room
    /// for another one, nor because the client sends nothing more.
    fn awaits_answer(&self, _backlog: usize) -> bool {
        false
    }

    /// Bytes that may wait to be sent. A connection with more of them is closed.
    fn max_backlog(&self) -> usize {
        usize::MAX
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The service had let it close once everything was sent.
    ByService,
    /// The client closed it or broke the protocol, or this server had no room for it.
    Closed,
    /// It was reset, or the network did not carry it any more. Where a process ends, its kernel closes its connections instead, unless it had not read all of what
    /// had arrived.
    Reset,
}

/// A connection.
pub struct Connection<S: ConnectionState> {
    /// What the protocol keeps of it.
    pub state: S,
    pub(super) socket: Socket,
    pub(super) outbox: Outbox<S::Shared>,
    /// What the memory budget has counted for it.
    pub(super) counted: usize,
    /// What epoll waits for: to read, to write.
    pub(super) interest: (bool, bool),
    /// Requests may have arrived that wait until fewer bytes wait to be sent.
    pub(super) is_deferred: bool,
    pub(super) is_closing: bool,
    /// The client sends nothing more.
    has_ended_input: bool,
    is_reset: bool,
    pub(super) deadline: Duration,
}

impl<S: ConnectionState> Connection<S> {
    pub(super) fn new(socket: Socket, state: S) -> Self {
        Self {
            state,
            socket,
            outbox: Outbox::default(),
            counted: 0,
            interest: (true, false),
            is_deferred: false,
            is_closing: false,
            has_ended_input: false,
            is_reset: false,
            deadline: Duration::MAX,
        }
    }

    /// Sends these bytes after those that wait.
    pub fn push(&mut self, bytes: Vec<u8>) {
        self.outbox.push(OutputChunk::Own(bytes));
    }

    /// The same with bytes that are stored, or sent on other connections as well.
    pub fn push_shared(&mut self, bytes: S::Shared) {
        self.outbox.push(OutputChunk::Shared(bytes));
    }

    /// Bytes that wait to be sent.
    pub fn backlog(&self) -> usize {
        self.outbox.backlog()
    }

    /// Sends a chunk after those that wait.
    pub fn push_chunk(&mut self, chunk: OutputChunk<S::Shared>) {
        self.outbox.push(chunk);
    }

    /// Handles no more requests, and closes the connection when everything is sent.
    pub fn close_when_sent(&mut self) {
        self.is_closing = true;
    }

    /// When the connection times out; `Duration::MAX`: never.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Reads once, and returns the number of bytes. `None`: no more will arrive.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Option<usize> {
        match self.socket.read(buffer) {
            Ok(0) => {
                self.has_ended_input = true;
                None
            }
            Ok(count) => {
                if !self.is_closing {
                    self.state.feed(&buffer[..count]);
                }
                Some(count)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Some(0),
            Err(error) => {
                self.note_error(&error);
                self.outbox.break_off();
                None
            }
        }
    }

    fn note_error(&mut self, error: &io::Error) {
        use Errno::{ECONNRESET, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT};
        // After the client has closed the connection, a reset is EPIPE (tcp_reset in Linux's net/ipv4/tcp_input.c).
        let errno = error.raw_os_error().map(Errno::from_raw);
        self.is_reset |= matches!(errno, Some(ECONNRESET | EHOSTUNREACH | ENETUNREACH | ETIMEDOUT));
    }

    /// How it has ended.
    pub(super) fn end(&self) -> ConnectionEnd {
        match (self.is_closing, self.is_reset) {
            (true, _) => ConnectionEnd::ByService,
            (false, true) => ConnectionEnd::Reset,
            (false, false) => ConnectionEnd::Closed,
        }
    }

    /// Writes what the socket takes, and returns the number of bytes.
    pub(super) fn write(&mut self) -> usize {
        let (written, error) = self.outbox.write_to(&mut self.socket);
        if let Some(error) = error {
            self.note_error(&error);
        }
        written
    }

    /// What it waits for: to read, to write. A deferred connection has another turn as soon as it can be written to.
    pub(super) fn wanted_interest(&self) -> (bool, bool) {
        (!self.is_deferred && !self.has_ended_input, !self.outbox.is_empty() || self.is_deferred)
    }

    /// Whether the client waits for an answer that it can receive.
    pub(super) fn awaits_answer(&self) -> bool {
        !self.outbox.is_broken() && self.state.awaits_answer(self.outbox.backlog())
    }

    /// Whether it is to be closed: everything is sent, or far too much waits.
    pub(super) fn is_done(&self) -> bool {
        self.is_closing && self.outbox.is_empty()
            || self.has_ended_input && !self.awaits_answer()
            || self.outbox.backlog() > self.state.max_backlog()
    }

    /// Memory that is held for it alone, in bytes.
    pub(super) fn held(&self) -> usize {
        COST + self.state.held() + self.outbox.held()
    }
}
