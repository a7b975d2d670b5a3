//! The two kinds of sockets that a server has: TCP, and Unix for clients on this machine.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// Of a port.
    Tcp(TcpListener),
    /// Of a path.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

impl Listener {
    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener) => listener.set_nonblocking(true),
        }
    }

    pub(super) fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => Ok(Socket::Tcp(listener.accept()?.0)),
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept()?.0)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

/// The socket of a connection.
#[derive(Debug)]
pub enum Socket {
    /// Of a client at an address.
    Tcp(TcpStream),
    /// Of a client on this machine.
    Unix(UnixStream),
}

impl Socket {
    /// The TCP socket. Errors: it is none.
    pub fn tcp(&self) -> io::Result<&TcpStream> {
        match self {
            Self::Tcp(socket) => Ok(socket),
            Self::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The user that the client process runs as, by SO_PEERCRED (unix(7)). Errors: it is a TCP socket.
    pub fn user(&self) -> io::Result<u32> {
        match self {
            Self::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::Unix(socket) => Ok(getsockopt(socket, PeerCredentials)?.uid()),
        }
    }

    /// Makes it non-blocking, and a TCP socket send without delay.
    pub(super) fn prepare(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)),
            Self::Unix(socket) => socket.set_nonblocking(true),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(buffer),
            Self::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write_vectored(slices),
            Self::Unix(socket) => socket.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
