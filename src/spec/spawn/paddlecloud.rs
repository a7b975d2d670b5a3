//! The endpoints of the ranks of `rlaunch.spawn` in a PaddleCloud job, from the platform's variables.

use crate::model::Endpoint;
use crate::spec::options::EnvVars;
use crate::spec::spawn::endpoints::{
    SpawnEndpoints, SpawnNodes, address, consecutive, distinct, index_of, not_in_list,
};
use crate::spec::spawn::options::{SpawnError, SpawnOptions, ips, python_int};

/// The default port of a node's first rank.
const FIRST_PORT: i64 = 6170;

/// Reads the platform's variables. `node_ip`: this node's address by the options.
pub(crate) fn locate(
    options: &SpawnOptions,
    vars: &EnvVars,
    nprocs: usize,
    node_ip: &str,
) -> Result<SpawnNodes, SpawnError> {
    let var = |name| vars.get(name).ok_or_else(|| SpawnError::Assertion(format!("{name} should not be None")));
    let (trainers, pod_ip, id) = (var("PADDLE_TRAINERS")?, var("POD_IP")?, var("PADDLE_TRAINER_ID")?);
    let ports_text = vars.get("TRAINER_PORTS_NUM").ok_or(SpawnError::NoneForInt("TRAINER_PORTS_NUM"))?;
    let ports_num = python_int(ports_text)?;
    let own = python_int(id)?;
    let nodes: Vec<&str> = trainers.split(',').map(address).collect();
    let mut warnings = disagreements(ips(options), node_ip, trainers, pod_ip);
    let listed = vars.get("DISTRIBUTED_TRAINER_ENDPOINTS");
    let listed = listed.map(|list| slices(list, nodes.len(), ports_text, nprocs)).transpose()?;
    if index_of(&nodes, address(pod_ip)).is_none() {
        return Err(SpawnError::Value(not_in_list(pod_ip)));
    }
    let own = usize::try_from(own).ok().filter(|own| *own < nodes.len()).ok_or_else(|| {
        // Paddle's text, which is Python's, with the values.
        let text = format!("list index out of range: PADDLE_TRAINER_ID is {id}, of {} nodes", nodes.len());
        SpawnError::Index(text)
    })?;
    let endpoints = match listed {
        Some(list) => list.into_iter().map(endpoint).collect::<Result<_, _>>()?,
        None => {
            let port = first_port(options.started_port, vars, nodes.len(), ports_num, nprocs, &mut warnings);
            consecutive(&nodes, &port, nprocs)?
        }
    };
    let endpoints = SpawnEndpoints::Fixed { endpoints: distinct(endpoints)?, first: own * nprocs };
    Ok(SpawnNodes { endpoints, node_ip: node_ip.to_owned(), warnings })
}

/// Warnings about options that the platform overrides.
fn disagreements(ips: &str, node_ip: &str, trainers: &str, pod_ip: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    if pod_ip != "127.0.0.1" && pod_ip != node_ip {
        warnings.push(format!(
            "Please NOTE: When using paddlecloud, node_ip is automatically got from POD_IP. Your input node_ip: {node_ip} \
             doesn't equals to node_ip: {pod_ip} from paddlecloud environment."
        ));
    }
    if ips != "127.0.0.1" && ips != trainers {
        let list: Vec<String> = trainers.split(',').map(|ip| format!("'{ip}'")).collect();
        warnings.push(format!(
            "Please NOTE: When using paddlecloud, cluster_node_ips is automatically got from PADDLE_TRAINERS(multi nodes) \
             or POD_IP(single node).Your input cluster_node_ips: {ips} doesn't equals to IPs: [{}] from paddlecloud \
             environment.",
            list.join(", ")
        ));
    }
    warnings
}

/// The port of each node's first rank: the platform's, if it has enough ports for the ranks.
fn first_port(
    asked: Option<i64>,
    vars: &EnvVars,
    nodes: usize,
    ports_num: i64,
    nprocs: usize,
    warnings: &mut Vec<String>,
) -> String {
    let otherwise = asked.unwrap_or(FIRST_PORT).to_string();
    let Some(text) = vars.get("PADDLE_PORT").filter(|_| nodes > 1) else { return otherwise };
    let enough = usize::try_from(ports_num).is_ok_and(|ports| ports >= nprocs);
    match python_int(text) {
        Ok(port) if enough && asked != Some(port) => {
            warnings.push(format!("Use Cloud specified port:{port}."));
            text.clone()
        }
        Ok(_) => otherwise,
        Err(_) => {
            warnings.push(format!("PADDLE_PORT is '{text}', which is not a number: the ports begin at {otherwise}."));
            otherwise
        }
    }
}

/// The first `nprocs` of each node's `ports_num` endpoints.
fn slices<'a>(list: &'a str, nodes: usize, ports_num: &str, nprocs: usize) -> Result<Vec<&'a str>, SpawnError> {
    let all: Vec<&str> = list.split(',').collect();
    let each = usize::try_from(python_int(ports_num)?).ok().filter(|each| nodes.checked_mul(*each) == Some(all.len()));
    let each = each.ok_or_else(|| {
        SpawnError::Assertion(format!(
            "DISTRIBUTED_TRAINER_ENDPOINTS has {} endpoints; PADDLE_TRAINERS has {nodes} nodes, and TRAINER_PORTS_NUM, \
             the number of endpoints of each, is {ports_num}",
            all.len()
        ))
    })?;
    if each < nprocs {
        let text = "current trainer_endpoints size should be greater equal than selected_gpus size.";
        return Err(SpawnError::Assertion(text.into()));
    }
    Ok(all.chunks(each).flat_map(|node| &node[..nprocs]).copied().collect())
}

fn endpoint(text: &str) -> Result<Endpoint, SpawnError> {
    Endpoint::parse(text.trim()).filter(|endpoint| endpoint.port > 0).ok_or_else(|| {
        SpawnError::Value(format!("'{text}' in DISTRIBUTED_TRAINER_ENDPOINTS is not an endpoint; give host:port"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number() -> impl Strategy<Value = String> {
        prop_oneof![4 => "[0-4]", 1 => "-?[0-9_]{1,25}", 1 => "\\PC{0,3}"]
    }

    fn list(one: &'static str) -> impl Strategy<Value = String> {
        prop::collection::vec(one, 1..6).prop_map(|list| list.join(","))
    }

    proptest! {
        #[test]
        fn results_are_complete_and_errors_name_a_value(
            trainers in list("[a-d]|fd00::[1-3]|\\PC{0,3}"),
            pod_ip in "[a-d]|\\PC{0,3}",
            id in number(),
            ports_num in number(),
            port in prop::option::of(prop_oneof![number(), "[0-9]{4,6}"]),
            listed in prop::option::of(list("[a-d]:[1-9]|\\PC{0,5}")),
            started_port in prop::option::of(any::<i64>()),
            nprocs in 0..3usize,
        ) {
            let mut vars = EnvVars::new();
            let given = [("PADDLE_TRAINERS", &trainers), ("POD_IP", &pod_ip), ("PADDLE_TRAINER_ID", &id), ("TRAINER_PORTS_NUM", &ports_num)];
            let optional = [("PADDLE_PORT", &port), ("DISTRIBUTED_TRAINER_ENDPOINTS", &listed)];
            let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
            vars.extend(given.into_iter().chain(optional).map(|(name, value)| (name.to_owned(), value.clone())));
            let options = SpawnOptions { started_port, ..SpawnOptions::default() };
            let nodes = trainers.split(',').count();
            match locate(&options, &vars, nprocs, "a") {
                Ok(SpawnNodes { endpoints: SpawnEndpoints::Fixed { endpoints, first }, .. }) => {
                    prop_assert_eq!(endpoints.len(), nodes * nprocs);
                    prop_assert!(first + nprocs <= endpoints.len());
                    prop_assert!(endpoints.iter().all(|endpoint| endpoint.port > 0));
                }
                Ok(other) => prop_assert!(false, "{other:?}"),
                Err(SpawnError::NotInt(text)) => prop_assert!(text == id || text == ports_num),
                Err(error) => {
                    let text = error.to_string();
                    let values = [&pod_ip, &id, &ports_num].into_iter().chain(&port).cloned();
                    let bare = trainers.split(',').map(address).collect::<Vec<_>>();
                    let hosts = bare.iter().copied().chain(listed.iter().flat_map(|listed| listed.split(',')));
                    let hosts = hosts.filter(|host| !host.is_empty()).map(str::to_owned);
                    let asked = started_port.map(|port| port.to_string());
                    let mut values = values.chain(hosts).chain(asked).chain([bare.join(",")]);
                    // Paddle's own text has no value.
                    let own = text.starts_with("current trainer_endpoints size");
                    prop_assert!(own || values.any(|value| !value.is_empty() && text.contains(&value)) || text.contains("''"), "{text}");
                }
            }
        }
    }
}
