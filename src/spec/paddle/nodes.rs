//! The nodes of a job that are known beforehand: `--ips`, or a list in the environment.
//! Contract: `paddle.distributed.launch`.

use crate::model::Endpoint;
use crate::spec::endpoints::{is_same_host, parse_port, without_brackets};
use crate::spec::error::{SpecError, shown};
use crate::spec::options::{EnvVars, OptValues};

/// The ports of the ranks of a single node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SingleNodePorts {
    /// Free ports within a range, both ends included.
    Range {
        /// The lowest port.
        low: u16,
        /// The highest port.
        high: u16,
    },
    /// Consecutive ports for the ranks, and a free port for the master (`FLAGS_FIXED_PORT`).
    Fixed {
        /// The port of the first rank.
        first: u16,
        /// The lowest port for the master.
        low: u16,
        /// The highest port for the master.
        high: u16,
    },
}

/// The ports of one node of a fixed list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPorts {
    /// Consecutive ports from this one, one for each rank.
    From(u16),
    /// These ports, one for each rank.
    These(Vec<u16>),
}

/// One node of a fixed list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedHost {
    /// The address or name, IPv6 without brackets.
    pub name: String,
    /// The ports of its ranks.
    pub ports: HostPorts,
}

/// A list of nodes that is the same on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedNodes {
    /// The nodes, by number.
    pub hosts: Vec<FixedHost>,
    /// This node's name in the list, if the user gives it.
    pub own: Option<String>,
    /// The option or variable with the list, and its value.
    pub from: (String, String),
    /// The option or variable with the ports.
    pub ports_from: String,
}

/// The nodes of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobNodes {
    /// Only this node is known.
    One {
        /// This node's address.
        host: String,
        /// The ports of its ranks.
        ports: SingleNodePorts,
    },
    /// A fixed list; the first endpoint is the master's.
    Fixed(FixedNodes),
}

impl JobNodes {
    /// Only this node, on free ports.
    pub fn single() -> Self {
        let (low, high) = PORT_RANGE;
        JobNodes::One { host: "127.0.0.1".into(), ports: SingleNodePorts::Range { low, high } }
    }
}

/// The variables of Paddle's job platform: all nodes, this node, its number, ports of each node.
pub const CLOUD: [&str; 4] = ["PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM"];
/// Whether the platform's variables are set.
pub fn is_on_paddlecloud(vars: &EnvVars) -> bool {
    CLOUD.iter().all(|name| vars.contains_key(*name))
}

/// The platform's first port.
pub const CLOUD_PORT: u16 = 6170;
/// Variables with all endpoints; the last one that is set counts.
const LISTS: [&str; 2] = ["PADDLE_TRAINER_ENDPOINTS", "DISTRIBUTED_TRAINER_ENDPOINTS"];
/// The port of an endpoint without one.
const LIST_PORT: u16 = 6768;

/// Determines the job's nodes. `warnings` and `infos` receive messages for the user.
pub fn check(
    values: &OptValues,
    vars: &EnvVars,
    warnings: &mut Vec<String>,
    infos: &mut Vec<String>,
) -> Result<JobNodes, SpecError> {
    let own = values.text("host").filter(|host| !host.is_empty());
    let address = own_address(values, warnings);
    let ips = values.text("ips").filter(|ips| !ips.trim().is_empty());
    let args_first = vars.get("PADDLE_LAUNCH_WITH_ARGS").is_some_and(|v| !matches!(v.trim(), "" | "0"));
    let set = |name: &&'static str| Some((*name, vars.get(*name).filter(|list| !list.is_empty())?));
    let list = LISTS.iter().rev().find_map(set);
    if let Some((name, list)) = list.filter(|_| ips.is_none() || !args_first) {
        let hosts = read_endpoints(name, list)?;
        // A single node needs no list: it uses free ports.
        if hosts.len() > 1 {
            infos.push(format!("args reset by env {name}\n{list}"));
            return Ok(fixed(hosts, own, name, list, name));
        }
    }
    if let Some(list) = ips {
        let first = read_port(values, "start_port")?;
        let hosts = addresses(&values.field("ips"), list, first)?;
        if values.given("master").is_some_and(|master| !master.is_empty()) {
            let master = Endpoint::new(&hosts[0].name, first);
            warnings.push(format!("master is set by args, it will be overwritten by {master}"));
        }
        return Ok(fixed(hosts, own, &values.field("ips"), list, &values.field("start_port")));
    }
    if let Some(port) = values.on_command_line("start_port") {
        warnings.push(format!(
            "--start_port {port}: has no effect without --ips, and the ranks use free ports; \
             set FLAGS_FIXED_PORT for fixed ones"
        ));
    }
    if let Some(nodes) = on_paddlecloud(vars, own)? {
        return Ok(nodes);
    }
    if let Some(name) = own.filter(|_| address.is_none()) {
        warnings.push(format!("--host {name} has no effect: it is not an address, and no list of nodes has it"));
    }
    single_node_at(address, values, vars)
}

/// The nodes of a job that ignores lists of nodes in the environment: only this one.
pub fn single_node(values: &OptValues, vars: &EnvVars, warnings: &mut Vec<String>) -> Result<JobNodes, SpecError> {
    single_node_at(own_address(values, warnings), values, vars)
}

/// This node's address, if the user gives it. A name without a dot counts only in a list.
fn own_address<'a>(values: &'a OptValues, warnings: &mut Vec<String>) -> Option<&'a str> {
    let address = values.text("host").filter(|host| host.contains(['.', ':']));
    if let Some(given) = address {
        warnings.push(format!("Host ip reset to {given}"));
        if is_cut_short(given) {
            let (field, why) = (values.field("host"), "has fewer numbers than the four of an IPv4 address");
            warnings
                .push(format!("{field} {given}: {why}, so nodes and ranks may not find it; give the whole address"));
        }
    }
    address
}

/// Whether an address is only the beginning of an IPv4 address. inet_aton(3) reads it, with zeroes before the last number.
fn is_cut_short(address: &str) -> bool {
    let mut parts = address.split('.');
    parts.clone().count() < 4 && parts.all(|part| part.parse::<u8>().is_ok())
}

fn single_node_at(address: Option<&str>, values: &OptValues, vars: &EnvVars) -> Result<JobNodes, SpecError> {
    // No other machine connects to a single node, so its address is loopback unless the user gives one. The host's
    // name is never resolved.
    let host = match address {
        None => "127.0.0.1".to_owned(),
        Some(text) => match &hosts(&values.field("host"), text, 1)?[..] {
            [one] => one.name.clone(),
            _ => {
                return Err(values.error(
                    "host",
                    "has several addresses",
                    "give only this node's; --ips accepts a list",
                ));
            }
        },
    };
    let (low, high) = port_range(vars)?;
    let ports = match vars.get("FLAGS_FIXED_PORT").filter(|t| !t.is_empty()) {
        Some(text) => {
            // As in Paddle, except for a node without a number: its first port is one lower there.
            let node = u16::try_from(values.int("rank")?.unwrap_or(0).max(0)).unwrap_or(u16::MAX);
            let first = parse_port("FLAGS_FIXED_PORT", text)?.checked_add(node);
            let first =
                first.ok_or_else(|| values.error("rank", "leaves no port below 65536", "give a lower number"))?;
            SingleNodePorts::Fixed { first, low, high }
        }
        None => SingleNodePorts::Range { low, high },
    };
    Ok(JobNodes::One { host, ports })
}

fn fixed(hosts: Vec<FixedHost>, own: Option<&str>, from: &str, list: &str, ports_from: &str) -> JobNodes {
    let own = own.map(|own| without_brackets(own).to_owned());
    JobNodes::Fixed(FixedNodes { hosts, own, from: (from.into(), list.into()), ports_from: ports_from.into() })
}

/// The nodes of the job platform's variables, if all are set and name several nodes.
fn on_paddlecloud(vars: &EnvVars, own: Option<&str>) -> Result<Option<JobNodes>, SpecError> {
    let [Some(list), Some(own_ip), Some(_), Some(_)] = CLOUD.map(|name| vars.get(name)) else { return Ok(None) };
    if !list.contains(',') {
        return Ok(None);
    }
    let first = match vars.get("PADDLE_PORT").filter(|port| !port.is_empty()) {
        Some(text) => parse_port("PADDLE_PORT", text)?,
        None => CLOUD_PORT,
    };
    let hosts = addresses("PADDLE_TRAINERS", list, first)?;
    Ok(Some(fixed(hosts, own.or(Some(own_ip)), "PADDLE_TRAINERS", list, "PADDLE_PORT")))
}

/// Reads a list of addresses that other nodes can reach, each with ports from `first`.
fn addresses(field: &str, list: &str, first: u16) -> Result<Vec<FixedHost>, SpecError> {
    let hosts = hosts(field, list, first)?;
    if hosts.len() > 1 && hosts.iter().any(|host| host.name == "127.0.0.1") {
        let why = "127.0.0.1 in ips is not allowed in multi-nodes.";
        return Err(SpecError::new(field, list, why, "give the address at which the other nodes reach it"));
    }
    Ok(hosts)
}

/// Reads a list of different addresses, each with ports from `first`.
pub fn hosts(field: &str, list: &str, first: u16) -> Result<Vec<FixedHost>, SpecError> {
    let mut hosts: Vec<FixedHost> = Vec::new();
    for text in list.split(',') {
        let name = without_brackets(text.trim());
        let refuse = |why: String, hint: &str| Err(SpecError::new(field, list, why, hint));
        if name.is_empty() {
            return refuse("has an empty item".into(), "give addresses separated by commas");
        }
        let foreign = |c: char| !c.is_alphanumeric() && !"-._:%".contains(c);
        if name.contains(foreign)
            || Endpoint::parse(&Endpoint::new(name, first).to_string()).is_none_or(|read| read.host != name)
        {
            let is_list = name.split([' ', '\t', ';']).all(|part| !part.is_empty() && !part.contains(foreign));
            let hint = if is_list { "separate addresses by commas" } else { "give addresses without ports" };
            return refuse(format!("{} is not an address", shown(name)), hint);
        }
        if name.contains(':') && name.parse::<core::net::Ipv6Addr>().is_err() {
            return refuse(
                format!("{} is not an address", shown(name)),
                "give addresses without ports; --start_port is the first port on each node",
            );
        }
        if hosts.iter().any(|host| is_same_host(&host.name, name)) {
            return refuse(
                format!("names {name} twice"),
                "list each node once; --nproc_per_node sets its number of ranks",
            );
        }
        hosts.push(FixedHost { name: name.to_owned(), ports: HostPorts::From(first) });
    }
    Ok(hosts)
}

/// Reads a list of endpoints, node by node.
fn read_endpoints(field: &str, list: &str) -> Result<Vec<FixedHost>, SpecError> {
    let refuse = |why: String, hint: &str| Err(SpecError::new(field, list, why, hint));
    let mut nodes: Vec<(String, Vec<u16>)> = Vec::new();
    for text in list.split(',').map(str::trim) {
        let portless = || (!text.is_empty() && !text.contains(':')).then(|| Endpoint::new(text, LIST_PORT));
        let Some(Endpoint { host, port }) = Endpoint::parse(text).or_else(portless).filter(|e| e.port > 0) else {
            return refuse(format!("{} is not an endpoint", shown(text)), "give host:port separated by commas");
        };
        let count = nodes.len();
        match nodes.iter_mut().position(|(name, _)| is_same_host(name, &host)) {
            Some(at) if at + 1 < count => {
                return refuse(
                    format!("returns to {host} after another node"),
                    "list the endpoints of each node together: ranks are numbered in this order",
                );
            }
            Some(at) if nodes[at].1.contains(&port) => {
                return refuse(
                    format!("lists {} twice", Endpoint::new(host, port)),
                    "give each rank an endpoint of its own",
                );
            }
            Some(at) => nodes[at].1.push(port),
            None => nodes.push((host, vec![port])),
        }
    }
    // One endpoint per node is that of its first rank, as Paddle's operator for Kubernetes writes it.
    let one_each = nodes.iter().all(|(_, ports)| ports.len() == 1);
    let ports = |ports: Vec<u16>| if one_each { HostPorts::From(ports[0]) } else { HostPorts::These(ports) };
    Ok(nodes.into_iter().map(|(name, list)| FixedHost { name, ports: ports(list) }).collect())
}

fn read_port(values: &OptValues, name: &str) -> Result<u16, SpecError> {
    values.int(name)?;
    parse_port(&values.field(name), values.text(name).unwrap_or("0"))
}

/// Paddle's default for PORT_RANGE.
const PORT_RANGE: (u16, u16) = (35100, 64000);

fn port_range(vars: &EnvVars) -> Result<(u16, u16), SpecError> {
    let Some(text) = vars.get("PORT_RANGE").filter(|t| !t.is_empty()) else { return Ok(PORT_RANGE) };
    let ends = text.split_once(':').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    match ends {
        Some((low, high)) if 0u16 < low && low <= high => Ok((low, high)),
        _ => Err(SpecError::new("PORT_RANGE", text, "is not a range of ports", "give low:high, such as 35100:64000")),
    }
}
