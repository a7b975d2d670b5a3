//! Blocking TCP clients with a deadline.

use super::deadline::TimeLeft;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect as start_connect, getsockopt, setsockopt, socket,
    sockopt,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// The longest wait without asking how much time is left.
pub const SLICE: Duration = Duration::from_millis(100);

/// Host and port as one text, for messages and HTTP headers.
pub fn host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Makes the kernel close a connection whose other machine does not answer: it asks after `idle` seconds without data, and then
/// `count` times, `interval` seconds apart (tcp(7)).
pub fn set_keepalive(socket: &impl AsFd, idle: u32, interval: u32, count: u32) -> io::Result<()> {
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &idle)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &interval)?;
    Ok(setsockopt(socket, sockopt::TcpKeepCount, &count)?)
}

/// Connects to the first address of the host that accepts. The socket is non-blocking.
pub fn connect(host: &str, port: u16, left: TimeLeft<'_>) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the host name has no address");
    for address in (host, port).to_socket_addrs()? {
        match connect_to(address, left) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn connect_to(address: SocketAddr, left: TimeLeft<'_>) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    match start_connect(fd.as_raw_fd(), &SockaddrStorage::from(address)) {
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
    // The loss of the other machine is noticed within half a minute.
    set_keepalive(&socket, 10, 5, 4)?;
    Ok(socket)
}

/// Writes all bytes to a non-blocking socket.
pub fn write_all(mut socket: &TcpStream, mut bytes: &[u8], left: TimeLeft<'_>) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(socket.as_fd(), PollFlags::POLLOUT, left)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills the buffer from a non-blocking socket.
pub fn read_exact(mut socket: &TcpStream, mut buffer: &mut [u8], left: TimeLeft<'_>) -> io::Result<()> {
    while !buffer.is_empty() {
        match socket.read(buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(socket.as_fd(), PollFlags::POLLIN, left)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until a descriptor is ready. Errors: `TimedOut`, and what `left` returns.
pub fn wait(fd: BorrowedFd<'_>, events: PollFlags, left: TimeLeft<'_>) -> io::Result<()> {
    loop {
        let time = left()?;
        if time.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        if poll_once(Some(fd), events, time.min(SLICE))? {
            return Ok(());
        }
    }
}

/// Lets `time` pass, or what is left if that is shorter. Errors: what `left` returns.
pub fn pause(time: Duration, left: TimeLeft<'_>) -> io::Result<()> {
    let mut rest = time;
    while !rest.is_zero() {
        let slice = rest.min(left()?).min(SLICE);
        if slice.is_zero() {
            break;
        }
        poll_once(None, PollFlags::empty(), slice)?;
        rest -= slice;
    }
    Ok(())
}

/// Waits once for `time` at most, and returns whether the descriptor is ready. Without a descriptor, time passes.
fn poll_once(fd: Option<BorrowedFd<'_>>, events: PollFlags, time: Duration) -> io::Result<bool> {
    let mut fds: Vec<PollFd<'_>> = fd.into_iter().map(|fd| PollFd::new(fd, events)).collect();
    let timeout = PollTimeout::try_from(time.max(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
