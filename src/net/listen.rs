//! Listening TCP sockets, which also work on a port that the job holds by a lease.
//!
//! They set SO_REUSEADDR and not SO_REUSEPORT. SO_REUSEADDR is enough beside a lease, which is a bound socket that never listens.
//! While one socket of a port listens without SO_REUSEPORT, no other process can listen there, not even one of the same user,
//! which would receive half of the connections (socket(7), ip(7)).

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

/// Connections that may wait to be accepted (net.core.somaxconn allows 4096 unless set otherwise).
pub const BACKLOG: i32 = 4096;

/// Listens on 127.0.0.1 and, where there is IPv6, on ::1. Port 0: a free port, the same for both.
pub fn loopback(port: u16) -> io::Result<Vec<TcpListener>> {
    // A port that is free on one address may be in use on the other.
    for _ in 0..64 {
        let first = on((Ipv4Addr::LOCALHOST, port).into())?;
        match on((Ipv6Addr::LOCALHOST, first.local_addr()?.port()).into()) {
            Ok(second) => return Ok(vec![first, second]),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL) => return Ok(vec![first]),
                Some(Errno::EADDRINUSE) if port == 0 => {}
                _ => return Err(error),
            },
        }
    }
    Err(Errno::EADDRINUSE.into())
}

/// Listens on all of these addresses of this machine that other machines may reach, or on loopback if there are none. Addresses that
/// cannot be listened on are left out (link-local ones).
pub fn on_own(addresses: &[IpAddr], port: u16) -> io::Result<Vec<TcpListener>> {
    let (mut listeners, mut failed) = (Vec::new(), None);
    for address in addresses.iter().filter(|address| !address.is_loopback()) {
        match on((*address, port).into()) {
            Ok(listener) => listeners.push(listener),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if listeners.is_empty() => Err(error),
        None if listeners.is_empty() => loopback(port),
        _ => Ok(listeners),
    }
}

/// The addresses on which these listen, for people.
pub fn describe(listeners: &[TcpListener]) -> String {
    let all = listeners.iter().filter_map(|listener| listener.local_addr().ok());
    all.map(|at| at.to_string()).collect::<Vec<_>>().join(", ")
}

/// Listens on one address of this machine.
pub fn on(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&fd, Backlog::new(BACKLOG).unwrap_or(Backlog::MAXCONN))?;
    Ok(TcpListener::from(fd))
}
