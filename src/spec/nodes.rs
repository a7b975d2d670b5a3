//! Which nodes a job has, where that is fixed beforehand: `--ips`, or a list in the environment.
//! Contract: `paddle.distributed.launch`.

use super::SpecError;
use super::options::{Values, Vars};
use crate::model::Endpoint;

/// Which ports the ranks of a node that is alone get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Free ones within a range, both ends included.
    Range {
        /// The lowest.
        low: u16,
        /// The highest.
        high: u16,
    },
    /// Consecutive ones from here for the ranks, a free one for the master (`FLAGS_FIXED_PORT`).
    Fixed {
        /// The first rank's.
        first: u16,
        /// Where the master's port is taken from.
        low: u16,
        /// The same.
        high: u16,
    },
}

/// The ports of one node of a fixed list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPorts {
    /// Consecutive ones from here, as many as there are ranks.
    From(u16),
    /// These, one a rank.
    These(Vec<u16>),
}

/// One node of a fixed list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its address or name, IPv6 without brackets.
    pub name: String,
    /// Where its ranks listen.
    pub ports: HostPorts,
}

/// A list of nodes that all of them know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// In the order of their numbers.
    pub hosts: Vec<Host>,
    /// Which of them this is, as far as the user says.
    pub own: Option<String>,
    /// The option or variable that has the list, and its value.
    pub from: (String, String),
    /// The option or variable that has the ports.
    pub ports_from: String,
}

/// The nodes of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// This one.
    One {
        /// Its address.
        host: String,
        /// Where ports come from.
        ports: Ports,
    },
    /// The first endpoint is the master's.
    Fixed(Fixed),
}

impl Nodes {
    /// This one alone, on free ports.
    pub fn alone() -> Self {
        let (low, high) = PORT_RANGE;
        Nodes::One { host: "127.0.0.1".into(), ports: Ports::Range { low, high } }
    }
}

/// What Paddle's job platform says of all nodes, this one and their ports.
pub const CLOUD: [&str; 4] = ["PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM"];
/// Whether all of it is there.
pub fn is_on_paddlecloud(vars: &Vars) -> bool {
    CLOUD.iter().all(|name| vars.contains_key(*name))
}

/// The first port on that platform.
pub const CLOUD_PORT: u16 = 6170;
/// Lists of all endpoints; the last one that is set counts.
const LISTS: [&str; 2] = ["PADDLE_TRAINER_ENDPOINTS", "DISTRIBUTED_TRAINER_ENDPOINTS"];
/// The port of a list whose first entry has none.
const LIST_PORT: u16 = 6768;

/// The nodes that a request is for. `said` gets what the user should know; `told` what they may.
pub fn check(values: &Values, vars: &Vars, said: &mut Vec<String>, told: &mut Vec<String>) -> Result<Nodes, SpecError> {
    let own = values.text("host").filter(|host| !host.is_empty());
    let address = told_address(values, said);
    let ips = values.text("ips").filter(|ips| !ips.trim().is_empty());
    let args_first = vars.get("PADDLE_LAUNCH_WITH_ARGS").is_some_and(|v| !matches!(v.trim(), "" | "0"));
    let set = |name: &&'static str| Some((*name, vars.get(*name).filter(|list| !list.is_empty())?));
    let list = LISTS.iter().rev().find_map(set);
    if let Some((name, list)) = list.filter(|_| ips.is_none() || !args_first) {
        let hosts = listed(name, list)?;
        // One node needs no list: its ports are free ones.
        if hosts.len() > 1 {
            told.push(format!("args reset by env {name}\n{list}"));
            return Ok(fixed(hosts, own, name, list, name));
        }
    }
    if let Some(list) = ips {
        let first = port(values, "start_port")?;
        let hosts = addresses(&field(values, "ips"), list, first)?;
        if values.given("master").is_some_and(|master| !master.is_empty()) {
            let master = Endpoint::new(&hosts[0].name, first);
            said.push(format!("master is set by args, it will be overwritten by {master}"));
        }
        return Ok(fixed(hosts, own, &field(values, "ips"), list, &field(values, "start_port")));
    }
    if let Some(nodes) = on_paddlecloud(vars, own)? {
        return Ok(nodes);
    }
    if let Some(name) = own.filter(|_| address.is_none()) {
        said.push(format!("--host {name} has no effect: it is no address, and no list of nodes has it"));
    }
    lone(address, values, vars)
}

/// One node, whatever lists of nodes the environment has.
pub fn alone(values: &Values, vars: &Vars, said: &mut Vec<String>) -> Result<Nodes, SpecError> {
    lone(told_address(values, said), values, vars)
}

/// The address that the user gives this node. A name without a dot counts only where a list has it.
fn told_address<'a>(values: &'a Values, said: &mut Vec<String>) -> Option<&'a str> {
    let address = values.text("host").filter(|host| host.contains(['.', ':']));
    if let Some(given) = address {
        said.push(format!("Host ip reset to {given}"));
    }
    address
}

fn lone(address: Option<&str>, values: &Values, vars: &Vars) -> Result<Nodes, SpecError> {
    // On one node nothing needs to be reached from outside, so the address is loopback unless the user says
    // otherwise (never an address got from the host's name).
    let host = match address {
        None => "127.0.0.1".to_owned(),
        Some(text) => match &hosts(&field(values, "host"), text, 1)?[..] {
            [one] => one.name.clone(),
            _ => return Err(values.error("host", "is several addresses", "give this node's; --ips takes a list")),
        },
    };
    let (low, high) = port_range(vars)?;
    let ports = match vars.get("FLAGS_FIXED_PORT").filter(|t| !t.is_empty()) {
        Some(text) => {
            // As in Paddle, but for a node without a number, whose first port is one lower there.
            let node = u16::try_from(values.int("rank")?.unwrap_or(0).max(0)).unwrap_or(u16::MAX);
            let first = port_of("FLAGS_FIXED_PORT", text)?.checked_add(node);
            let first = first.ok_or_else(|| values.error("rank", "leaves no port below 65536", "give a lower one"))?;
            Ports::Fixed { first, low, high }
        }
        None => Ports::Range { low, high },
    };
    Ok(Nodes::One { host, ports })
}

fn fixed(hosts: Vec<Host>, own: Option<&str>, from: &str, list: &str, ports_from: &str) -> Nodes {
    let own = own.map(|own| bare(own).to_owned());
    Nodes::Fixed(Fixed { hosts, own, from: (from.into(), list.into()), ports_from: ports_from.into() })
}

/// The job platform's variables, if all are there and speak of several nodes.
fn on_paddlecloud(vars: &Vars, own: Option<&str>) -> Result<Option<Nodes>, SpecError> {
    let [Some(list), Some(own_ip), Some(_), Some(_)] = CLOUD.map(|name| vars.get(name)) else { return Ok(None) };
    if !list.contains(',') {
        return Ok(None);
    }
    let first = match vars.get("PADDLE_PORT").filter(|port| !port.is_empty()) {
        Some(text) => port_of("PADDLE_PORT", text)?,
        None => CLOUD_PORT,
    };
    let hosts = addresses("PADDLE_TRAINERS", list, first)?;
    Ok(Some(fixed(hosts, own.or(Some(own_ip)), "PADDLE_TRAINERS", list, "PADDLE_PORT")))
}

/// A list of addresses that other nodes can reach, each with ports from `first` on.
fn addresses(field: &str, list: &str, first: u16) -> Result<Vec<Host>, SpecError> {
    let hosts = hosts(field, list, first)?;
    if hosts.len() > 1 && hosts.iter().any(|host| host.name == "127.0.0.1") {
        let why = "127.0.0.1 in ips is not allowed in multi-nodes.";
        return Err(SpecError::new(field, list, why, "give the address that the other nodes reach it by"));
    }
    Ok(hosts)
}

/// A list of different addresses, each with ports from `first` on.
pub fn hosts(field: &str, list: &str, first: u16) -> Result<Vec<Host>, SpecError> {
    let mut hosts: Vec<Host> = Vec::new();
    for text in list.split(',') {
        let name = bare(text.trim());
        let refuse = |why: String, hint: &str| Err(SpecError::new(field, list, why, hint));
        if name.is_empty() {
            return refuse("has an empty place in the list".into(), "give addresses joined by commas");
        }
        let foreign = |c: char| !c.is_alphanumeric() && !"-._:%".contains(c);
        if name.contains(foreign)
            || Endpoint::parse(&Endpoint::new(name, first).to_string()).is_none_or(|read| read.host != name)
        {
            return refuse(format!("{} is no address", name.escape_debug()), "give addresses without ports");
        }
        if name.contains(':') && name.parse::<core::net::Ipv6Addr>().is_err() {
            return refuse(
                format!("{} is no address", name.escape_debug()),
                "give addresses without ports; --start_port is the first port on each node",
            );
        }
        if hosts.iter().any(|host| same(&host.name, name)) {
            return refuse(
                format!("names {name} twice"),
                "name each node once; --nproc_per_node says how many ranks it has",
            );
        }
        hosts.push(Host { name: name.to_owned(), ports: HostPorts::From(first) });
    }
    Ok(hosts)
}

/// Whether two names are one: IPv6 addresses may be written in several ways.
pub fn same(a: &str, b: &str) -> bool {
    let ip = |text: &str| text.parse::<core::net::IpAddr>().ok();
    a == b || ip(a).is_some_and(|a| ip(b) == Some(a))
}

/// A list of endpoints, node by node.
fn listed(field: &str, list: &str) -> Result<Vec<Host>, SpecError> {
    let refuse = |why: String, hint: &str| Err(SpecError::new(field, list, why, hint));
    let mut nodes: Vec<(String, Vec<u16>)> = Vec::new();
    for text in list.split(',').map(str::trim) {
        let portless = || (!text.is_empty() && !text.contains(':')).then(|| Endpoint::new(text, LIST_PORT));
        let Some(Endpoint { host, port }) = Endpoint::parse(text).or_else(portless).filter(|e| e.port > 0) else {
            return refuse(format!("{} is no endpoint", text.escape_debug()), "give host:port joined by commas");
        };
        let count = nodes.len();
        match nodes.iter_mut().position(|(name, _)| same(name, &host)) {
            Some(at) if at + 1 < count => {
                return refuse(
                    format!("comes back to {host} after another node"),
                    "list the endpoints node by node: ranks are numbered in this order",
                );
            }
            Some(at) if nodes[at].1.contains(&port) => {
                return refuse(
                    format!("has {} twice", Endpoint::new(host, port)),
                    "give each rank an endpoint of its own",
                );
            }
            Some(at) => nodes[at].1.push(port),
            None => nodes.push((host, vec![port])),
        }
    }
    // One endpoint a node is where its first rank listens, as Paddle's operator for Kubernetes writes it.
    let one_each = nodes.iter().all(|(_, ports)| ports.len() == 1);
    let ports = |ports: Vec<u16>| if one_each { HostPorts::From(ports[0]) } else { HostPorts::These(ports) };
    Ok(nodes.into_iter().map(|(name, list)| Host { name, ports: ports(list) }).collect())
}

/// An address without the brackets that IPv6 ones may have.
pub fn bare(text: &str) -> &str {
    text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text)
}

/// The option as the user gave it, or the variable that overrides it.
pub fn field(values: &Values, name: &str) -> String {
    values.error(name, "", "").field
}

fn port(values: &Values, name: &str) -> Result<u16, SpecError> {
    values.int(name)?;
    port_of(&field(values, name), values.text(name).unwrap_or("0"))
}

/// A port.
pub fn port_of(field: &str, text: &str) -> Result<u16, SpecError> {
    let port = text.trim().parse().ok().filter(|port| *port > 0);
    let way_out = if field.starts_with('-') { "" } else { ", or unset it" };
    port.ok_or_else(|| SpecError::new(field, text, "is no port", format!("give a number from 1 to 65535{way_out}")))
}

/// Paddle's default for PORT_RANGE.
const PORT_RANGE: (u16, u16) = (35100, 64000);

fn port_range(vars: &Vars) -> Result<(u16, u16), SpecError> {
    let Some(text) = vars.get("PORT_RANGE").filter(|t| !t.is_empty()) else { return Ok(PORT_RANGE) };
    let ends = text.split_once(':').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    match ends {
        Some((low, high)) if 0u16 < low && low <= high => Ok((low, high)),
        _ => Err(SpecError::new("PORT_RANGE", text, "is no range of ports", "give low:high, such as 35100:64000")),
    }
}
