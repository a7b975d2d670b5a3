//! Nodes of a job with the ports of their ranks, and which of them this node is.

use crate::model::Endpoint;
use crate::model::endpoint::consecutive_ports;
use crate::plan::env::frameworks::FrameworkServers;
use crate::spec::SpecError;
use crate::spec::endpoints::is_same_host;
use crate::spec::frameworks::Framework;
use crate::spec::paddle::nodes::{FixedHost, FixedNodes, HostPorts};
use core::net::IpAddr;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Address or name.
    pub host: String,
    /// Ports of its ranks, by local rank.
    pub ports: Vec<u16>,
}

/// All nodes of a job. Clones share the values that all ranks have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The nodes, by number.
    pub nodes: Arc<[ClusterNode]>,
    /// Number of this node.
    pub own: usize,
    /// First rank of this node.
    pub first_rank: usize,
    /// Endpoints of all ranks, by rank.
    pub endpoints: Arc<[Endpoint]>,
    /// The same, comma-separated.
    pub list: Arc<str>,
    /// Endpoint of the store in rank 0, if it is not the endpoint of a rank.
    pub master: Option<Endpoint>,
    /// Servers in rank 0 for frameworks other than Paddle.
    pub servers: FrameworkServers,
    /// Network interface with the address of this node, if known; only on several nodes.
    pub interface: Option<String>,
}

impl Cluster {
    /// A cluster of these nodes; `own` is the number of this one.
    pub fn new(nodes: Vec<ClusterNode>, own: usize) -> Self {
        let of =
            |node: &ClusterNode| node.ports.iter().map(|port| Endpoint::new(&node.host, *port)).collect::<Vec<_>>();
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
            servers: FrameworkServers::default(),
            interface: None,
        }
    }

    /// A cluster of one node.
    pub fn single_node(host: &str, ports: Vec<u16>, master: Option<u16>) -> Self {
        let master = master.map(|port| Endpoint::new(host, port));
        Self { master, ..Self::new(vec![ClusterNode { host: host.to_owned(), ports }], 0) }
    }

    /// Ports of the ranks of this node.
    pub fn own_ports(&self) -> &[u16] {
        &self.nodes[self.own].ports
    }
}

/// Queries of the addresses of this machine, which are run only when needed.
pub struct LocalAddresses<'a> {
    /// Addresses of the interfaces.
    pub own: &'a dyn Fn() -> Vec<IpAddr>,
    /// Addresses of a name.
    pub resolve: &'a dyn Fn(&str) -> Vec<IpAddr>,
    /// Name of the interface that has an address.
    pub interface: &'a dyn Fn(IpAddr) -> Option<String>,
}

impl Cluster {
    /// Gives the store a port of its own: the one after those of the ranks of the first node.
    pub fn with_separate_master(mut self, from: &(String, String)) -> Result<Self, SpecError> {
        self.master = Some(self.port_after_ranks(1, from)?);
        Ok(self)
    }

    /// Gives the servers of other frameworks the ports after those of the ranks of the first node: torch the first, jax
    /// the second. The numbers do not depend on which of the two are requested.
    pub fn with_framework_servers(
        mut self,
        frameworks: &BTreeSet<Framework>,
        from: &(String, String),
    ) -> Result<Self, SpecError> {
        if FrameworkServers::ports_needed(frameworks) > 0 {
            let (torch, jax) = (self.port_after_ranks(1, from)?, self.port_after_ranks(2, from)?);
            self.servers = FrameworkServers::at(frameworks, &torch.host, [torch.port, jax.port]);
        }
        Ok(self)
    }

    fn port_after_ranks(&self, steps: u16, (field, value): &(String, String)) -> Result<Endpoint, SpecError> {
        let first = &self.nodes[0];
        let last = first.ports.iter().max().copied().unwrap_or(0);
        last.checked_add(steps).map(|port| Endpoint::new(&first.host, port)).ok_or_else(|| {
            let why = format!("leaves no port below 65536 for the store on {}", first.host);
            SpecError::new(field, value, why, "give lower ports")
        })
    }
}

/// The cluster of a fixed list of nodes. `ranks`: on this node, and on each node for which the list has no number.
pub fn from_node_list(list: &FixedNodes, ranks: usize, addresses: &LocalAddresses<'_>) -> Result<Cluster, SpecError> {
    let names: Vec<&str> = list.hosts.iter().map(|host| host.name.as_str()).collect();
    let own = find_own_node(&names, list.own.as_deref(), &list.from, addresses)?;
    let node = |host: &FixedHost| Ok(ClusterNode { host: host.name.clone(), ports: ports(list, host, ranks)? });
    let mut nodes: Vec<ClusterNode> = list.hosts.iter().map(node).collect::<Result<_, SpecError>>()?;
    let listed = nodes[own].ports.len();
    // A platform may list more endpoints than there are ranks. As in Paddle's legacy launcher, the first of each node
    // are used.
    if listed > ranks && nodes.iter().all(|node| node.ports.len() >= ranks) {
        nodes.iter_mut().for_each(|node| node.ports.truncate(ranks));
    } else if listed != ranks {
        let (field, value) = &list.from;
        return Err(SpecError::new(
            field,
            value,
            format!("lists {listed} endpoint(s) on {}, but {ranks} rank(s) are to run there", nodes[own].host),
            "change the list, --nproc_per_node or --devices",
        ));
    }
    let interface = if nodes.len() > 1 { interface(&nodes[own].host, addresses) } else { None };
    Ok(Cluster { interface, ..Cluster::new(nodes, own) })
}

fn interface(host: &str, addresses: &LocalAddresses<'_>) -> Option<String> {
    let ips = host.parse().map_or_else(|_| (addresses.resolve)(host), |ip| vec![ip]);
    ips.into_iter().find_map(addresses.interface)
}

fn ports(list: &FixedNodes, host: &FixedHost, ranks: usize) -> Result<Vec<u16>, SpecError> {
    match &host.ports {
        HostPorts::These(ports) => Ok(ports.clone()),
        HostPorts::From(first) => consecutive_ports(*first, ranks).map_err(|error| {
            SpecError::new(&list.ports_from, first.to_string(), error.to_string(), "give a lower one")
        }),
    }
}

/// The index of this node in the list. `given`: its address, if the user gave it. The third argument is the option or
/// variable with the list, and its value. An address that is not in the list is an error, never the first node.
pub fn find_own_node(
    names: &[&str],
    given: Option<&str>,
    (field, value): &(String, String),
    addresses: &LocalAddresses<'_>,
) -> Result<usize, SpecError> {
    if let Some(own) = given {
        return names.iter().position(|name| is_same_host(name, own)).ok_or_else(|| {
            let why = format!("this node's address is {own} (--host, POD_IP), which is not in the list");
            SpecError::new(field, value, why, "add it, or give --host as in the list")
        });
    }
    let own = (addresses.own)();
    // All of 127.0.0.0/8 is this machine, even if no interface has the address.
    let is_own = |ip: &IpAddr| own.contains(ip) || ip.is_loopback();
    let find = |is_here: &dyn Fn(&str) -> bool| (0..names.len()).filter(|&i| is_here(names[i])).collect::<Vec<_>>();
    let mut here = find(&|name| name.parse().is_ok_and(|ip| is_own(&ip)));
    // Name resolution may be slow, so addresses are tried first.
    if here.is_empty() {
        here = find(&|name| name.parse::<IpAddr>().is_err() && (addresses.resolve)(name).iter().any(is_own));
    }
    match here[..] {
        [one] => Ok(one),
        [] => {
            let found: Vec<String> = own.iter().filter(|ip| !ip.is_loopback()).map(IpAddr::to_string).collect();
            let found = if found.is_empty() { "none but loopback".to_owned() } else { found.join(", ") };
            let why = format!("none of them is an address of this node, which has {found}");
            Err(SpecError::new(field, value, why, "correct the list, or give --host the address of this node in it"))
        }
        _ => {
            let several: Vec<&str> = here.iter().map(|&i| names[i]).collect();
            let why = format!("several of them are addresses of this node: {}", several.join(", "));
            Err(SpecError::new(field, value, why, "give --host the one for this launcher"))
        }
    }
}
