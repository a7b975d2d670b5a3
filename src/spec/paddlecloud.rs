//! Where the ranks of `rlaunch.spawn` listen in a PaddleCloud job: by the variables that the platform sets.

use super::options::Vars;
use super::spawn::{SpawnError, SpawnOptions, ips, python_int};
use super::spawn_nodes::{Nodes, Place, address, consecutive, distinct, not_in_list, place_of};
use crate::model::Endpoint;

/// The port of a node's first rank if nothing says another.
const FIRST_PORT: i64 = 6170;

/// Reads the variables of the platform. `node_ip`: this node's address without them.
pub(super) fn locate(options: &SpawnOptions, vars: &Vars, nprocs: usize, node_ip: &str) -> Result<Nodes, SpawnError> {
    let var = |name| vars.get(name).ok_or_else(|| SpawnError::Assertion(format!("{name} should not be None")));
    let (trainers, pod_ip, id) = (var("PADDLE_TRAINERS")?, var("POD_IP")?, var("PADDLE_TRAINER_ID")?);
    let ports_text = vars.get("TRAINER_PORTS_NUM").ok_or(SpawnError::NoneForInt("TRAINER_PORTS_NUM"))?;
    let ports_num = python_int(ports_text)?;
    let own = python_int(id)?;
    let nodes: Vec<&str> = trainers.split(',').map(address).collect();
    let mut warnings = disagreements(ips(options), node_ip, trainers, pod_ip);
    let told = vars.get("DISTRIBUTED_TRAINER_ENDPOINTS");
    let told = told.map(|list| slices(list, nodes.len(), ports_text, nprocs)).transpose()?;
    if place_of(&nodes, address(pod_ip)).is_none() {
        return Err(SpawnError::Value(not_in_list(pod_ip)));
    }
    let own = usize::try_from(own).ok().filter(|own| *own < nodes.len()).ok_or_else(|| {
        // Paddle's words, which are Python's, and ours.
        let text = format!("list index out of range: PADDLE_TRAINER_ID is {id}, of {} nodes", nodes.len());
        SpawnError::Index(text)
    })?;
    let endpoints = match told {
        Some(list) => list.into_iter().map(endpoint).collect::<Result<_, _>>()?,
        None => {
            let port = first_port(options.started_port, vars, nodes.len(), ports_num, nprocs, &mut warnings);
            consecutive(&nodes, &port, nprocs)?
        }
    };
    let place = Place::Fixed { endpoints: distinct(endpoints)?, first: own * nprocs };
    Ok(Nodes { place, node_ip: node_ip.to_owned(), warnings })
}

/// What the options say and the platform overrules.
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

/// The port of each node's first rank: the platform's, which holds if it is for as many ranks as there are.
fn first_port(
    asked: Option<i64>,
    vars: &Vars,
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
            warnings.push(format!("PADDLE_PORT is '{text}', which is no number: the ports begin at {otherwise}."));
            otherwise
        }
    }
}

/// Of each node's endpoints, `ports_num` of them, the first `nprocs`.
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
        SpawnError::Value(format!("'{text}' in DISTRIBUTED_TRAINER_ENDPOINTS is no endpoint; give host:port"))
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
        fn every_answer_is_whole_and_every_error_names_a_value(
            trainers in list("[a-d]|fd00::[1-3]|\\PC{0,3}"),
            pod_ip in "[a-d]|\\PC{0,3}",
            id in number(),
            ports_num in number(),
            port in prop::option::of(prop_oneof![number(), "[0-9]{4,6}"]),
            told in prop::option::of(list("[a-d]:[1-9]|\\PC{0,5}")),
            started_port in prop::option::of(any::<i64>()),
            nprocs in 0..3usize,
        ) {
            let mut vars = Vars::new();
            let given = [("PADDLE_TRAINERS", &trainers), ("POD_IP", &pod_ip), ("PADDLE_TRAINER_ID", &id), ("TRAINER_PORTS_NUM", &ports_num)];
            let optional = [("PADDLE_PORT", &port), ("DISTRIBUTED_TRAINER_ENDPOINTS", &told)];
            let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
            vars.extend(given.into_iter().chain(optional).map(|(name, value)| (name.to_owned(), value.clone())));
            let options = SpawnOptions { started_port, ..SpawnOptions::default() };
            let nodes = trainers.split(',').count();
            match locate(&options, &vars, nprocs, "a") {
                Ok(Nodes { place: Place::Fixed { endpoints, first }, .. }) => {
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
                    let hosts = bare.iter().copied().chain(told.iter().flat_map(|told| told.split(',')));
                    let hosts = hosts.filter(|host| !host.is_empty()).map(str::to_owned);
                    let asked = started_port.map(|port| port.to_string());
                    let mut values = values.chain(hosts).chain(asked).chain([bare.join(",")]);
                    // The one text without a value is Paddle's own.
                    let own = text.starts_with("current trainer_endpoints size");
                    prop_assert!(own || values.any(|value| !value.is_empty() && text.contains(&value)) || text.contains("''"), "{text}");
                }
            }
        }
    }
}
