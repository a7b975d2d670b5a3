//! The nodes of `rlaunch.spawn`, which of them is this one, and the endpoints of the ranks.

use crate::spec::options::EnvVars;
use crate::spec::paddle::nodes::is_on_paddlecloud;
use crate::spec::spawn::endpoints::{
    SpawnEndpoints, SpawnNodes, address, consecutive, distinct, index_of, not_in_list,
};
use crate::spec::spawn::options::{SpawnBackend, SpawnError, SpawnOptions, ips, python_int};
use crate::spec::spawn::paddlecloud;

/// Determines the endpoints of `nprocs` ranks on each node. `here`: the address of this machine's name, then those of its
/// interfaces; used only for several nodes without `node_ip`.
pub fn locate(
    backend: SpawnBackend,
    options: &SpawnOptions,
    vars: &EnvVars,
    nprocs: usize,
    here: &[String],
) -> Result<SpawnNodes, SpawnError> {
    let trainers = vars.get("PADDLE_TRAINERS_NUM").map_or(Ok(1), |text| python_int(text))?;
    let cloud = options.use_paddlecloud.unwrap_or_else(|| is_on_paddlecloud(vars));
    let nodes: Vec<&str> = ips(options).split(',').map(address).collect();
    // gloo ignores both options.
    let (node_ip, started_port) = match backend {
        SpawnBackend::Gloo => (None, vars.get("FLAGS_START_PORT").cloned()),
        _ => (options.node_ip.as_deref(), options.started_port.map(|port| port.to_string())),
    };
    if backend != SpawnBackend::Gloo && cloud && trainers != 1 {
        let single = (nodes.len() == 1).then(|| ips(options).trim());
        let by_name = || here.first().map_or("", String::as_str);
        return paddlecloud::locate(options, vars, nprocs, node_ip.or(single).unwrap_or_else(by_name));
    }
    let own = own_index(&nodes, node_ip, here)?;
    let endpoints = match started_port {
        None if !cloud && nodes.len() == 1 => SpawnEndpoints::Free { host: nodes[0].to_owned() },
        port => {
            let all = consecutive(&nodes, port.as_deref().unwrap_or("6070"), nprocs)?;
            SpawnEndpoints::Fixed { endpoints: distinct(all)?, first: own * nprocs }
        }
    };
    Ok(SpawnNodes { endpoints, node_ip: nodes[own].to_owned(), warnings: Vec::new() })
}

/// The index of this node: by `node_ip`, else by this machine's addresses if only one of them is in the list.
fn own_index(nodes: &[&str], node_ip: Option<&str>, here: &[String]) -> Result<usize, SpawnError> {
    if let Some(ip) = node_ip {
        return index_of(nodes, ip).ok_or_else(|| SpawnError::Value(not_in_list(ip)));
    }
    if nodes.len() == 1 {
        return Ok(0);
    }
    let Some((by_name, interfaces)) = here.split_first() else {
        return Err(SpawnError::Value("node_ip is missing: this machine's own addresses are unknown".into()));
    };
    if let Some(own) = index_of(nodes, by_name) {
        return Ok(own);
    }
    let listed: Vec<(usize, &str)> = interfaces.iter().filter_map(|ip| Some((index_of(nodes, ip)?, &**ip))).collect();
    let line = match listed.as_slice() {
        [(own, _)] => return Ok(*own),
        [] if interfaces.is_empty() => {
            "this machine has no address on any interface; give this node's address in node_ip".to_owned()
        }
        [] => format!(
            "this machine has {}, none of which is in the list; give this node's address in node_ip",
            interfaces.join(", ")
        ),
        several => format!(
            "this machine has {}, all of them in the list; give this node's address in node_ip",
            several.iter().map(|(_, ip)| *ip).collect::<Vec<_>>().join(", ")
        ),
    };
    Err(SpawnError::Value(format!("{}\n{line}", not_in_list(by_name))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::model::Endpoint;
    use proptest::prelude::*;

    fn list() -> impl Strategy<Value = String> {
        let ip =
            prop_oneof![Just("10.0.0.1".to_owned()), Just("fd00::2".to_owned()), "[0-9a-f:.\\[\\] ]{0,8}", "\\PC{0,4}"];
        prop::collection::vec(ip, 1..4).prop_map(|ips| ips.join(","))
    }

    proptest! {
        #[test]
        fn results_are_complete_and_errors_name_a_value(
            ips in list(),
            node_ip in prop::option::of(list()),
            started_port in prop::option::of(prop_oneof![1..65536i64, any::<i64>()]),
            use_paddlecloud in prop::option::of(Just(false)),
            trainers in prop::option::of("1|\\PC{0,3}"),
            nprocs in 0..4usize,
            here in prop::collection::vec(list(), 0..3),
        ) {
            let options = SpawnOptions { ips: Some(ips.clone()), node_ip: node_ip.clone(), started_port, use_paddlecloud, ..SpawnOptions::default() };
            let vars: EnvVars = trainers.iter().map(|text| ("PADDLE_TRAINERS_NUM".to_owned(), text.clone())).collect();
            match locate(SpawnBackend::Nccl, &options, &vars, nprocs, &here) {
                Ok(SpawnNodes { endpoints: SpawnEndpoints::Free { host }, .. }) => prop_assert_eq!(host, address(&ips)),
                Ok(SpawnNodes { endpoints: SpawnEndpoints::Fixed { endpoints, first }, node_ip, .. }) => {
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
    fn two_ranks_never_share_an_endpoint() {
        let options = SpawnOptions { ips: Some("a,b,a".into()), node_ip: Some("b".into()), ..SpawnOptions::default() };
        let error = locate(SpawnBackend::Nccl, &options, &EnvVars::new(), 2, &[]).unwrap_err();
        let text = "ranks 0 and 4 would both listen on a:6070; each needs an endpoint of its own";
        assert_eq!(error, SpawnError::Value(text.into()));
    }

    #[test]
    fn a_machine_without_known_addresses_needs_node_ip() {
        let options = SpawnOptions { ips: Some("a,b".into()), ..SpawnOptions::default() };
        let error = locate(SpawnBackend::Nccl, &options, &EnvVars::new(), 2, &[]).unwrap_err();
        assert!(error.to_string().starts_with("node_ip is missing"), "{error}");
    }
}
