//! Packets with descriptors between this process and a child (unix(7), SCM_RIGHTS).

use crate::sys::io::fd;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, recv, sendmsg, socketpair,
};
use std::fs::File;
use std::io::{self, IoSlice, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// The longest packet that can be received.
const LONGEST: usize = 64 * 1024;

/// Both ends of a connection that preserves packets (SOCK_SEQPACKET), close-on-exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Sends a packet and these descriptors. `EPIPE` when the other end is gone.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let descriptors: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights = if descriptors.is_empty() { &rights[..0] } else { &rights[..] };
    sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Waits for a packet for up to `patience` (`TimedOut`). Empty: the other end is gone.
pub fn receive(socket: BorrowedFd<'_>, patience: Duration) -> io::Result<Vec<u8>> {
    let millis = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
    let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
    loop {
        match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout) {
            // A signal handler has run; the event loop reads its pipe later.
            Err(nix::errno::Errno::EINTR) => continue,
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        let mut bytes = vec![0; LONGEST];
        match recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(read) => {
                bytes.truncate(read);
                return Ok(bytes);
            }
            // A process that ends with unread packets resets the connection.
            Err(nix::errno::Errno::ECONNRESET) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// An anonymous file with this content, positioned at its beginning.
pub fn file_of(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(fd::memory("rlaunch-request")?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::cmsg_space;
    use std::io::Read;

    #[test]
    fn packets_keep_their_bounds_and_an_end_is_seen() {
        let (here, there) = pair().unwrap();
        send(there.as_fd(), b"one", &[]).unwrap();
        send(there.as_fd(), b"two", &[]).unwrap();
        let next = |patience| receive(here.as_fd(), patience);
        assert_eq!(next(Duration::ZERO).unwrap(), b"one");
        assert_eq!(next(Duration::ZERO).unwrap(), b"two");
        assert_eq!(next(Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(there);
        assert_eq!(next(Duration::MAX).unwrap(), b"");
        assert_eq!(send(here.as_fd(), b"x", &[]).unwrap_err().raw_os_error(), Some(libc::EPIPE));
    }

    #[test]
    fn a_packet_carries_a_file() {
        use nix::sys::socket::{ControlMessageOwned, recvmsg};
        let (here, there) = pair().unwrap();
        let file = file_of(b"request").unwrap();
        send(there.as_fd(), b"F", &[file.as_fd()]).unwrap();
        let (mut byte, mut space) = ([0], cmsg_space!([RawFd; 1]));
        let mut parts = [io::IoSliceMut::new(&mut byte)];
        let got = recvmsg::<UnixAddr>(here.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).unwrap();
        let Some(ControlMessageOwned::ScmRights(descriptors)) = got.cmsgs().unwrap().next() else { unreachable!() };
        let mut text = String::new();
        let mut copy = File::from(crate::sys::io::fd::take_inherited(descriptors[0]).unwrap());
        copy.read_to_string(&mut text).unwrap();
        assert_eq!(text, "request");
    }
}
