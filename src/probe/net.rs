//! The addresses of this machine's interfaces. Never looked up by its name, which is often loopback's.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use std::net::IpAddr;

/// Addresses, IPv4 and IPv6, of the interfaces that are up: each once, in the kernel's order, loopback last. None if
/// the kernel will not say.
pub fn addresses() -> Vec<IpAddr> {
    let interfaces = getifaddrs().into_iter().flatten();
    let up = interfaces.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    loopback_last(up.filter_map(|interface| ip(&interface.address?)))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
}

fn loopback_last(found: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut list = Vec::new();
    for address in found {
        if !list.contains(&address) {
            list.push(address);
        }
    }
    // A stable sort.
    list.sort_by_key(IpAddr::is_loopback);
    list
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn each_address_is_there_once_and_loopback_last() {
        let ips = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let found = ips(&["127.0.0.1", "10.0.0.2", "::1", "10.0.0.1", "10.0.0.2", "fe80::1"]);
        let sorted = ips(&["10.0.0.2", "10.0.0.1", "fe80::1", "127.0.0.1", "::1"]);
        assert_eq!(loopback_last(found.into_iter()), sorted);
    }

    #[test]
    fn one_can_listen_at_what_is_found() {
        let found = addresses();
        assert!(found.contains(&IpAddr::from([127, 0, 0, 1])), "{found:?}");
        // A link-local address of IPv6 needs its interface's number too.
        let plain = |address: &&IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        for address in found.iter().filter(plain) {
            TcpListener::bind((*address, 0)).unwrap();
        }
    }
}
