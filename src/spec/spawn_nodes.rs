//! Where the ranks of `rlaunch.spawn` listen, on one node or on several, and which of them is this one.

use super::nodes::{bare, is_on_paddlecloud, same};
use super::options::Vars;
use super::paddlecloud;
use super::spawn::{Backend, SpawnError, SpawnOptions, ips, python_int};
use crate::model::{Endpoint, endpoint};
use std::collections::HashMap;

/// Where the ranks listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On one node, on ports that are free.
    Free {
        /// Its address.
        host: String,
    },
    /// On endpoints that every node comes to by itself.
    Fixed {
        /// Those of all ranks, by rank: one node's after another's.
        endpoints: Vec<Endpoint>,
        /// The number of this node's first rank.
        first: usize,
    },
}

/// What the options and variables say of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Where the ranks listen.
    pub place: Place,
    /// This node's address, as `print_config` shows it.
    pub node_ip: String,
    /// What is to be logged.
    pub warnings: Vec<String>,
}

/// The last checks, once the devices are settled: addresses and ports of `nprocs` ranks on each node. `here`: the address
/// of this machine's name, and then those of its interfaces; looked at only if there are several nodes and no `node_ip`.
pub fn locate(
    backend: Backend,
    options: &SpawnOptions,
    vars: &Vars,
    nprocs: usize,
    here: &[String],
) -> Result<Nodes, SpawnError> {
    let trainers = vars.get("PADDLE_TRAINERS_NUM").map_or(Ok(1), |text| python_int(text))?;
    let cloud = options.use_paddlecloud.unwrap_or_else(|| is_on_paddlecloud(vars));
    let nodes: Vec<&str> = ips(options).split(',').map(address).collect();
    // What gloo does not look at.
    let (node_ip, started_port) = match backend {
        Backend::Gloo => (None, vars.get("FLAGS_START_PORT").cloned()),
        _ => (options.node_ip.as_deref(), options.started_port.map(|port| port.to_string())),
    };
    if backend != Backend::Gloo && cloud && trainers != 1 {
        let single = (nodes.len() == 1).then(|| ips(options).trim());
        let by_name = || here.first().map_or("", String::as_str);
        return paddlecloud::locate(options, vars, nprocs, node_ip.or(single).unwrap_or_else(by_name));
    }
    let own = own(&nodes, node_ip, here)?;
    let place = match started_port {
        None if !cloud && nodes.len() == 1 => Place::Free { host: nodes[0].to_owned() },
        port => {
            let endpoints = consecutive(&nodes, port.as_deref().unwrap_or("6070"), nprocs)?;
            Place::Fixed { endpoints: distinct(endpoints)?, first: own * nprocs }
        }
    };
    Ok(Nodes { place, node_ip: nodes[own].to_owned(), warnings: Vec::new() })
}

/// An address of a list, without the brackets that one of IPv6 may stand in.
pub(super) fn address(text: &str) -> &str {
    bare(text.trim())
}

/// The place of an address in a list, however its zeroes are written.
pub(super) fn place_of(nodes: &[&str], ip: &str) -> Option<usize> {
    nodes.iter().position(|node| same(node, bare(ip)))
}

/// Paddle's words, which are Python's.
pub(super) fn not_in_list(ip: &str) -> String {
    format!("'{ip}' is not in list")
}

/// Which node this is: the one that was named, else the one that this machine's addresses leave no doubt of.
fn own(nodes: &[&str], node_ip: Option<&str>, here: &[String]) -> Result<usize, SpawnError> {
    if let Some(ip) = node_ip {
        return place_of(nodes, ip).ok_or_else(|| SpawnError::Value(not_in_list(ip)));
    }
    if nodes.len() == 1 {
        return Ok(0);
    }
    let Some((by_name, interfaces)) = here.split_first() else {
        return Err(SpawnError::Value("node_ip is needed: this machine's own addresses are not known".into()));
    };
    if let Some(own) = place_of(nodes, by_name) {
        return Ok(own);
    }
    let listed: Vec<(usize, &str)> = interfaces.iter().filter_map(|ip| Some((place_of(nodes, ip)?, &**ip))).collect();
    let line = match listed.as_slice() {
        [(own, _)] => return Ok(*own),
        [] => format!(
            "this machine has {}, none of which is in the list; give node_ip, its address in the list",
            interfaces.join(", ")
        ),
        several => format!(
            "this machine has {}, all of them in the list; give node_ip, the one that is meant",
            several.iter().map(|(_, ip)| *ip).collect::<Vec<_>>().join(", ")
        ),
    };
    Err(SpawnError::Value(format!("{}\n{line}", not_in_list(by_name))))
}

/// The same ports on every node, from `first` on.
pub(super) fn consecutive(nodes: &[&str], first: &str, nprocs: usize) -> Result<Vec<Endpoint>, SpawnError> {
    if nodes.len() > 1 && nodes.contains(&"") {
        return Err(SpawnError::Value(format!(
            "'{}' has an address that is empty; leave out the comma",
            nodes.join(",")
        )));
    }
    let port = u16::try_from(python_int(first)?).ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| SpawnError::Value(format!("{first} is no port; give a number from 1 to 65535")))?;
    let ports = endpoint::consecutive(port, nprocs).map_err(|why| SpawnError::Runtime(format!("port {port} {why}")))?;
    Ok(nodes.iter().flat_map(|node| ports.iter().map(|port| Endpoint::new(*node, *port))).collect())
}

/// Refuses endpoints of which two are the same: the ranks would wait for one that never comes.
pub(super) fn distinct(endpoints: Vec<Endpoint>) -> Result<Vec<Endpoint>, SpawnError> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use proptest::prelude::*;

    fn list() -> impl Strategy<Value = String> {
        let ip =
            prop_oneof![Just("10.0.0.1".to_owned()), Just("fd00::2".to_owned()), "[0-9a-f:.\\[\\] ]{0,8}", "\\PC{0,4}"];
        prop::collection::vec(ip, 1..4).prop_map(|ips| ips.join(","))
    }

    proptest! {
        #[test]
        fn every_answer_is_whole_and_every_error_names_a_value(
            ips in list(),
            node_ip in prop::option::of(list()),
            started_port in prop::option::of(prop_oneof![1..65536i64, any::<i64>()]),
            use_paddlecloud in prop::option::of(Just(false)),
            trainers in prop::option::of("1|\\PC{0,3}"),
            nprocs in 0..4usize,
            here in prop::collection::vec(list(), 0..3),
        ) {
            let options = SpawnOptions { ips: Some(ips.clone()), node_ip: node_ip.clone(), started_port, use_paddlecloud, ..SpawnOptions::default() };
            let vars: Vars = trainers.iter().map(|text| ("PADDLE_TRAINERS_NUM".to_owned(), text.clone())).collect();
            match locate(Backend::Nccl, &options, &vars, nprocs, &here) {
                Ok(Nodes { place: Place::Free { host }, .. }) => prop_assert_eq!(host, address(&ips)),
                Ok(Nodes { place: Place::Fixed { endpoints, first }, node_ip, .. }) => {
                    let nodes = ips.split(',').count();
                    prop_assert_eq!(endpoints.len(), nodes * nprocs);
                    let own = &endpoints[first..first + nprocs];
                    prop_assert!(own.iter().all(|endpoint| endpoint.host == node_ip));
                }
                Err(SpawnError::NotInt(text)) => prop_assert_eq!(Some(text), trainers),
                Err(error) => {
                    let text = error.to_string();
                    let port = started_port.map(|port| port.to_string());
                    let bare = ips.split(',').map(address).collect::<Vec<_>>();
                    let hosts = bare.iter().filter(|host| !host.is_empty()).map(|host| Endpoint::new(*host, 1).to_string());
                    let mut values: Vec<String> = hosts.map(|host| format!("{}:", &host[..host.len() - 2])).collect();
                    values.extend(node_ip.or_else(|| here.first().cloned()).map(|ip| not_in_list(&ip)));
                    values.extend(port.into_iter().chain([bare.join(",")]));
                    prop_assert!(values.iter().any(|value| text.contains(value)) || here.is_empty(), "{text}");
                }
            }
        }
    }

    #[test]
    fn two_ranks_never_listen_at_one_place() {
        let options = SpawnOptions { ips: Some("a,b,a".into()), node_ip: Some("b".into()), ..SpawnOptions::default() };
        let error = locate(Backend::Nccl, &options, &Vars::new(), 2, &[]).unwrap_err();
        let text = "ranks 0 and 4 would both listen on a:6070; each needs an endpoint of its own";
        assert_eq!(error, SpawnError::Value(text.into()));
    }

    #[test]
    fn a_machine_that_knows_nothing_of_itself_is_told_what_to_give() {
        let options = SpawnOptions { ips: Some("a,b".into()), ..SpawnOptions::default() };
        let error = locate(Backend::Nccl, &options, &Vars::new(), 2, &[]).unwrap_err();
        assert!(error.to_string().starts_with("node_ip is needed"), "{error}");
    }
}
