//! Blocking clients of Unix sockets with a deadline.

use super::deadline::TimeLeft;
use super::tcp::{pause, wait};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect as start_connect, socket};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long to wait until there may be room in the queue of a server.
const FULL: Duration = Duration::from_millis(10);

fn open(kind: SockType) -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?)
}

/// Connects to a server. The socket is non-blocking. Errors: `WouldBlock` if the queue of connections that the server has not
/// accepted is full until no time is left.
pub fn connect(path: &Path, left: TimeLeft<'_>) -> io::Result<UnixStream> {
    let (fd, address) = (open(SockType::Stream)?, UnixAddr::new(path)?);
    loop {
        match start_connect(fd.as_raw_fd(), &address) {
            // No event says when there is room (unix(7)).
            Err(Errno::EAGAIN) if !left()?.is_zero() => pause(FULL, left)?,
            Err(Errno::EINTR) => {}
            other => {
                other?;
                return Ok(fd.into());
            }
        }
    }
}

/// Whether no process has the socket of this path open any more. Never waits, and leaves nothing in the queue of a server.
pub fn is_abandoned(path: &Path) -> bool {
    let Ok(address) = UnixAddr::new(path) else { return false };
    let refuses = |kind| open(kind).is_ok_and(|fd| start_connect(fd.as_raw_fd(), &address) == Err(Errno::ECONNREFUSED));
    // Linux says EPROTOTYPE of a stream socket that some process has open (unix_find_bsd in net/unix/af_unix.c). gVisor does not.
    refuses(SockType::Datagram) && refuses(SockType::Stream)
}

/// Sends all bytes.
pub fn write_all(mut socket: &UnixStream, mut bytes: &[u8], left: TimeLeft<'_>) -> io::Result<()> {
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

/// Reads a line, or what there is before the end.
pub fn read_line(mut socket: &UnixStream, left: TimeLeft<'_>) -> io::Result<Vec<u8>> {
    let (mut line, mut buffer) = (Vec::new(), [0; 64 * 1024]);
    while line.last() != Some(&b'\n') {
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(socket.as_fd(), PollFlags::POLLIN, left)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::net::deadline;
    use crate::sys::clock;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_server_that_accepts_nothing_delays_no_client_for_long_and_is_not_abandoned() {
        let folder = std::env::temp_dir().join(format!("rlaunch-unix-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let server = UnixListener::bind(&path).unwrap();
        let limit = Duration::from_millis(50);
        let connect = || connect(&path, &mut deadline::until(clock::now, clock::now() + limit));
        // Closed connections stay in the queue.
        let error = std::iter::repeat_with(connect).take(1 << 20).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(!is_abandoned(&path));
        drop(server);
        assert!(is_abandoned(&path));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(!is_abandoned(&path), "there is none");
    }

    #[test]
    fn a_peer_that_sends_bit_by_bit_has_one_deadline() {
        let (own, mut peer) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        peer.write_all(b"half a line").unwrap();
        let mut times = [Duration::from_millis(1), Duration::ZERO].into_iter();
        let error = read_line(&own, &mut || {
            peer.write_all(b".").unwrap();
            Ok(times.next().unwrap())
        });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
        peer.write_all(b"\n").unwrap();
        assert!(read_line(&own, &mut || Ok(Duration::ZERO)).is_ok(), "no wait");
    }
}
