//! Port leases: a port is held, from before it is handed out until the job is over, by a socket that
//! is bound and never listens. The ranks' own servers still bind and listen on it, because both sides
//! set SO_REUSEADDR or SO_REUSEPORT; strangers and the kernel's choice of free ports stay off.

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrLike, bind, getsockname, setsockopt, socket,
    sockopt,
};
use std::fmt;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// A held port. Dropping it gives the port back.
#[derive(Debug)]
pub struct Lease {
    port: u16,
    _socket: OwnedFd,
}

impl Lease {
    /// The TCP port, on every address of this machine.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leases a free port of the kernel's choice.
    pub fn any() -> io::Result<Self> {
        Ok(Self::take(0, false)?)
    }

    /// Leases this very port. `Err(Busy)` says who has it.
    pub fn fixed(port: u16) -> Result<Self, Busy> {
        match Self::take(port, false) {
            Ok(lease) => Ok(lease),
            Err(Errno::EADDRINUSE) if only_past_connections(port) => {
                Self::take(port, true).map_err(|error| Busy::new(port, error))
            }
            Err(error) => Err(Busy::new(port, error)),
        }
    }

    /// Binds alone first, which fails if anybody else is bound, whatever options they set; then opens
    /// a second socket with both options set, so that servers that set either can join.
    fn take(port: u16, past_connections: bool) -> nix::Result<Self> {
        let (first, port) = bound(port, past_connections)?;
        share(&first)?;
        let second = new_socket()?;
        share(&second.0)?;
        bind_any(&second, port)?;
        Ok(Self { port, _socket: second.0 })
    }
}

fn share(socket: &OwnedFd) -> nix::Result<()> {
    setsockopt(socket, sockopt::ReuseAddr, &true)?;
    setsockopt(socket, sockopt::ReusePort, &true)
}

fn bound(port: u16, past_connections: bool) -> nix::Result<(OwnedFd, u16)> {
    let socket = new_socket()?;
    // A server of an earlier job leaves connections in TIME_WAIT for a minute; only SO_REUSEADDR
    // looks past them (socket(7)).
    setsockopt(&socket.0, sockopt::ReuseAddr, &past_connections)?;
    bind_any(&socket, port)?;
    let port = match socket.1 {
        AddressFamily::Inet6 => getsockname::<SockaddrIn6>(socket.0.as_raw_fd())?.port(),
        _ => getsockname::<SockaddrIn>(socket.0.as_raw_fd())?.port(),
    };
    Ok((socket.0, port))
}

/// A TCP socket for IPv6 and IPv4 both, or for IPv4 alone where IPv6 is switched off.
fn new_socket() -> nix::Result<(OwnedFd, AddressFamily)> {
    let open = |family| socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    match open(AddressFamily::Inet6) {
        Ok(fd) if fs::exists("/proc/net/if_inet6").unwrap_or(true) => {
            setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
            Ok((fd, AddressFamily::Inet6))
        }
        _ => Ok((open(AddressFamily::Inet)?, AddressFamily::Inet)),
    }
}

fn bind_any(socket: &(OwnedFd, AddressFamily), port: u16) -> nix::Result<()> {
    let fd = socket.0.as_raw_fd();
    let go = |address: &dyn SockaddrLike| bind(fd, address);
    match socket.1 {
        AddressFamily::Inet6 => go(&SockaddrIn6::from(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))),
        _ => go(&SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))),
    }
}

/// A port that could not be leased, and who has it as far as this user may see.
#[derive(Debug)]
pub struct Busy {
    /// The port that was asked for.
    pub port: u16,
    error: Errno,
    holder: Option<Holder>,
}

#[derive(Debug)]
struct Holder {
    pid: i32,
    program: String,
    uid: u32,
}

impl Busy {
    fn new(port: u16, error: Errno) -> Self {
        Self { port, error, holder: (error == Errno::EADDRINUSE).then(|| holder(port)).flatten() }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.holder, self.error) {
            (Some(h), _) => {
                write!(f, "port {} is in use by pid {} ({}) of uid {}", self.port, h.pid, h.program, h.uid)
            }
            (None, Errno::EADDRINUSE) => {
                write!(f, "port {} is in use (its holder is not listening yet, or is another user's)", self.port)
            }
            (None, error) => write!(f, "port {} cannot be taken: {}", self.port, error.desc()),
        }
    }
}

/// Rows of `/proc/net/tcp` and `tcp6` on a local port: state and inode (proc_net_tcp in the kernel's
/// documentation; the port is hexadecimal).
fn rows(port: u16) -> Vec<(u8, u64)> {
    let suffix = format!(":{port:04X}");
    let mut found = Vec::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        for line in text.lines().skip(1) {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or("");
            let state = words.nth(1).and_then(|s| u8::from_str_radix(s, 16).ok());
            let inode = words.nth(5).and_then(|s| s.parse().ok());
            if let (true, Some(state), Some(inode)) = (local.ends_with(&suffix), state, inode) {
                found.push((state, inode));
            }
        }
    }
    found
}

const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;

/// Whether nothing but the remains of ended connections keeps a port from being bound.
fn only_past_connections(port: u16) -> bool {
    let rows = rows(port);
    !rows.is_empty() && rows.iter().all(|(state, _)| *state == TIME_WAIT)
}

/// The process that listens on a port, found by the socket's inode among `/proc/*/fd`.
fn holder(port: u16) -> Option<Holder> {
    let inode = rows(port).into_iter().find(|(state, _)| *state == LISTEN)?.1;
    let wanted = format!("socket:[{inode}]");
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let Ok(fds) = fs::read_dir(entry.path().join("fd")) else { continue };
        if fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|l| l.as_os_str() == wanted.as_str())) {
            let program = fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim().to_owned();
            let uid = fs::metadata(entry.path()).map_or(0, |m| m.uid());
            return Some(Holder { pid, program, uid });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_leased_port_is_kept_from_strangers_and_open_to_the_ranks_server() {
        let lease = Lease::any().unwrap();
        let port = lease.port();
        assert!(Lease::fixed(port).is_err(), "a second lease of port {port}");
        // std's listener sets SO_REUSEADDR, as the stores of Paddle and torch do.
        let server = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert!(Lease::fixed(port).is_err(), "a second lease beside a server on port {port}");
        drop(server);
        let (plain, _) = new_socket().unwrap();
        assert_eq!(bind_any(&(plain, new_socket().unwrap().1), port), Err(Errno::EADDRINUSE));
    }

    #[test]
    fn a_busy_port_names_its_holder() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let text = Lease::fixed(port).unwrap_err().to_string();
        assert!(text.contains(&format!("port {port} is in use by pid {}", std::process::id())), "{text}");
    }

    #[test]
    fn a_port_whose_connections_have_just_ended_can_be_leased_again() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (peer, _) = server.accept().unwrap();
        drop(peer); // The server's side closes first, so the TIME_WAIT is on its port.
        drop(client);
        drop(server);
        assert!(only_past_connections(port));
        assert_eq!(Lease::fixed(port).unwrap().port(), port);
    }
}
