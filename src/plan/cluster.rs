//! The nodes of a job with all their ports, and which of them this is.

use crate::model::Endpoint;
use crate::spec::SpecError;
use crate::spec::nodes::{Fixed, Host, HostPorts};
use core::net::IpAddr;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its address or name.
    pub host: String,
    /// Where its ranks listen, by local rank.
    pub ports: Vec<u16>,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// In the order of their numbers.
    pub nodes: Vec<Node>,
    /// Which of them this is.
    pub own: usize,
    /// Where rank 0's store listens, if that is no rank's endpoint.
    pub master: Option<Endpoint>,
}

impl Cluster {
    /// A node that is alone.
    pub fn alone(host: &str, ports: Vec<u16>, master: Option<u16>) -> Self {
        let master = master.map(|port| Endpoint::new(host, port));
        Self { nodes: vec![Node { host: host.to_owned(), ports }], own: 0, master }
    }

    /// Where the ranks of all nodes listen, by rank.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let of = |node: &'_ Node| node.ports.iter().map(|port| Endpoint::new(&node.host, *port)).collect::<Vec<_>>();
        self.nodes.iter().flat_map(of).collect()
    }

    /// The number of this node's first rank.
    pub fn first_rank(&self) -> usize {
        self.nodes[..self.own].iter().map(|node| node.ports.len()).sum()
    }

    /// This node's ports.
    pub fn own_ports(&self) -> &[u16] {
        &self.nodes[self.own].ports
    }
}

/// What a machine knows of addresses, asked only when somebody has to know.
pub struct Addresses<'a> {
    /// Those of its interfaces.
    pub own: &'a dyn Fn() -> Vec<IpAddr>,
    /// Those of a name.
    pub of: &'a dyn Fn(&str) -> Vec<IpAddr>,
}

/// The cluster of a fixed list, with `ranks` on this node, and as many on those that the list does not say it of.
pub fn fixed(list: &Fixed, ranks: usize, addresses: &Addresses<'_>) -> Result<Cluster, SpecError> {
    let own = own(list, addresses)?;
    let node = |host: &Host| Ok(Node { host: host.name.clone(), ports: ports(list, host, ranks)? });
    let nodes: Vec<Node> = list.hosts.iter().map(node).collect::<Result<_, SpecError>>()?;
    let told = nodes[own].ports.len();
    if told != ranks {
        let (field, value) = &list.from;
        return Err(SpecError::new(
            field,
            value,
            format!("has {told} endpoint(s) on {}, and {ranks} rank(s) are to run here", nodes[own].host),
            "change the list, --nproc_per_node or --devices",
        ));
    }
    Ok(Cluster { nodes, own, master: None })
}

fn ports(list: &Fixed, host: &Host, ranks: usize) -> Result<Vec<u16>, SpecError> {
    match &host.ports {
        HostPorts::These(ports) => Ok(ports.clone()),
        HostPorts::From(first) if usize::from(*first) + ranks <= 65_536 => {
            Ok((0..ranks).map(|i| first + i as u16).collect())
        }
        HostPorts::From(first) => Err(SpecError::new(
            &list.ports_from,
            first.to_string(),
            format!("leaves no room for {ranks} ports below 65536"),
            "give a lower one",
        )),
    }
}

/// The number of this node. An address that is not in the list is never taken for the first one's.
pub fn own(list: &Fixed, addresses: &Addresses<'_>) -> Result<usize, SpecError> {
    let (field, value) = &list.from;
    if let Some(own) = &list.own {
        return list.hosts.iter().position(|host| host.name == *own).ok_or_else(|| {
            let why = format!("this node's address is {own} (--host, POD_IP), which is not in the list");
            SpecError::new(field, value, why, "add it, or say --host as the list has it")
        });
    }
    let own = (addresses.own)();
    let is_here = |host: &Host| match host.name.parse::<IpAddr>() {
        // All of 127.0.0.0/8 is this machine, whatever its interfaces say.
        Ok(ip) => own.contains(&ip) || ip.is_loopback(),
        Err(_) => (addresses.of)(&host.name).iter().any(|ip| own.contains(ip) || ip.is_loopback()),
    };
    let here: Vec<usize> = (0..list.hosts.len()).filter(|&i| is_here(&list.hosts[i])).collect();
    let names = |ips: &[String]| ips.join(", ");
    match here[..] {
        [one] => Ok(one),
        [] => {
            let found: Vec<String> = own.iter().filter(|ip| !ip.is_loopback()).map(IpAddr::to_string).collect();
            let found = if found.is_empty() { "none but loopback".to_owned() } else { names(&found) };
            let why = format!("none of them is an address of this node, which has: {found}");
            Err(SpecError::new(field, value, why, "correct the list, or say --host which of them this node is"))
        }
        _ => {
            let several: Vec<String> = here.iter().map(|&i| list.hosts[i].name.clone()).collect();
            let why = format!("several of them are addresses of this node: {}", names(&several));
            Err(SpecError::new(field, value, why, "say --host which of them this launcher is"))
        }
    }
}
