//! torchrun's options about nodes and the rendezvous.

use crate::model::Endpoint;
use crate::spec::endpoints;
use crate::spec::error::{SpecError, shown};
use crate::spec::options::OptValues;
use crate::spec::rendezvous;
use crate::spec::rendezvous::{BackendSpec, ElasticLevel, EtcdSpec, MAX_NODES, OptionNames, Secret};
use crate::spec::torchrun::values;
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// The rendezvous of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TorchrunBackend {
    /// None: a single node, with a free port.
    Alone,
    /// Node 0's store.
    Static {
        /// Node 0's address; an IPv6 address without brackets.
        host: String,
        /// Its port; 0, a free one, only for one node.
        port: u16,
        /// This node's number.
        node_rank: usize,
        /// Whether the user has given it: 0 is the default, and node 0 serves the store.
        is_numbered: bool,
        /// The time limit.
        timeout: Duration,
    },
    /// A master that one of the nodes serves (c10d), or etcd; nodes may join and leave.
    Dynamic(Box<rendezvous::RendezvousSpec>),
}

/// The checked options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorchrunNodes {
    /// Minimum and maximum number of nodes.
    pub nodes: (usize, usize),
    /// The rendezvous.
    pub rendezvous: TorchrunBackend,
    /// The job's name; `None`: a new one for each run.
    pub run_id: Option<String>,
    /// The name that commands know the job by, where torchrun drops the one that was given; `None`: the run id.
    pub name: Option<String>,
    /// The name of the backend in events.
    pub backend: String,
}

/// Backends of elastic jobs.
const DYNAMIC: [&str; 3] = ["c10d", "etcd-v2", "etcd"];
/// Keys of `--rdzv-conf` that are whole numbers of seconds or tries.
const WHOLE: [&str; 6] = [
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
];
/// The other keys, also those without effect in rlaunch.
const OTHER: [&str; 16] = [
    "etcd_loss_timeout",
    "timeout",
    "read_timeout",
    "is_host",
    "store_type",
    "use_libuv",
    "protocol",
    "etcd_prefix",
    "ca_cert",
    "cacert",
    "ssl_cert",
    "cert",
    "ssl_cert_key",
    "key",
    "user",
    "password",
];
/// The options that errors name.
const NAMES: OptionNames =
    OptionNames { address: "--rdzv-endpoint", host: "--local-addr", join_timeout: "--rdzv-conf join_timeout=SECONDS" };
const DEFAULT_TIMEOUT: i64 = 900;
const DEFAULT_PORT: &str = "29500";
/// The default ports of torch's c10d and of etcd.
const C10D_PORT: u16 = 29400;
const ETCD_PORT: u16 = 2379;

/// Reads and checks the options. `warnings` receives messages for the user.
pub fn check(values: &OptValues, warnings: &mut Vec<String>) -> Result<TorchrunNodes, SpecError> {
    let (min, max) = nodes(values)?;
    let conf = conf(values)?;
    let node_rank = values::whole(values, "node-rank")?.unwrap_or(0);
    values::whole(values, "master-port")?;
    rendezvous::require_same(values, "require-same")?;
    let endpoint = values.text("rdzv-endpoint").unwrap_or("").trim();
    let asked = values.text("rdzv-backend").unwrap_or("static");
    let standalone = values::flag(values, "standalone")?;
    // torchrun's default for a single node.
    let plain = asked == "static" && endpoint.is_empty() && values.text("master-port").is_none() && max == 1;
    let backend = if standalone || plain { "c10d" } else { asked };
    if backend != "static" {
        // Nodes that meet later have the numbers that users give them.
        if node_rank != 0 && (max == 1 || standalone) {
            warnings.push(format!(
                "node_rank is only used for static rdzv_backend. It will be ignored for rdzv_backend={}.",
                shown(backend)
            ));
        }
        if values.given("master-addr").is_some() && endpoint.is_empty() && !standalone && !plain {
            warnings.push(
                "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.".into(),
            );
        }
    }
    let run_id = values.text("rdzv-id").unwrap_or("none").to_owned();
    // torchrun drops it on a single node, so the ranks do not see it.
    let name = values.given("rdzv-id").filter(|_| standalone || plain).map(|_| run_id.clone());
    let run_id = (!standalone && !plain).then_some(run_id);
    if run_id.as_ref().is_some_and(|id| id.contains('/')) {
        return Err(values.error("rdzv-id", "cannot be part of a file name", "leave out the /"));
    }
    let rendezvous = match backend {
        "static" => {
            if max > 1 && values.given("job-secret").is_some_and(|secret| !secret.is_empty()) {
                let field = values.field("job-secret");
                warnings.push(format!("{field} has no effect on a static rendezvous, whose store has no password"));
            }
            fixed(values, (min, max), node_rank, &conf)?
        }
        known if DYNAMIC.contains(&known) && max > 1 && !standalone => {
            dynamic(values, (min, max), (known, node_rank), &conf, warnings)?
        }
        known if DYNAMIC.contains(&known) => single_node(values, max, &conf)?,
        other => {
            let why = format!("The rendezvous backend '{}' is not registered", shown(other));
            let hint = "give static, c10d, etcd or etcd-v2; rlaunch does not run plug-ins of torch";
            return Err(values.error("rdzv-backend", &why, hint));
        }
    };
    if run_id.is_some() && matches!(rendezvous, TorchrunBackend::Alone) && !endpoint.is_empty() {
        let field = values.field("rdzv-endpoint");
        parse_endpoint(endpoint).map_err(|why| SpecError::new(field, endpoint, why.to_string(), "give host:port"))?;
    }
    Ok(TorchrunNodes { nodes: (min, max), rendezvous, run_id, name, backend: backend.to_owned() })
}

/// Reads `N` or `MIN:MAX`.
fn nodes(values: &OptValues) -> Result<(usize, usize), SpecError> {
    let text = values.text("nnodes").unwrap_or("1:1");
    let (low, high) = text.split_once(':').unwrap_or((text, text));
    let (Some(min), Some(max)) = (values::int(low), values::int(high)) else {
        let why = format!("nnodes={} is not in \"MIN:MAX\" format", shown(text));
        return Err(values.error("nnodes", &why, "give a number of nodes"));
    };
    if !(0 < min && min <= max) {
        let why = format!("min_nodes must be > 0 and <= max_nodes, got min_nodes={min}, max_nodes={max}");
        return Err(values.error("nnodes", &why, "give a number of nodes, 1 or more"));
    }
    let count = |n: i64| usize::try_from(n).ok().filter(|n| *n <= MAX_NODES);
    let (Some(min), Some(max)) = (count(min), count(max)) else {
        return Err(values.error("nnodes", "is more nodes than there can be", "give a smaller number"));
    };
    Ok((min, max))
}

/// Checks the options of a single-node job.
fn single_node(values: &OptValues, max: usize, conf: &BTreeMap<String, String>) -> Result<TorchrunBackend, SpecError> {
    if max > 1 {
        let why = "has several nodes, but --standalone is for a single one";
        return Err(values.error("nnodes", why, "leave out one of the two"));
    }
    for name in WHOLE {
        whole(values, conf, name)?;
    }
    Ok(TorchrunBackend::Alone)
}

/// Reads a whole number of `--rdzv-conf`.
fn whole(values: &OptValues, conf: &BTreeMap<String, String>, name: &str) -> Result<Option<i64>, SpecError> {
    let Some(text) = conf.get(name) else { return Ok(None) };
    let why = format!("The rendezvous configuration option '{name}' does not represent a valid integer value");
    values::int(text).map(Some).ok_or_else(|| values.error("rdzv-conf", &why, "give a whole number"))
}

/// Whether this node serves the master by `--rdzv-conf`, with the words that torch takes for yes and no.
fn is_host(values: &OptValues, conf: &BTreeMap<String, String>) -> Result<Option<bool>, SpecError> {
    let Some(text) = conf.get("is_host") else { return Ok(None) };
    match text.to_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" => Ok(Some(true)),
        "0" | "false" | "f" | "no" | "n" => Ok(Some(false)),
        _ => {
            let why = "The rendezvous configuration option 'is_host' does not represent a valid boolean value";
            Err(values.error("rdzv-conf", why, "give is_host=true or is_host=false"))
        }
    }
}

/// Warnings about unknown keys of `--rdzv-conf`.
fn warn_of_unknown(conf: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    let known = || WHOLE.into_iter().chain(OTHER);
    conf.keys().filter(move |key| known().all(|name| name != key.as_str())).map(move |key| {
        let alike = |name: &&'static str| strsim::jaro_winkler(key, name);
        let near = known().filter(|name| alike(name) > 0.8).max_by(|a, b| alike(a).total_cmp(&alike(b)));
        let hint = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
        format!("--rdzv-conf: {} has no effect{hint}", shown(key))
    })
}

/// Reads the options of an elastic rendezvous.
fn dynamic(
    values: &OptValues,
    nodes: (usize, usize),
    (backend, node_rank): (&str, i64),
    conf: &BTreeMap<String, String>,
    warnings: &mut Vec<String>,
) -> Result<TorchrunBackend, SpecError> {
    let node_rank = values.given("node-rank").map(|_| number_of_node(values, node_rank, nodes.1)).transpose()?;
    let seconds = |name: &str, default: i64| -> Result<Duration, SpecError> {
        let given = whole(values, conf, name)?.unwrap_or(default);
        let fit = u64::try_from(given).ok().filter(|seconds| *seconds <= 1_000_000_000);
        let hint = "give 0 or more";
        let why = format!("has a {name} that is not a number of seconds");
        fit.map(Duration::from_secs).ok_or_else(|| values.error("rdzv-conf", &why, hint))
    };
    for name in WHOLE {
        whole(values, conf, name)?;
    }
    warnings.extend(warn_of_unknown(conf));
    let text = values.text("rdzv-endpoint").unwrap_or("").trim();
    let (list, default) = if backend == "c10d" { (text, C10D_PORT) } else { (text, ETCD_PORT) };
    let list = if list.is_empty() { "localhost" } else { list };
    let one = |text: &str| {
        let (host, port) = parse_endpoint(text.trim())
            .map_err(|why| SpecError::new(values.field("rdzv-endpoint"), text, why.to_string(), "give host:port"))?;
        Ok::<_, SpecError>(Endpoint::new(host, port.unwrap_or(default)))
    };
    let text_of = |names: &[&str]| names.iter().find_map(|name| conf.get(*name)).cloned();
    let at = if backend == "c10d" {
        let endpoint = one(list)?;
        if endpoint.is_unspecified() {
            let why = "names no machine: no node would serve";
            return Err(values.error("rdzv-endpoint", why, "give the address of the node that serves"));
        }
        BackendSpec::Master(endpoint)
    } else {
        if values.on_command_line("job-secret").is_some_and(|key| !key.is_empty()) {
            let hint = "give etcd's user and password, or certificates, in --rdzv-conf";
            return Err(values.error("job-secret", "is only for --rdzv-backend c10d", hint));
        }
        let endpoints = list.split(',').map(one).collect::<Result<_, _>>()?;
        let ca = text_of(&["ca_cert", "cacert"]);
        // One file may contain both.
        let key = |cert: &String| text_of(&["ssl_cert_key", "key"]).unwrap_or_else(|| cert.clone());
        let cert = text_of(&["ssl_cert", "cert"]).map(|cert| (cert.clone(), key(&cert)));
        let in_conf = text_of(&["user"]).zip(text_of(&["password"])).map(|(user, password)| (user, Secret(password)));
        if in_conf.is_some() {
            let readers = match values.on_command_line("rdzv-conf") {
                Some(_) => "other users of this machine can read command lines",
                None => "the ranks inherit it",
            };
            let field = values.field("rdzv-conf");
            warnings
                .push(format!("{field} has a password, and {readers}; set RLAUNCH_ETCD_USER=USER:PASSWORD instead"));
        }
        let user = rendezvous::etcd_user(values, "etcd-user", warnings)?.or(in_conf);
        let tls = conf.get("protocol").is_some_and(|protocol| protocol == "https") || ca.is_some() || cert.is_some();
        let prefix = text_of(&["etcd_prefix"]).unwrap_or_else(|| "/rlaunch".into());
        BackendSpec::Etcd(EtcdSpec { endpoints, tls, ca, cert, user, prefix })
    };
    let secret = if backend == "c10d" { rendezvous::secret(values, "job-secret", warnings)? } else { None };
    rendezvous::check_is_closed(values, "require-secret", &at, secret.as_ref())?;
    let join = seconds("join_timeout", 600)?;
    if join.is_zero() {
        return Err(values.error(
            "rdzv-conf",
            "has a join_timeout that is too short for a rendezvous",
            "give 1 or more",
        ));
    }
    let lease = seconds("keep_alive_interval", 5)?
        * u32::try_from(whole(values, conf, "keep_alive_max_attempt")?.unwrap_or(3).max(1)).unwrap_or(3);
    let host = values.text("local-addr").filter(|host| !host.is_empty()).map(str::to_owned);
    let ends_by_loss = nodes.0 == nodes.1 && values.int("max-restarts")?.unwrap_or(0) <= 0;
    Ok(TorchrunBackend::Dynamic(Box::new(rendezvous::RendezvousSpec {
        option_names: NAMES,
        backend: at,
        job_name: values.text("rdzv-id").unwrap_or("none").to_owned(),
        is_host: if backend == "c10d" { is_host(values, conf)? } else { None },
        nodes,
        node_rank,
        elastic_level: ElasticLevel::Restart,
        last_call: seconds("last_call_timeout", 30)?,
        join_timeout: join,
        min_round_time: rendezvous::min_round_time(values, "min-round-time")?,
        node_failure_limit: rendezvous::node_failure_limit(values, "node-failure-limit")?,
        spares: rendezvous::spares(values, ends_by_loss, "--max-restarts, or --nnodes MIN:MAX")?,
        require_same: rendezvous::require_same(values, "require-same")?,
        sort_ip: true,
        heartbeat_timeout: lease.max(Duration::from_secs(2)),
        etcd_loss_timeout: match conf.contains_key("etcd_loss_timeout") {
            true => Some(seconds("etcd_loss_timeout", 0)?),
            false => None,
        },
        secret,
        host,
    })))
}

/// Checks the number that the user gives this node.
fn number_of_node(values: &OptValues, node_rank: i64, max: usize) -> Result<usize, SpecError> {
    usize::try_from(node_rank).ok().filter(|rank| *rank < max).ok_or_else(|| {
        let why = format!("is not the number of a node: there are {max} nodes");
        values.error("node-rank", &why, &format!("give a number from 0 to {}", max - 1))
    })
}

/// Reads the options of a static rendezvous.
fn fixed(
    values: &OptValues,
    (min, max): (usize, usize),
    node_rank: i64,
    conf: &BTreeMap<String, String>,
) -> Result<TorchrunBackend, SpecError> {
    if min < max {
        let why = "an elastic job needs another rendezvous than static";
        return Err(values.error(
            "nnodes",
            why,
            "give --rdzv-backend c10d --rdzv-endpoint HOST:PORT, or one number of nodes",
        ));
    }
    let endpoint = values.text("rdzv-endpoint").unwrap_or("").trim();
    let (name, text) = if endpoint.is_empty() {
        let name = if values.text("master-port").is_some() { "master-port" } else { "master-addr" };
        let port = values.text("master-port").map_or(DEFAULT_PORT, str::trim);
        (name, format!("{}:{port}", values.text("master-addr").unwrap_or("127.0.0.1")))
    } else {
        ("rdzv-endpoint", endpoint.to_owned())
    };
    let refuse = |why: String, hint: &str| values.error(name, &why, hint);
    let hint = match name {
        "master-port" => "give a port from 1 to 65535",
        "master-addr" => "give a name or an address",
        _ => "give host:port",
    };
    let (host, port) = parse_endpoint(&text).map_err(|why| refuse(why.to_string(), hint))?;
    let port = port.ok_or_else(|| {
        refuse(format!("Port is absent in endpoint: {}", shown(&text)), "give host:port, or --master-port")
    })?;
    if port == 0 && max > 1 {
        return Err(refuse(
            "has port 0, which other nodes cannot connect to".into(),
            "give a port that is free on node 0",
        ));
    }
    if max > 1 && values::flag(values, "require-secret")? {
        let why = "asks for a secret, which the static rendezvous does not have";
        let hint = "give --rdzv-backend c10d --rdzv-endpoint HOST:PORT and RLAUNCH_JOB_SECRET, or a single node";
        return Err(values.error("require-secret", why, hint));
    }
    if max > 1 {
        let instead = "give --rdzv-backend c10d --rdzv-endpoint HOST:PORT, or leave it out";
        rendezvous::check_nothing_required(values, "require-same", instead)?;
    }
    let node_rank = number_of_node(values, node_rank, max)?;
    let timeout = match conf.get("timeout").map(|text| values::int(text)) {
        None => DEFAULT_TIMEOUT,
        Some(Some(seconds)) if (0..=1_000_000_000).contains(&seconds) => seconds,
        Some(_) => {
            return Err(values.error("rdzv-conf", "has a timeout that is not a number of seconds", "give 1 or more"));
        }
    };
    let is_numbered = values.given("node-rank").is_some();
    Ok(TorchrunBackend::Static {
        host,
        port,
        node_rank,
        is_numbered,
        timeout: Duration::from_secs(timeout.unsigned_abs()),
    })
}

/// Reads `--rdzv-conf`: comma-separated `KEY=VALUE`. The last value of a key counts.
fn conf(values: &OptValues) -> Result<BTreeMap<String, String>, SpecError> {
    let text = values.text("rdzv-conf").unwrap_or("").trim();
    let refuse = |why: &str| Err(values.error("rdzv-conf", why, "give KEY=VALUE separated by commas"));
    let mut conf = BTreeMap::new();
    for pair in text.split(',').filter(|_| !text.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match (key.trim(), value.trim()) {
            ("", _) => {
                return refuse(
                    "The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>",
                );
            }
            (key, "") => {
                let key = shown(key);
                return refuse(&format!("The rendezvous configuration option '{key}' must have a value specified"));
            }
            (key, value) => {
                conf.insert(key.to_owned(), value.to_owned());
            }
        }
    }
    Ok(conf)
}

/// An invalid endpoint. The texts are torchrun's.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
enum EndpointError {
    /// The port is not a number, or out of range.
    #[error("The port number of the rendezvous endpoint '{}' must be an integer between 0 and 65536", shown(.0))]
    Port(String),
    /// The host has an invalid character.
    #[error(
        "The hostname of the rendezvous endpoint '{}' must be a dot-separated list of labels, an IPv4 address, or an IPv6 \
         address", shown(.0)
    )]
    Host(String),
}

/// Reads the host, and the port if there is one.
fn parse_endpoint(text: &str) -> Result<(String, Option<u16>), EndpointError> {
    let bracketed = text.starts_with('[') && text.ends_with(']');
    let (host, port) = match text.rsplit_once(':').filter(|_| !bracketed) {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let digits = |port: &str| (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
    let port = match port.map(|port| port.parse().ok().filter(|_| digits(port))) {
        Some(None) => {
            return Err(EndpointError::Port(text.to_owned()));
        }
        port => port.flatten(),
    };
    let host = if host.len() > 2 { endpoints::without_brackets(host) } else { host };
    if host.is_empty() || !host.chars().all(|c| c.is_alphanumeric() || "_.:-".contains(c)) {
        return Err(EndpointError::Host(text.to_owned()));
    }
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_cause_a_warning_with_the_nearest_key() {
        let conf = ["join_timout", "zzz", "is_host", "last_call_timeout"].map(|key| (key.to_owned(), "1".to_owned()));
        let warnings: Vec<String> = warn_of_unknown(&conf.into()).collect();
        assert_eq!(
            warnings,
            ["--rdzv-conf: join_timout has no effect; did you mean join_timeout?", "--rdzv-conf: zzz has no effect"]
        );
    }
}
