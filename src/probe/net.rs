//! The addresses of this machine.

use nix::ifaddrs::getifaddrs;
use std::net::{IpAddr, ToSocketAddrs};

/// Those of its interfaces, loopback last. Empty if the system does not say.
pub fn addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    let mut found: Vec<IpAddr> = interfaces.filter_map(|one| ip(one.address?)).collect();
    found.sort_by_key(IpAddr::is_loopback);
    found
}

/// Those of a name, as the system resolves it; empty if it does not.
pub fn of(name: &str) -> Vec<IpAddr> {
    (name, 0).to_socket_addrs().map(|all| all.map(|address| address.ip()).collect()).unwrap_or_default()
}
