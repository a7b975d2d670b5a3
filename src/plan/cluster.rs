//! The nodes of a job with all their ports, and which of them this is.

use super::dialects::Servers;
use crate::model::Endpoint;
use crate::model::endpoint::consecutive;
use crate::spec::SpecError;
use crate::spec::dialects::Dialect;
use crate::spec::nodes::{Fixed, Host, HostPorts, same};
use core::net::IpAddr;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its address or name.
    pub host: String,
    /// Where its ranks listen, by local rank.
    pub ports: Vec<u16>,
}

/// All of them. What the ranks of all nodes are told alike is there once, however many copies there are of this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// In the order of their numbers.
    pub nodes: Arc<[Node]>,
    /// Which of them this is.
    pub own: usize,
    /// The number of this node's first rank.
    pub first_rank: usize,
    /// Where the ranks of all nodes listen, by rank.
    pub endpoints: Arc<[Endpoint]>,
    /// The same as text, joined by commas.
    pub list: Arc<str>,
    /// Where rank 0's store listens, if that is no rank's endpoint.
    pub master: Option<Endpoint>,
    /// Where rank 0 listens for frameworks other than Paddle.
    pub servers: Servers,
    /// The interface that has this node's address, if that is known and other nodes are reached by it.
    pub interface: Option<String>,
}

impl Cluster {
    /// These nodes, of which `own` is this one.
    pub fn new(nodes: Vec<Node>, own: usize) -> Self {
        let of = |node: &Node| node.ports.iter().map(|port| Endpoint::new(&node.host, *port)).collect::<Vec<_>>();
        let endpoints: Arc<[Endpoint]> = nodes.iter().flat_map(of).collect();
        let list = Endpoint::join(&endpoints).into();
        let first_rank = nodes[..own].iter().map(|node| node.ports.len()).sum();
        Self {
            nodes: nodes.into(),
            own,
            first_rank,
            endpoints,
            list,
            master: None,
            servers: Servers::default(),
            interface: None,
        }
    }

    /// A node that is alone.
    pub fn alone(host: &str, ports: Vec<u16>, master: Option<u16>) -> Self {
        let master = master.map(|port| Endpoint::new(host, port));
        Self { master, ..Self::new(vec![Node { host: host.to_owned(), ports }], 0) }
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
    /// The name of the interface that has an address.
    pub interface: &'a dyn Fn(IpAddr) -> Option<String>,
}

impl Cluster {
    /// Gives the store a port of its own, behind those of the first node's ranks, whose endpoints are taken.
    pub fn with_master_apart(mut self, from: &(String, String)) -> Result<Self, SpecError> {
        self.master = Some(self.behind(1, from)?);
        Ok(self)
    }

    /// Gives the servers of other frameworks ports of their own, behind those of the first node's ranks: torch's the
    /// first, jax's the second, whichever of them there are.
    pub fn with_servers(mut self, dialects: &BTreeSet<Dialect>, from: &(String, String)) -> Result<Self, SpecError> {
        if Servers::ports_needed(dialects) > 0 {
            let (torch, jax) = (self.behind(1, from)?, self.behind(2, from)?);
            self.servers = Servers::at(dialects, &torch.host, [torch.port, jax.port]);
        }
        Ok(self)
    }

    fn behind(&self, steps: u16, (field, value): &(String, String)) -> Result<Endpoint, SpecError> {
        let first = &self.nodes[0];
        let last = first.ports.iter().max().copied().unwrap_or(0);
        last.checked_add(steps).map(|port| Endpoint::new(&first.host, port)).ok_or_else(|| {
            let why = format!("leaves no port below 65536 for the store on {}", first.host);
            SpecError::new(field, value, why, "give lower ports")
        })
    }
}

/// The cluster of a fixed list, with `ranks` on this node, and as many on those that the list does not say it of.
pub fn fixed(list: &Fixed, ranks: usize, addresses: &Addresses<'_>) -> Result<Cluster, SpecError> {
    let names: Vec<&str> = list.hosts.iter().map(|host| host.name.as_str()).collect();
    let own = own(&names, list.own.as_deref(), &list.from, addresses)?;
    let node = |host: &Host| Ok(Node { host: host.name.clone(), ports: ports(list, host, ranks)? });
    let mut nodes: Vec<Node> = list.hosts.iter().map(node).collect::<Result<_, SpecError>>()?;
    let told = nodes[own].ports.len();
    // A platform's list may have more than are used: the first of each node's, as Paddle's older launcher has it.
    if told > ranks && nodes.iter().all(|node| node.ports.len() >= ranks) {
        nodes.iter_mut().for_each(|node| node.ports.truncate(ranks));
    } else if told != ranks {
        let (field, value) = &list.from;
        return Err(SpecError::new(
            field,
            value,
            format!("has {told} endpoint(s) on {}, and {ranks} rank(s) are to run here", nodes[own].host),
            "change the list, --nproc_per_node or --devices",
        ));
    }
    let interface = if nodes.len() > 1 { interface(&nodes[own].host, addresses) } else { None };
    Ok(Cluster { interface, ..Cluster::new(nodes, own) })
}

fn interface(host: &str, addresses: &Addresses<'_>) -> Option<String> {
    let ips = host.parse().map_or_else(|_| (addresses.of)(host), |ip| vec![ip]);
    ips.into_iter().find_map(addresses.interface)
}

fn ports(list: &Fixed, host: &Host, ranks: usize) -> Result<Vec<u16>, SpecError> {
    match &host.ports {
        HostPorts::These(ports) => Ok(ports.clone()),
        HostPorts::From(first) => consecutive(*first, ranks)
            .map_err(|why| SpecError::new(&list.ports_from, first.to_string(), why, "give a lower one")),
    }
}

/// Which of these nodes this one is; `said`: its address, if the user has said it; `from`: the option or variable that
/// has the list, and its value. An address that is not in the list is never taken for the first one's.
pub fn own(
    names: &[&str],
    said: Option<&str>,
    (field, value): &(String, String),
    addresses: &Addresses<'_>,
) -> Result<usize, SpecError> {
    if let Some(own) = said {
        return names.iter().position(|name| same(name, own)).ok_or_else(|| {
            let why = format!("this node's address is {own} (--host, POD_IP), which is not in the list");
            SpecError::new(field, value, why, "add it, or say --host as the list has it")
        });
    }
    let own = (addresses.own)();
    // All of 127.0.0.0/8 is this machine, whatever its interfaces say.
    let is_own = |ip: &IpAddr| own.contains(ip) || ip.is_loopback();
    let find = |is_here: &dyn Fn(&str) -> bool| (0..names.len()).filter(|&i| is_here(names[i])).collect::<Vec<_>>();
    let mut here = find(&|name| name.parse().is_ok_and(|ip| is_own(&ip)));
    // Asking for names may take long.
    if here.is_empty() {
        here = find(&|name| name.parse::<IpAddr>().is_err() && (addresses.of)(name).iter().any(is_own));
    }
    match here[..] {
        [one] => Ok(one),
        [] => {
            let found: Vec<String> = own.iter().filter(|ip| !ip.is_loopback()).map(IpAddr::to_string).collect();
            let found = if found.is_empty() { "none but loopback".to_owned() } else { found.join(", ") };
            let why = format!("none of them is an address of this node, which has: {found}");
            Err(SpecError::new(field, value, why, "correct the list, or say --host which of them this node is"))
        }
        _ => {
            let several: Vec<&str> = here.iter().map(|&i| names[i]).collect();
            let why = format!("several of them are addresses of this node: {}", several.join(", "));
            Err(SpecError::new(field, value, why, "say --host which of them this launcher is"))
        }
    }
}
