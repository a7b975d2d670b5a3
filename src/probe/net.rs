//! Network addresses of this machine, from its interfaces. Its host name is not used, because it often resolves to loopback.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};

/// The name of this machine, which need not resolve to an address.
pub fn host_name() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// IPv4 and IPv6 addresses of the interfaces that are up: each once, in the kernel's order, loopback last. Empty if the
/// kernel does not report them.
pub fn addresses() -> Vec<IpAddr> {
    let interfaces = getifaddrs().into_iter().flatten();
    let up = interfaces.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    loopback_last(up.filter_map(|interface| ip(&interface.address?)))
}

/// Names of the interfaces that are up, each once, in the kernel's order.
pub fn interfaces() -> nix::Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for interface in getifaddrs()? {
        if interface.flags.contains(InterfaceFlags::IFF_UP) && !names.contains(&interface.interface_name) {
            names.push(interface.interface_name);
        }
    }
    Ok(names)
}

/// Name of the interface that has an address.
pub fn interface_of(address: IpAddr) -> Option<String> {
    let mut interfaces = getifaddrs().into_iter().flatten();
    interfaces.find(|one| one.address.as_ref().and_then(ip) == Some(address)).map(|one| one.interface_name)
}

/// The addresses of a name, as the system resolves it; empty on failure.
pub fn resolve(name: &str) -> Vec<IpAddr> {
    (name, 0).to_socket_addrs().map(|all| all.map(|address| address.ip()).collect()).unwrap_or_default()
}

/// Whether a name or address has addresses, none of which is this machine's.
pub fn is_elsewhere(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = bare.parse().map_or_else(|_| resolve(bare), |address| vec![address]);
    !addresses.is_empty() && !addresses.into_iter().any(is_own)
}

/// `localhost`, or 127.0.0.1 where that name has no address.
pub fn loopback_name() -> &'static str {
    const NAME: &str = "localhost";
    // Almost always there, and no name server is asked.
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let is_listed = hosts.lines().any(|line| {
        let entry = line.split('#').next().unwrap_or_default();
        entry.split_whitespace().skip(1).any(|name| name == NAME)
    });
    if is_listed || !resolve(NAME).is_empty() { NAME } else { "127.0.0.1" }
}

/// Whether an address belongs to this machine: loopback, or an interface that is up.
pub fn is_own(address: IpAddr) -> bool {
    // All of 127.0.0.0/8 is this machine, even if no interface has the address.
    let address = address.to_canonical();
    address.is_loopback() || addresses().contains(&address)
}

/// The local address on the route to `host`, a name or an address without brackets. Of several addresses of a name, the
/// first with a route counts. No packet is sent, because connecting a datagram socket only looks up the route (udp(7)).
/// Fails if the name cannot be resolved or has no route; whether the host answers is not checked.
pub fn local_address_to(host: &str, port: u16) -> io::Result<IpAddr> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let connected = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address).map(|()| socket));
        match connected.and_then(|socket| socket.local_addr()) {
            Ok(own) => return Ok(own.ip()),
            Err(error) => failed = error,
        }
    }
    Err(failed)
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
    fn found_addresses_can_be_bound() {
        let found = addresses();
        assert!(found.contains(&IpAddr::from([127, 0, 0, 1])), "{found:?}");
        // A link-local address of IPv6 needs its interface's number too.
        let plain = |address: &&IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        for address in found.iter().filter(plain) {
            TcpListener::bind((*address, 0)).unwrap();
        }
    }

    #[test]
    fn the_route_to_an_own_address_begins_at_it() {
        // A link-local address of IPv6 needs its interface's number too.
        let plain = |address: &IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        for address in addresses().into_iter().filter(plain) {
            assert_eq!(local_address_to(&address.to_string(), 9).unwrap(), address);
            assert!(is_own(address));
        }
        assert!(local_address_to("localhost", 9).unwrap().is_loopback());
        assert!(is_own("127.9.9.9".parse().unwrap()) && is_own("::ffff:127.0.0.1".parse().unwrap()));
        // TEST-NET-1 belongs to no machine (RFC 5737).
        assert!(!is_own("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn a_host_without_a_route_is_an_error() {
        // RFC 6761: a name that never resolves.
        assert!(local_address_to("no-host.invalid", 9).is_err());
        // Without a route, and without permission to broadcast.
        assert!(local_address_to("255.255.255.255", 9).is_err());
    }
}
