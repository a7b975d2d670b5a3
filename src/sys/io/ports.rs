//! Port leases: a socket that is bound and never listens holds a port until the job is over. The ranks' servers can still
//! bind and listen on it, because both sides set SO_REUSEADDR or SO_REUSEPORT. Other programs cannot, and the kernel does not
//! choose it as a free port.

use crate::sys::io::fd::above_stdio;
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

/// A held port. Dropping it releases the port.
#[derive(Debug)]
pub struct PortLease {
    port: u16,
    _socket: OwnedFd,
}

impl PortLease {
    /// The TCP port, on every address of this machine.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leases a free port that the kernel chooses.
    pub fn any() -> io::Result<Self> {
        Ok(Self::take(0, false)?)
    }

    /// Leases this port. `PortBusy` names the process that holds it.
    pub fn fixed(port: u16) -> Result<Self, PortBusy> {
        match Self::take(port, false) {
            Ok(lease) => Ok(lease),
            Err(Errno::EADDRINUSE) if only_past_connections(port) => {
                Self::take(port, true).map_err(|error| PortBusy::new(port, error))
            }
            Err(error) => Err(PortBusy::new(port, error)),
        }
    }

    /// First binds without the options, which fails if any other socket is bound. Then binds a second socket with both
    /// options, so that servers that set either option can bind too.
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
    // Connections of an earlier server stay in TIME_WAIT for a minute; only SO_REUSEADDR ignores them (socket(7)).
    setsockopt(&socket.0, sockopt::ReuseAddr, &past_connections)?;
    bind_any(&socket, port)?;
    let port = match socket.1 {
        AddressFamily::Inet6 => getsockname::<SockaddrIn6>(socket.0.as_raw_fd())?.port(),
        _ => getsockname::<SockaddrIn>(socket.0.as_raw_fd())?.port(),
    };
    Ok((socket.0, port))
}

/// A TCP socket for IPv6 and IPv4, or for IPv4 alone where IPv6 is disabled.
fn new_socket() -> nix::Result<(OwnedFd, AddressFamily)> {
    let open = |family| above_stdio(socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?);
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

/// A port that could not be leased, and the process that holds it, if this user may see it.
#[derive(Debug)]
pub struct PortBusy {
    /// The requested port.
    pub port: u16,
    error: Errno,
    holder: Option<PortHolder>,
}

#[derive(Debug)]
struct PortHolder {
    pid: i32,
    program: String,
    uid: u32,
}

impl PortBusy {
    /// The process that listens on a port of this machine, if this user may see it.
    pub fn by_listener(port: u16) -> Option<Self> {
        let found = holder(port)?;
        Some(Self { port, error: Errno::EADDRINUSE, holder: Some(found) })
    }

    fn new(port: u16, error: Errno) -> Self {
        Self { port, error, holder: (error == Errno::EADDRINUSE).then(|| holder(port)).flatten() }
    }
}

impl std::error::Error for PortBusy {}

impl fmt::Display for PortBusy {
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

/// State and inode of the sockets on a local port, from `/proc/net/tcp` and `tcp6` (proc_net_tcp in the kernel's
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

/// Whether only connections in TIME_WAIT keep a port from being bound.
fn only_past_connections(port: u16) -> bool {
    let rows = rows(port);
    !rows.is_empty() && rows.iter().all(|(state, _)| *state == TIME_WAIT)
}

/// The process that listens on a port: the one with the socket's inode in `/proc/PID/fd`.
fn holder(port: u16) -> Option<PortHolder> {
    let inode = rows(port).into_iter().find(|(state, _)| *state == LISTEN)?.1;
    let wanted = format!("socket:[{inode}]");
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let Ok(fds) = fs::read_dir(entry.path().join("fd")) else { continue };
        if fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|l| l.as_os_str() == wanted.as_str())) {
            let program = fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim().to_owned();
            let uid = fs::metadata(entry.path()).map_or(0, |m| m.uid());
            return Some(PortHolder { pid, program, uid });
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
    fn a_leased_port_is_closed_to_other_programs_and_open_to_servers_of_ranks() {
        let lease = PortLease::any().unwrap();
        let port = lease.port();
        assert!(PortLease::fixed(port).is_err(), "a second lease of port {port}");
        // std's listener sets SO_REUSEADDR, as the stores of Paddle and torch do.
        let server = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert!(PortLease::fixed(port).is_err(), "a second lease beside a server on port {port}");
        drop(server);
        let (plain, _) = new_socket().unwrap();
        assert_eq!(bind_any(&(plain, new_socket().unwrap().1), port), Err(Errno::EADDRINUSE));
    }

    #[test]
    fn a_busy_port_names_its_holder() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let text = PortLease::fixed(port).unwrap_err().to_string();
        assert!(text.contains(&format!("port {port} is in use by pid {}", std::process::id())), "{text}");
    }

    #[test]
    fn a_port_whose_connections_have_just_ended_can_be_leased_again() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (peer, _) = server.accept().unwrap();
        drop(peer); // The server closes first, so TIME_WAIT is on its port.
        drop(client);
        drop(server);
        assert!(only_past_connections(port));
        assert_eq!(PortLease::fixed(port).unwrap().port(), port);
    }
}
