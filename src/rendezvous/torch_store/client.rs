//! A client of a store, for the launcher's own use. It blocks, but never without asking its caller how long.

use super::frame::{MAX_VALUE, Request, greeting};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, setsockopt, socket, sockopt,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// Asked before each wait, and ten times a second in one, how long there is still time. An error ends the wait and is what the
/// call returns; no time left is `TimedOut`.
pub type Left<'a> = &'a mut dyn FnMut() -> io::Result<Duration>;

/// The longest time without asking.
const SLICE: Duration = Duration::from_millis(100);
/// The first pause between two tries to connect, and the longest; each is half as long again as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How long a server may take to say that a wait is given up.
const CANCEL: Duration = Duration::from_secs(5);

const WAIT_CANCELED: u8 = 1;

/// A connection to a store. After an error other than a wait's `TimedOut` it is of no use.
#[derive(Debug)]
pub struct Client {
    socket: TcpStream,
}

/// A key as torch's PrefixStore over a TCPStore puts it on the wire.
pub fn wire_key(prefix: &str, key: &str) -> Vec<u8> {
    format!("/{prefix}/{key}").into_bytes()
}

impl Client {
    /// Connects, again and again until it works or the time is over, and greets. The pauses are random, half as long to half as
    /// long again as they would be, so that many nodes do not come at once.
    pub fn connect(host: &str, port: u16, left: Left<'_>) -> io::Result<Self> {
        let mut pause = FIRST_PAUSE;
        loop {
            let failure = match Self::try_connect(host, port, left) {
                Ok(socket) => match (Self { socket }).greet(left) {
                    Ok(client) => return Ok(client),
                    Err(error) if error.kind() == ErrorKind::InvalidData => return Err(error),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let mut rest = pause.mul_f64(0.5 + fastrand::f64());
            while !rest.is_zero() {
                let slice = rest.min(left()?).min(SLICE);
                if slice.is_zero() {
                    break;
                }
                ready(None, PollFlags::empty(), slice)?;
                rest -= slice;
            }
            // It is said why it did not work, rather than that time is over.
            if left()?.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, format!("{host}:{port}: {failure}")));
            }
            pause = pause.mul_f64(1.5).min(LONGEST_PAUSE);
        }
    }

    /// Says who it is, and sees that a store is there.
    fn greet(mut self, left: Left<'_>) -> io::Result<Self> {
        let nonce = fastrand::u32(..);
        self.send(&greeting(), left)?;
        self.send(&Request::Ping(nonce).encode(), left)?;
        match self.take(left)? == nonce.to_le_bytes() {
            true => Ok(self),
            false => Err(io::Error::new(ErrorKind::InvalidData, "what is there is no store")),
        }
    }

    /// Connects once, to the first of the host's addresses that answers.
    pub(in crate::rendezvous) fn try_connect(host: &str, port: u16, left: Left<'_>) -> io::Result<TcpStream> {
        let mut failure = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in (host, port).to_socket_addrs()? {
            match Self::try_address(address, left) {
                Ok(socket) => return Ok(socket),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn try_address(address: SocketAddr, left: Left<'_>) -> io::Result<TcpStream> {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
        match connect(fd.as_raw_fd(), &SockaddrStorage::from(address)) {
            Err(Errno::EINPROGRESS) => {
                wait(fd.as_fd(), PollFlags::POLLOUT, left)?;
                match getsockopt(&fd, sockopt::SocketError)? {
                    0 => {}
                    error => return Err(io::Error::from_raw_os_error(error)),
                }
            }
            other => other?,
        }
        let socket = TcpStream::from(fd);
        socket.set_nodelay(true)?;
        // A machine that is lost without a word is noticed within half a minute.
        setsockopt(&socket, sockopt::KeepAlive, &true)?;
        setsockopt(&socket, sockopt::TcpKeepIdle, &10)?;
        setsockopt(&socket, sockopt::TcpKeepInterval, &5)?;
        setsockopt(&socket, sockopt::TcpKeepCount, &4)?;
        Ok(socket)
    }

    /// This machine's address towards the store.
    pub fn local_address(&self) -> io::Result<IpAddr> {
        Ok(self.socket.local_addr()?.ip())
    }

    /// Sets a key.
    pub fn set(&mut self, key: &[u8], value: &[u8], left: Left<'_>) -> io::Result<()> {
        self.send(&Request::Set { key: key.to_vec(), value: value.to_vec() }.encode(), left)
    }

    /// The value of a key, once it is there.
    pub fn get(&mut self, key: &[u8], left: Left<'_>) -> io::Result<Vec<u8>> {
        self.wait(&[key], left)?;
        self.send(&Request::Get(key.to_vec()).encode(), left)?;
        let length = u64::from_le_bytes(self.take(left)?);
        if length > MAX_VALUE as u64 {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("a value of {length} bytes")));
        }
        let mut value = vec![0; length as usize];
        self.fill(&mut value, left)?;
        Ok(value)
    }

    /// Adds to the number at a key; the sum.
    pub fn add(&mut self, key: &[u8], amount: i64, left: Left<'_>) -> io::Result<i64> {
        self.send(&Request::Add { key: key.to_vec(), amount }.encode(), left)?;
        Ok(i64::from_le_bytes(self.take(left)?))
    }

    /// Takes a key away, if it is there.
    pub fn delete(&mut self, key: &[u8], left: Left<'_>) -> io::Result<()> {
        self.send(&Request::Delete(key.to_vec()).encode(), left)?;
        self.take::<8>(left).map(drop)
    }

    /// Whether all keys are there.
    pub fn check(&mut self, keys: &[&[u8]], left: Left<'_>) -> io::Result<bool> {
        self.send(&Request::Check(owned(keys)).encode(), left)?;
        Ok(self.take::<1>(left)? == [0])
    }

    /// Waits until all keys are there. When it is `TimedOut` or was ended by the caller, the connection is as before.
    pub fn wait(&mut self, keys: &[&[u8]], left: Left<'_>) -> io::Result<()> {
        self.send(&Request::Wait(owned(keys)).encode(), left)?;
        let ended = match wait(self.socket.as_fd(), PollFlags::POLLIN, left) {
            Ok(()) => return self.take::<1>(left).map(drop),
            Err(error) => error,
        };
        let mut slices = CANCEL.as_millis() / SLICE.as_millis();
        let mut patience = || {
            slices = slices.saturating_sub(1);
            Ok(SLICE * slices.min(1) as u32)
        };
        self.send(&Request::CancelWait.encode(), &mut patience)?;
        match self.take::<1>(&mut patience)? {
            [WAIT_CANCELED] => Err(ended),
            // They came at the last moment.
            _ => self.take::<1>(&mut patience).map(drop),
        }
    }

    fn send(&mut self, mut bytes: &[u8], left: Left<'_>) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(self.socket.as_fd(), PollFlags::POLLOUT, left)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self, left: Left<'_>) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, left)?;
        Ok(bytes)
    }

    fn fill(&mut self, mut bytes: &mut [u8], left: Left<'_>) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.socket.read(bytes) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the store has hung up")),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(self.socket.as_fd(), PollFlags::POLLIN, left)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsFd for Client {
    /// Readable, while nothing is asked: the store has hung up.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn owned(keys: &[&[u8]]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.to_vec()).collect()
}

/// Waits for a descriptor for as long as the caller wants.
pub fn wait(fd: BorrowedFd<'_>, flags: PollFlags, left: Left<'_>) -> io::Result<()> {
    loop {
        let time = left()?;
        if time.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        if ready(Some(fd), flags, time.min(SLICE))? {
            return Ok(());
        }
    }
}

/// Waits once; whether it is ready. Without a descriptor time passes.
fn ready(fd: Option<BorrowedFd<'_>>, flags: PollFlags, time: Duration) -> io::Result<bool> {
    let mut fds: Vec<PollFd<'_>> = fd.into_iter().map(|fd| PollFd::new(fd, flags)).collect();
    let timeout = PollTimeout::try_from(time.max(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
