//! The queue of bytes that wait to be sent on one connection.

use super::memory_budget::OVERHEAD;
use std::collections::VecDeque;
use std::io;
use std::io::{ErrorKind, IoSlice, Write};

/// Bytes that are sent at most before other connections have their turn.
const TURN: usize = 4 * 1024 * 1024;
/// Chunks that one system call sends at most.
const CHUNKS_AT_ONCE: usize = 32;

/// A run of bytes to be sent.
#[derive(Clone, Debug)]
pub enum OutputChunk<B> {
    /// For this connection alone.
    Own(Vec<u8>),
    /// Also stored, or sent on other connections.
    Shared(B),
}

impl<B: AsRef<[u8]>> OutputChunk<B> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes.as_ref(),
        }
    }

    /// Memory that this connection alone needs for it.
    fn held(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.capacity() + OVERHEAD,
            Self::Shared(_) => OVERHEAD,
        }
    }
}

/// The chunks that wait.
#[derive(Debug)]
pub(super) struct Outbox<B> {
    chunks: VecDeque<OutputChunk<B>>,
    /// Bytes of the first chunk that are sent.
    sent: usize,
    backlog: usize,
    held: usize,
    /// The other end does not receive any more.
    is_broken: bool,
}

impl<B> Default for Outbox<B> {
    fn default() -> Self {
        Self { chunks: VecDeque::new(), sent: 0, backlog: 0, held: 0, is_broken: false }
    }
}

impl<B: AsRef<[u8]>> Outbox<B> {
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Bytes that wait.
    pub(super) fn backlog(&self) -> usize {
        self.backlog
    }

    /// Memory that this connection alone needs for them.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn push(&mut self, chunk: OutputChunk<B>) {
        if !self.is_broken && !chunk.bytes().is_empty() {
            self.backlog += chunk.bytes().len();
            self.held += chunk.held();
            self.chunks.push_back(chunk);
        }
    }

    /// Drops everything that waits, and everything that is pushed from now on.
    pub(super) fn break_off(&mut self) {
        self.is_broken = true;
        self.chunks.clear();
        (self.sent, self.backlog, self.held) = (0, 0, 0);
    }

    /// Writes what the socket takes without blocking, but no more than a turn. Returns the number of bytes. If the other end does
    /// not receive any more, the outbox breaks off, with the error: requests that had arrived before are still handled.
    pub(super) fn write_to(&mut self, socket: &mut impl Write) -> (usize, Option<io::Error>) {
        let (mut total, mut failed) = (0, None);
        while !self.chunks.is_empty() && total < TURN {
            let mut slices = [IoSlice::new(&[]); CHUNKS_AT_ONCE];
            let mut count = 0;
            for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
                let bytes = chunk.bytes();
                *slice = IoSlice::new(if count == 0 { &bytes[self.sent..] } else { bytes });
                count += 1;
            }
            match socket.write_vectored(&slices[..count]) {
                Ok(0) => break,
                Ok(written) => {
                    total += written;
                    self.advance(written);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.break_off();
                    failed = Some(error);
                }
            }
        }
        (total, failed)
    }

    fn advance(&mut self, written: usize) {
        self.backlog -= written;
        self.sent += written;
        while let Some(first) = self.chunks.front() {
            let length = first.bytes().len();
            if self.sent < length {
                return;
            }
            self.sent -= length;
            self.held -= first.held();
            self.chunks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time.
    struct SlowSocket {
        received: Vec<u8>,
        steps: VecDeque<io::Result<usize>>,
    }

    impl Write for SlowSocket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = self.steps.pop_front().unwrap_or(Err(ErrorKind::WouldBlock.into()))?.min(bytes.len());
            self.received.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            self.write(&slices.iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn chunks_are_sent_in_order_whatever_the_socket_takes() {
        let mut outbox = Outbox::<&[u8]>::default();
        outbox.push(OutputChunk::Own(b"abc".to_vec()));
        outbox.push(OutputChunk::Own(Vec::new()));
        outbox.push(OutputChunk::Shared(b"defg"));
        let steps = VecDeque::from([Ok(2), Err(ErrorKind::Interrupted.into()), Ok(3)]);
        let mut socket = SlowSocket { received: Vec::new(), steps };
        assert_eq!((outbox.backlog(), outbox.write_to(&mut socket).0), (7, 5));
        assert_eq!((outbox.backlog(), outbox.held()), (2, OVERHEAD));
        socket.steps.push_back(Ok(9));
        assert_eq!(outbox.write_to(&mut socket).0, 2);
        assert_eq!((outbox.is_empty(), outbox.held(), socket.received.as_slice()), (true, 0, &b"abcdefg"[..]));
    }

    #[test]
    fn a_broken_connection_holds_nothing() {
        let mut outbox = Outbox::<&[u8]>::default();
        outbox.push(OutputChunk::Shared(b"abc"));
        let steps = VecDeque::from([Err(ErrorKind::ConnectionReset.into())]);
        let (written, error) = outbox.write_to(&mut SlowSocket { received: Vec::new(), steps });
        assert_eq!((written, error.is_some()), (0, true));
        outbox.push(OutputChunk::Shared(b"def"));
        assert_eq!((outbox.is_empty(), outbox.backlog(), outbox.held()), (true, 0, 0));
    }
}
