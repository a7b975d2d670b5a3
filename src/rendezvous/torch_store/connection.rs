//! One client's connection: what has come of it and what waits to be sent to it. It never blocks, and it never
//! takes more than a turn: requests are not looked at while much waits to be sent.

use super::frame::Parser;
use super::ledger::OVERHEAD;
use super::state::Piece;
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;

/// Bytes that are read at once.
pub const CHUNK: usize = 64 * 1024;
/// No request is looked at while as many bytes wait to be sent.
const BACKLOG: usize = 1024 * 1024;
/// Bytes that are sent at most before others have their turn.
const TURN: usize = 4 * 1024 * 1024;
/// What the kernel and the tables have for a connection, roughly.
const COST: usize = 512;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Non-blocking.
    pub socket: TcpStream,
    /// What has come.
    pub parser: Parser,
    /// Whether it has made a request.
    pub greeted: bool,
    /// Whether it has touched a watched key.
    pub watched: bool,
    /// What the ledger has counted for it.
    pub counted: usize,
    /// What epoll waits for now: to read, to write.
    pub interest: (bool, bool),
    outbox: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    sent: usize,
    backlog: usize,
    /// Bytes of the outbox that are nobody else's.
    own: usize,
    /// Requests may be left that have come and have not been looked at.
    unread: bool,
    /// It takes nothing any more; what it had sent before is still done.
    deaf: bool,
}

impl Connection {
    /// A new one. It is noticed within half a minute if the other machine is lost without a word.
    pub fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        setsockopt(&socket, sockopt::KeepAlive, &true)?;
        setsockopt(&socket, sockopt::TcpKeepIdle, &10)?;
        setsockopt(&socket, sockopt::TcpKeepInterval, &5)?;
        setsockopt(&socket, sockopt::TcpKeepCount, &4)?;
        Ok(Self {
            socket,
            parser: Parser::default(),
            greeted: false,
            watched: false,
            counted: 0,
            interest: (true, false),
            outbox: VecDeque::new(),
            sent: 0,
            backlog: 0,
            own: 0,
            unread: false,
            deaf: false,
        })
    }

    /// Takes in what has come, once. `Ok(false)`: nothing more will come.
    pub fn read(&mut self, chunk: &mut [u8]) -> io::Result<bool> {
        match self.socket.read(chunk) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.parser.feed(&chunk[..count]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Has a piece sent in its turn.
    pub fn push(&mut self, piece: Piece) {
        if self.deaf {
            return;
        }
        self.backlog += piece.bytes().len();
        self.own += own(&piece);
        self.outbox.push_back(piece);
    }

    /// Sends what the kernel takes.
    pub fn write(&mut self) {
        let mut turn = 0;
        while !self.outbox.is_empty() && turn < TURN {
            let mut slices = [IoSlice::new(&[]); 32];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.outbox) {
                let bytes = piece.bytes();
                *slice = IoSlice::new(if count == 0 { &bytes[self.sent..] } else { bytes });
                count += 1;
            }
            match self.socket.write_vectored(&slices[..count]) {
                Ok(written) => {
                    turn += written.max(1);
                    self.advance(written);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.deafen(),
            }
        }
    }

    fn advance(&mut self, written: usize) {
        self.backlog -= written;
        self.sent += written;
        while let Some(first) = self.outbox.front() {
            let length = first.bytes().len();
            if self.sent < length {
                return;
            }
            self.sent -= length;
            self.own -= own(first);
            self.outbox.pop_front();
        }
    }

    /// It takes nothing any more.
    pub fn deafen(&mut self) {
        self.deaf = true;
        self.outbox.clear();
        (self.sent, self.backlog, self.own) = (0, 0, 0);
    }

    /// Whether the next request may be looked at.
    pub fn may_go_on(&self) -> bool {
        self.backlog < BACKLOG
    }

    /// Remembers whether requests are left.
    pub fn leave_unread(&mut self, unread: bool) {
        self.unread = unread;
    }

    /// What it waits for: to read and to write. To write also means to have another turn.
    pub fn wants(&self) -> (bool, bool) {
        (!self.unread, !self.outbox.is_empty() || self.unread)
    }

    /// Bytes that are held for it alone.
    pub fn held(&self) -> usize {
        COST + self.parser.held() + self.own
    }
}

fn own(piece: &Piece) -> usize {
    match piece {
        Piece::Own(bytes) => bytes.capacity() + OVERHEAD,
        Piece::Shared(_) => OVERHEAD,
    }
}
