//! A client of torch's TCPStore, for the launcher's own use. It blocks, for no longer than its caller allows.

use super::frame::{MAX_VALUE, StoreRequest, greeting};
use crate::net::deadline::TimeLeft;
use crate::net::tcp;
use crate::sys::random;
use nix::poll::PollFlags;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The first and the longest pause between two attempts to connect. Each pause is half as long again as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How long a server may take to confirm that it has cancelled a wait.
const CANCEL: Duration = Duration::from_secs(5);

const WAIT_CANCELED: u8 = 1;

/// A connection to a store. After an error other than `TimedOut` of a wait it cannot be used any more.
#[derive(Debug)]
pub struct StoreClient {
    socket: TcpStream,
}

/// A key as torch's PrefixStore over a TCPStore sends it.
pub fn wire_key(prefix: &str, key: &str) -> Vec<u8> {
    format!("/{prefix}/{key}").into_bytes()
}

impl StoreClient {
    /// Connects and greets, and tries again until that works or no time is left. The pauses are random, half as long to half as
    /// long again, so that many nodes do not connect at once.
    pub fn connect(host: &str, port: u16, left: TimeLeft<'_>) -> io::Result<Self> {
        let mut pause = FIRST_PAUSE;
        loop {
            let failure = match tcp::connect(host, port, left) {
                Ok(socket) => match (Self { socket }).greet(left) {
                    Ok(client) => return Ok(client),
                    Err(error) if error.kind() == ErrorKind::InvalidData => return Err(error),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            tcp::pause(pause.mul_f64(0.5 + random::rng().f64()), left)?;
            // The reason of the last failure says more than that no time is left.
            if left()?.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, format!("{host}:{port}: {failure}")));
            }
            pause = pause.mul_f64(1.5).min(LONGEST_PAUSE);
        }
    }

    /// Sends the greeting, and checks that a store answers.
    fn greet(mut self, left: TimeLeft<'_>) -> io::Result<Self> {
        let nonce = random::rng().u32(..);
        self.send_bytes(&greeting(), left)?;
        self.send(&StoreRequest::Ping(nonce), left)?;
        match self.read(left)? == nonce.to_le_bytes() {
            true => Ok(self),
            false => Err(io::Error::new(ErrorKind::InvalidData, "the server there is not a torch store")),
        }
    }

    /// This machine's address towards the store.
    pub fn local_address(&self) -> io::Result<IpAddr> {
        Ok(self.socket.local_addr()?.ip())
    }

    /// Sets a key.
    pub fn set(&mut self, key: &[u8], value: &[u8], left: TimeLeft<'_>) -> io::Result<()> {
        self.send(&StoreRequest::Set { key: key.to_vec(), value: value.to_vec() }, left)
    }

    /// Sets a key if it does not exist. Returns its value.
    pub fn set_if_missing(&mut self, key: &[u8], value: &[u8], left: TimeLeft<'_>) -> io::Result<Vec<u8>> {
        let (key, desired) = (key.to_vec(), value.to_vec());
        self.send(&StoreRequest::CompareSet { key, expected: Vec::new(), desired }, left)?;
        self.read_value(left)
    }

    /// Waits for a key, and returns its value.
    pub fn get(&mut self, key: &[u8], left: TimeLeft<'_>) -> io::Result<Vec<u8>> {
        self.wait(&[key], left)?;
        self.get_present(key, left)
    }

    /// The value of a key that is there. Another key may end the connection.
    pub fn get_present(&mut self, key: &[u8], left: TimeLeft<'_>) -> io::Result<Vec<u8>> {
        self.send(&StoreRequest::Get(key.to_vec()), left)?;
        self.read_value(left)
    }

    fn read_value(&mut self, left: TimeLeft<'_>) -> io::Result<Vec<u8>> {
        let length = u64::from_le_bytes(self.read(left)?);
        if length > MAX_VALUE as u64 {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("a value of {length} bytes is too long")));
        }
        let mut value = vec![0; length as usize];
        tcp::read_exact(&self.socket, &mut value, left)?;
        Ok(value)
    }

    /// Adds to the number at a key, and returns the sum.
    pub fn add(&mut self, key: &[u8], amount: i64, left: TimeLeft<'_>) -> io::Result<i64> {
        self.send(&StoreRequest::Add { key: key.to_vec(), amount }, left)?;
        Ok(i64::from_le_bytes(self.read(left)?))
    }

    /// Deletes a key, if it exists.
    pub fn delete(&mut self, key: &[u8], left: TimeLeft<'_>) -> io::Result<()> {
        self.send(&StoreRequest::Delete(key.to_vec()), left)?;
        self.read::<8>(left).map(drop)
    }

    /// Whether all keys exist.
    pub fn check(&mut self, keys: &[&[u8]], left: TimeLeft<'_>) -> io::Result<bool> {
        self.send(&StoreRequest::Check(to_owned_keys(keys)), left)?;
        Ok(self.read::<1>(left)? == [0])
    }

    /// Waits until all keys exist. After `TimedOut` or an error of `left` the connection can still be used.
    pub fn wait(&mut self, keys: &[&[u8]], left: TimeLeft<'_>) -> io::Result<()> {
        self.send(&StoreRequest::Wait(to_owned_keys(keys)), left)?;
        let ended = match tcp::wait(self.socket.as_fd(), PollFlags::POLLIN, left) {
            Ok(()) => return self.read::<1>(left).map(drop),
            Err(error) => error,
        };
        let mut slices = CANCEL.as_millis() / tcp::SLICE.as_millis();
        let mut left = || {
            slices = slices.saturating_sub(1);
            Ok(tcp::SLICE * slices.min(1) as u32)
        };
        self.send(&StoreRequest::CancelWait, &mut left)?;
        match self.read::<1>(&mut left)? {
            [WAIT_CANCELED] => Err(ended),
            // The keys were set just before the wait was cancelled.
            _ => self.read::<1>(&mut left).map(drop),
        }
    }

    /// Begins a wait: the connection becomes readable when the key exists, and then `end_wait` is due.
    pub fn begin_wait(&mut self, key: &[u8], left: TimeLeft<'_>) -> io::Result<()> {
        self.send(&StoreRequest::Wait(vec![key.to_vec()]), left)
    }

    /// Ends a wait whose connection has become readable; an error if the store is gone.
    pub fn end_wait(&mut self, left: TimeLeft<'_>) -> io::Result<()> {
        self.read::<1>(left).map(drop)
    }

    fn send(&mut self, request: &StoreRequest, left: TimeLeft<'_>) -> io::Result<()> {
        self.send_bytes(&request.encode(), left)
    }

    fn send_bytes(&mut self, bytes: &[u8], left: TimeLeft<'_>) -> io::Result<()> {
        tcp::write_all(&self.socket, bytes, left)
    }

    fn read<const N: usize>(&mut self, left: TimeLeft<'_>) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        tcp::read_exact(&self.socket, &mut bytes, left)?;
        Ok(bytes)
    }
}

impl AsFd for StoreClient {
    /// Readable while no request is open: the store has closed the connection.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn to_owned_keys(keys: &[&[u8]]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.to_vec()).collect()
}
