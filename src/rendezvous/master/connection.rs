//! One connection to the master: what has come of it and what waits to be sent to it. It never blocks.

use super::frame::Lines;
use super::http;
use super::seal::Seal;
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are read at once.
pub const CHUNK: usize = 64 * 1024;
/// Who lets more than this wait has no use for it, bytes.
const BACKLOG: usize = 32 * 1024 * 1024;
/// What the kernel and the tables have for a connection, roughly.
const COST: usize = 512;
/// How many times as long as its text what is made of a record may be: an empty string of three bytes takes 24.
const KEPT: usize = 8;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Non-blocking.
    pub socket: TcpStream,
    /// What it speaks.
    pub speaks: Speaks,
    /// When it was accepted, made its last request or, in a link, last said anything.
    pub since: Duration,
    /// What the ledger has counted for it.
    pub counted: usize,
    /// What epoll waits for now: to read, to write.
    pub interest: (bool, bool),
    /// Nothing more is asked; it is closed when all is sent.
    pub ends: bool,
    outbox: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    sent: usize,
    backlog: usize,
    own: usize,
}

/// What a connection speaks.
#[derive(Debug)]
pub enum Speaks {
    /// Requests.
    Http(http::Parser),
    /// Our own language.
    Link {
        /// What has come.
        lines: Lines,
        /// What proves it.
        seal: Seal,
        /// Who it is, once it has said so.
        id: Option<String>,
        /// What is kept of what it has said of itself, bytes.
        kept: usize,
    },
}

#[derive(Debug)]
enum Piece {
    Own(Vec<u8>),
    Shared(Arc<[u8]>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }

    fn own(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.capacity(),
            Self::Shared(_) => 64,
        }
    }
}

impl Connection {
    /// A new one.
    pub fn new(socket: TcpStream, now: Duration) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        setsockopt(&socket, sockopt::KeepAlive, &true)?;
        Ok(Self {
            socket,
            speaks: Speaks::Http(http::Parser::of_requests()),
            since: now,
            counted: 0,
            interest: (true, false),
            ends: false,
            outbox: VecDeque::new(),
            sent: 0,
            backlog: 0,
            own: 0,
        })
    }

    /// Who it is, in a link.
    pub fn id(&self) -> Option<&str> {
        match &self.speaks {
            Speaks::Link { id, .. } => id.as_deref(),
            Speaks::Http(_) => None,
        }
    }

    /// A link has said of itself what has so many bytes.
    pub fn keep(&mut self, bytes: usize) {
        if let Speaks::Link { kept, .. } = &mut self.speaks {
            *kept = bytes * KEPT;
        }
    }

    /// What is kept of what it has said of itself, bytes.
    pub fn kept(&self) -> usize {
        match &self.speaks {
            Speaks::Link { kept, .. } => *kept,
            Speaks::Http(_) => 0,
        }
    }

    /// Takes in what has come, once; how much. `None`: nothing more will come.
    pub fn read(&mut self, chunk: &mut [u8]) -> Option<usize> {
        match self.socket.read(chunk) {
            Ok(0) => None,
            Ok(count) => {
                match &mut self.speaks {
                    _ if self.ends => {}
                    Speaks::Http(parser) => parser.feed(&chunk[..count]),
                    Speaks::Link { lines, .. } => lines.feed(&chunk[..count]),
                }
                Some(count)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Some(0),
            Err(_) => None,
        }
    }

    /// Has this sent.
    pub fn push(&mut self, bytes: Vec<u8>) {
        self.add(Piece::Own(bytes));
    }

    /// The same of what others are sent too.
    pub fn push_shared(&mut self, bytes: &Arc<[u8]>) {
        self.add(Piece::Shared(Arc::clone(bytes)));
    }

    fn add(&mut self, piece: Piece) {
        if !piece.bytes().is_empty() {
            self.backlog += piece.bytes().len();
            self.own += piece.own();
            self.outbox.push_back(piece);
        }
    }

    /// Sends what the kernel takes; how much. `None`: it takes nothing any more.
    pub fn write(&mut self) -> Option<usize> {
        let mut total = 0;
        while let Some(first) = self.outbox.front() {
            match self.socket.write(&first.bytes()[self.sent..]) {
                Ok(written) => {
                    total += written;
                    self.sent += written;
                    self.backlog -= written;
                    if self.sent == first.bytes().len() {
                        self.sent = 0;
                        self.own -= first.own();
                        self.outbox.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(total)
    }

    /// Whether all is sent.
    pub fn is_through(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Whether more waits to be sent than anybody who reads would let wait.
    pub fn is_stuck(&self) -> bool {
        self.backlog > BACKLOG && self.id().is_some()
    }

    /// What it waits for: to read and to write. The next request has to wait until the answer to the last is sent.
    pub fn wants(&self) -> (bool, bool) {
        (self.is_through() || matches!(self.speaks, Speaks::Link { .. }), !self.is_through())
    }

    /// Bytes that are held for it alone.
    pub fn held(&self) -> usize {
        let read = match &self.speaks {
            Speaks::Http(parser) => parser.held(),
            Speaks::Link { lines, kept, .. } => lines.held() + kept,
        };
        COST + read + self.own
    }
}
