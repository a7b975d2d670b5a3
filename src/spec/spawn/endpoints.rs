//! The endpoints of the ranks of `rlaunch.spawn`: their types, and lists of them from addresses and ports.

use crate::model::{Endpoint, endpoint};
use crate::spec::endpoints::{is_same_host, without_brackets};
use crate::spec::spawn::options::{SpawnError, python_int};
use std::collections::HashMap;

/// The endpoints of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpawnEndpoints {
    /// Free ports on one node.
    Free {
        /// The node's address.
        host: String,
    },
    /// Endpoints that every node derives from the same options.
    Fixed {
        /// The endpoints of all ranks, node after node.
        endpoints: Vec<Endpoint>,
        /// The global rank of this node's first rank.
        first: usize,
    },
}

/// The nodes, from options and variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnNodes {
    /// The endpoints of the ranks.
    pub endpoints: SpawnEndpoints,
    /// This node's address, as `print_config` shows it.
    pub node_ip: String,
    /// Messages to log.
    pub warnings: Vec<String>,
}

/// An item of a list of addresses, without blanks and without the brackets of IPv6.
pub(crate) fn address(text: &str) -> &str {
    without_brackets(text.trim())
}

/// The index of an address in a list, in any spelling.
pub(crate) fn index_of(nodes: &[&str], ip: &str) -> Option<usize> {
    nodes.iter().position(|node| is_same_host(node, without_brackets(ip)))
}

/// Paddle's text, which is Python's.
pub(crate) fn not_in_list(ip: &str) -> String {
    format!("'{ip}' is not in list")
}

/// The endpoints of `nprocs` ranks on each node, with the same ports from `first`.
pub(crate) fn consecutive(nodes: &[&str], first: &str, nprocs: usize) -> Result<Vec<Endpoint>, SpawnError> {
    if nodes.len() > 1 && nodes.contains(&"") {
        return Err(SpawnError::Value(format!("'{}' has an empty address; leave out the comma", nodes.join(","))));
    }
    let port = u16::try_from(python_int(first)?).ok().filter(|port| *port > 0);
    let port =
        port.ok_or_else(|| SpawnError::Value(format!("{first} is not a port; give a number from 1 to 65535")))?;
    let ports =
        endpoint::consecutive_ports(port, nprocs).map_err(|why| SpawnError::Runtime(format!("port {port} {why}")))?;
    Ok(nodes.iter().flat_map(|node| ports.iter().map(|port| Endpoint::new(*node, *port))).collect())
}

/// Refuses equal endpoints: the ranks would wait for ever for a missing one.
pub(crate) fn distinct(endpoints: Vec<Endpoint>) -> Result<Vec<Endpoint>, SpawnError> {
    let mut seen = HashMap::new();
    for (rank, endpoint) in endpoints.iter().enumerate() {
        if let Some(other) = seen.insert(endpoint, rank) {
            return Err(SpawnError::Value(format!(
                "ranks {other} and {rank} would both listen on {endpoint}; each needs an endpoint of its own"
            )));
        }
    }
    Ok(endpoints)
}
