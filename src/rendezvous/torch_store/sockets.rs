//! The sockets of a store, and the addresses from which it takes connections.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};

/// The addresses from which a store takes connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StorePeers {
    /// Any address.
    #[default]
    Any,
    /// Those of this machine, and these, none of them mapped from IPv4 to IPv6.
    Nodes(BTreeSet<IpAddr>),
}

/// The listening sockets of a store. Without any, there is no store.
#[derive(Debug, Default)]
pub struct StoreSockets {
    /// They listen.
    pub listeners: Vec<TcpListener>,
    /// The addresses from which they take connections.
    pub peers: StorePeers,
}

impl StorePeers {
    /// Whether a connection from one address to another, of this machine, is taken.
    pub fn admit(&self, from: IpAddr, to: IpAddr) -> bool {
        let Self::Nodes(nodes) = self else { return true };
        let (from, to) = (from.to_canonical(), to.to_canonical());
        from.is_loopback() || from == to || nodes.contains(&from)
    }

    /// The address of a client that is not admitted.
    pub(super) fn refused(&self, socket: &TcpStream) -> io::Result<Option<IpAddr>> {
        if *self == Self::Any {
            return Ok(None);
        }
        let (from, to) = (socket.peer_addr()?.ip(), socket.local_addr()?.ip());
        Ok((!self.admit(from, to)).then_some(from))
    }
}

impl StoreSockets {
    /// The same sockets once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        let listeners = self.listeners.iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { listeners, peers: self.peers.clone() })
    }
}

impl From<Vec<TcpListener>> for StoreSockets {
    /// Reached from any address.
    fn from(listeners: Vec<TcpListener>) -> Self {
        Self { listeners, peers: StorePeers::Any }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    #[test]
    fn nodes_and_this_machine_are_admitted_and_no_others() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let nodes = StorePeers::Nodes([address("10.0.0.1"), address("fd77::2")].into());
        let own = address("10.0.0.9");
        for from in ["10.0.0.1", "fd77::2", "::ffff:10.0.0.1", "127.0.0.1", "127.8.0.1", "::1", "10.0.0.9"] {
            assert!(nodes.admit(address(from), own), "{from}");
        }
        for from in ["10.0.0.2", "fd77::3", "::ffff:10.0.0.2"] {
            assert!(!nodes.admit(address(from), own), "{from}");
            assert!(StorePeers::Any.admit(address(from), own), "{from}");
        }
    }
}
