//! Port leases of a job on this node: ports of ranks, masters and parameter servers, held until the job is over.

use crate::model::endpoint;
use crate::model::endpoint::PortRangeError;
use crate::plan::cluster::{self, Cluster, LocalAddresses};
use crate::plan::env::frameworks::FrameworkServers;
use crate::plan::ps::{self, PsLayout};
use crate::probe::net;
use crate::spec::endpoints::ListenAddress;
use crate::spec::paddle::job::JobKind;
use crate::spec::paddle::nodes::{JobNodes, SingleNodePorts};
use crate::spec::paddle::ps::PsProcesses;
use crate::spec::{LaunchSpec, SpecError};
use crate::sys::io::ports::{PortBusy, PortLease};
use crate::sys::random;
use thiserror::Error;

/// Why fixed ports cannot be leased.
#[derive(Debug, Error)]
pub enum PortsError {
    /// The ports exceed 65535.
    #[error("port {first} {source}")]
    Range {
        /// The first port.
        first: u16,
        /// Why.
        source: PortRangeError,
    },
    /// A port is in use.
    #[error(transparent)]
    Busy(#[from] PortBusy),
}

/// Builds the cluster of a job with `ranks` ranks on this node, and leases its ports on this node.
pub fn lease_cluster(spec: &LaunchSpec, ranks: usize) -> Result<(Cluster, Vec<PortLease>), SpecError> {
    match &spec.nodes {
        JobNodes::Fixed(list) => {
            let addresses =
                LocalAddresses { own: &net::addresses, resolve: &net::resolve, interface: &net::interface_of };
            let mut cluster = cluster::from_node_list(list, ranks, &addresses)?;
            if spec.job == JobKind::Rpc {
                cluster = cluster.with_separate_master(&list.from)?;
            }
            cluster = cluster.with_framework_servers(&spec.frameworks, &list.from)?;
            let busy =
                |why: String| SpecError::new(&list.ports_from, "", why, "choose other ports, the same on each node");
            let master = cluster.master.iter().map(|master| master.port);
            let first = master.chain(cluster.servers.ports()).filter(|_| cluster.own == 0);
            let ports = cluster.own_ports().iter().copied().chain(first);
            let held = ports.map(|port| PortLease::fixed(port).map_err(|e| busy(e.to_string())));
            let held = held.collect::<Result<_, _>>()?;
            Ok((cluster, held))
        }
        JobNodes::One { host, ports } => {
            let more = FrameworkServers::ports_needed(&spec.frameworks);
            let held = match *ports {
                SingleNodePorts::Range { low, high } => free(low, high, ranks + 1 + more)?,
                SingleNodePorts::Fixed { first, low, high } => {
                    let field = "FLAGS_FIXED_PORT";
                    let hint = "choose another port, or omit it to use free ports";
                    let of_ranks = consecutive(first, ranks)
                        .map_err(|error| SpecError::new(field, first.to_string(), error.to_string(), hint))?;
                    let mut held = free(low, high, 1 + more)?;
                    held.extend(of_ranks);
                    held
                }
            };
            let mut ports: Vec<u16> = held.iter().map(PortLease::port).collect();
            let master = ports.remove(0);
            let of_ranks = ports.split_off(more);
            let mut cluster = Cluster::single_node(host, of_ranks, Some(master));
            if let [torch, jax] = ports[..] {
                cluster.servers = FrameworkServers::at(&spec.frameworks, host, [torch, jax]);
            }
            Ok((cluster, held))
        }
    }
}

/// Leases a free port.
pub fn lease_any() -> Result<PortLease, SpecError> {
    PortLease::any()
        .map_err(|error| SpecError::new("a free port", "", error.to_string(), "stop programs that hold ports"))
}

/// This node's address among those of a job with parameter servers, and the number of its processes on this node.
pub fn find_own_processes(laid: &PsProcesses) -> Result<(String, usize), SpecError> {
    let own = ps::find_own_address(
        laid,
        &LocalAddresses { own: &net::addresses, resolve: &net::resolve, interface: &net::interface_of },
    )?;
    let here = laid.addresses().filter(|place| place.host == own).count();
    Ok((own, here))
}

/// Builds the layout of a job with parameter servers and leases its ports on this node. Also returns a warning for the user.
pub fn lease_layout(
    spec: &LaunchSpec,
    laid: &PsProcesses,
    own: &str,
) -> Result<(PsLayout, Vec<PortLease>, Option<String>), SpecError> {
    let (low, high) = match &spec.nodes {
        JobNodes::One {
            ports: SingleNodePorts::Range { low, high } | SingleNodePorts::Fixed { low, high, .. },
            ..
        } => (*low, *high),
        JobNodes::Fixed(_) => (1, u16::MAX),
    };
    let wanted = laid.addresses().chain([&laid.http]).filter(|place| place.port.is_none()).count();
    let mut held = free(low, high, wanted)?;
    let ports: Vec<u16> = held.iter().map(PortLease::port).collect();
    let too_few = || SpecError::new("PORT_RANGE", format!("{low}:{high}"), "has too few ports", "widen the range");
    let layout = ps::layout(laid, own, &ports).ok_or_else(too_few)?;
    let chosen = |place: &&ListenAddress| place.host == own && place.port.is_some();
    for place in laid.addresses().filter(chosen) {
        held.push(lease_address(place)?);
    }
    let mut warning = None;
    if let Some(http) = Some(&laid.http).filter(chosen) {
        match lease_address(http) {
            Ok(lease) => held.push(lease),
            Err(busy) if laid.http_is_given => return Err(busy),
            // Most jobs do not use this port.
            Err(busy) => warning = Some(format!("{busy}: only jobs that use gloo need it (--gloo_port)")),
        }
    }
    Ok((layout, held, warning))
}

fn lease_address(place: &ListenAddress) -> Result<PortLease, SpecError> {
    let port = place.port.unwrap_or(0);
    let hint = "choose another port, the same on each node";
    let refuse =
        |busy: PortBusy| SpecError::new("the endpoint", format!("{}:{port}", place.host), busy.to_string(), hint);
    PortLease::fixed(port).map_err(refuse)
}

/// Leases `count` ports from `first` on.
pub fn consecutive(first: u16, count: usize) -> Result<Vec<PortLease>, PortsError> {
    let ports = endpoint::consecutive_ports(first, count).map_err(|source| PortsError::Range { first, source })?;
    lease_each(ports.into_iter())
}

/// Leases these ports.
pub fn lease_each(ports: impl Iterator<Item = u16>) -> Result<Vec<PortLease>, PortsError> {
    ports.map(|port| Ok(PortLease::fixed(port)?)).collect()
}

/// Leases `count` free ports of a range, starting at a random port and wrapping around.
fn free(low: u16, high: u16, count: usize) -> Result<Vec<PortLease>, SpecError> {
    let span = usize::from(high - low) + 1;
    let start = random::rng().usize(..span);
    let mut held = Vec::new();
    for step in 0..span {
        if held.len() == count {
            return Ok(held);
        }
        if let Ok(lease) = PortLease::fixed(low + ((start + step) % span) as u16) {
            held.push(lease);
        }
    }
    if held.len() == count {
        return Ok(held);
    }
    Err(SpecError::new(
        "PORT_RANGE",
        format!("{low}:{high}"),
        format!("has {} free ports, {count} are needed", held.len()),
        "widen the range, or start fewer ranks",
    ))
}
