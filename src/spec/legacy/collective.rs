//! The request of a collective job of the legacy launcher, `python -m paddle.distributed.fleet.launch`. `paddle::ps` reads
//! its jobs with parameter servers.

use crate::model::Endpoint;
use crate::spec::endpoints::{parse_port, without_brackets};
use crate::spec::error::{SpecError, shown};
use crate::spec::legacy::elastic;
use crate::spec::legacy::elastic::LegacyElasticSpec;
use crate::spec::options::{EnvVars, OptValues};
use crate::spec::paddle::nodes;
use crate::spec::paddle::nodes::{CLOUD, CLOUD_PORT, FixedHost, FixedNodes, HostPorts};
use std::collections::HashSet;

/// A checked request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacySpec {
    /// The communication backend.
    pub backend: LegacyBackend,
    /// The option or variable with the backend, and its value.
    pub backend_from: (String, String),
    /// The source of the nodes.
    pub node_source: NodeSource,
    /// `--ips` as given.
    pub ips: String,
    /// Value of PADDLE_WITH_GLOO.
    pub with_gloo: String,
    /// The elastic part, if nodes may join and leave; then `node_source` has only this node.
    pub elastic: Option<LegacyElasticSpec>,
}

/// The communication backend of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyBackend {
    /// Chosen by the devices.
    Auto,
    /// CPUs.
    Gloo,
    /// GPUs.
    Nccl,
    /// XPUs.
    Bkcl,
    /// GPUs, else XPUs, and others in the same job.
    Heter,
    /// A backend of devices that this launcher does not know.
    Other,
}

/// The first port of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartPort {
    /// Free ports: there is a single node.
    Free,
    /// Consecutive ports from this one on each node, and the variable with it.
    From(u16, &'static str),
}

/// The source of the nodes, and of the ranks on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeSource {
    /// A list of nodes; each has as many ranks as this one.
    Nodes(FixedNodes, StartPort),
    /// Paddle's job platform.
    Cloud(CloudNodes),
    /// JSON files of machines and of ranks.
    Mapped(MappingFiles),
    /// Ascend's JSON file of servers and their NPUs.
    RankTable(RankTable),
}

/// The variables of the job platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudNodes {
    /// PADDLE_TRAINERS: the nodes.
    pub hosts: Vec<String>,
    /// PADDLE_TRAINER_ID: the index of this node.
    pub own: usize,
    /// TRAINER_PORTS_NUM: the number of ports of each node.
    pub ports: usize,
    /// DISTRIBUTED_TRAINER_ENDPOINTS, by node.
    pub endpoints: Option<Vec<Vec<Endpoint>>>,
    /// The first port, and the variable with it.
    pub start: (u16, &'static str),
    /// PADDLE_PORT: the first port if there are enough ports.
    pub port: Option<u16>,
}

/// Files of machines and ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingFiles {
    /// The file of the machines.
    pub topology: String,
    /// The option or variable with the file of the ranks, and its value; `None`: the file is computed first.
    pub mapping: Option<(String, String)>,
    /// This machine's address, if the user gives it.
    pub own: Option<String>,
    /// The first port.
    pub start: StartPort,
}

/// Ascend's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankTable {
    /// The file.
    pub path: String,
    /// The nodes' addresses, if they replace those of the file (FLAGS_MODELARTS).
    pub hosts: Option<Vec<String>>,
    /// PADDLE_TRAINER_ID: the index of this node.
    pub index: Option<usize>,
    /// This node's address, if the user gives it.
    pub own: Option<String>,
    /// The first port, and the variable with it.
    pub start: (u16, &'static str),
}

/// Options that only the legacy launcher has; each selects it.
const LEGACY_OPTIONS: [&str; 5] =
    ["backend", "selected_gpus", "cluster_topo_path", "rank_mapping_path", "enable_auto_mapping"];

/// Options that the legacy launcher does not have.
const LAUNCH_OPTIONS: [&str; 10] = [
    "start_port",
    "master",
    "rank",
    "nnodes",
    "sort_ip",
    "auto_cluster_config",
    "auto_parallel_config",
    "elastic_level",
    "elastic_timeout",
    "trainers",
];

const INHERITED: &str = "PADDLE_RANK_MAPPING_PATH";
const START: &str = "FLAGS_START_PORT";
/// The default first port.
const FIRST_PORT: u16 = 6070;

/// Whether the options select the legacy launcher.
pub fn is_requested(values: &OptValues) -> Result<bool, SpecError> {
    let own = LEGACY_OPTIONS.iter().chain(&elastic::OPTIONS).any(|name| values.given(name).is_some());
    Ok(own || values.bool("legacy")? == Some(true))
}

/// Checks that backend and run mode agree, and both options for devices. `warnings` receives messages for the user.
pub fn check_mode(values: &OptValues, vars: &EnvVars, warnings: &mut Vec<String>) -> Result<(), SpecError> {
    refuse_launch_options(values, &LAUNCH_OPTIONS)?;
    check_devices(values, warnings)?;
    let (backend, from) = backend(values, vars)?;
    let mode = values.text("run_mode").unwrap_or("");
    if backend != LegacyBackend::Auto && !matches!(mode, "" | "collective") {
        let why = "When backend is not 'auto', run mode must be collective";
        return Err(values.error("run_mode", why, &format!("leave out {}", from.0)));
    }
    if backend == LegacyBackend::Gloo && values.given("servers").is_some_and(|servers| !servers.is_empty()) {
        let why = "CPUONLY launch can't have --servers as arguments.";
        return Err(values.error("servers", why, &format!("leave out {}", from.0)));
    }
    if !matches!(mode.to_ascii_lowercase().as_str(), "" | "collective" | "ps" | "ps-heter") {
        let why = "is not a run mode of the legacy launcher";
        return Err(values.error(
            "run_mode",
            why,
            "give collective, ps or ps-heter, or leave out options of the legacy launcher",
        ));
    }
    Ok(())
}

/// Checks that both options for devices have the same list.
fn check_devices(values: &OptValues, warnings: &mut Vec<String>) -> Result<(), SpecError> {
    let (Some(one), Some(other)) = (filled(values, "devices"), filled(values, "selected_gpus")) else {
        return Ok(());
    };
    if one.split(',').map(str::trim).eq(other.split(',').map(str::trim)) {
        return Ok(());
    }
    let name = values.field("devices");
    if values.on_command_line("devices").is_none() {
        warnings.push(format!("--selected_gpus has no effect: {name} is {}", shown(one)));
        return Ok(());
    }
    Err(values.error("selected_gpus", &format!("{name} is {}", shown(one)), "give one of the two"))
}

/// The value that the user gave, if it is not empty.
fn filled<'a>(values: &'a OptValues, name: &str) -> Option<&'a str> {
    values.given(name).filter(|text| !text.trim().is_empty())
}

/// The value of a variable, if it is not empty.
fn set<'a>(vars: &'a EnvVars, name: &str) -> Option<&'a str> {
    vars.get(name).map(String::as_str).filter(|text| !text.trim().is_empty())
}

fn refuse_launch_options(values: &OptValues, names: &[&str]) -> Result<(), SpecError> {
    let Some(name) = names.iter().find(|name| values.on_command_line(name).is_some()) else { return Ok(()) };
    let hint = match *name {
        "start_port" => "set FLAGS_START_PORT",
        "nnodes" | "rank" | "master" => "list the nodes with --ips, and give this node's address with --host",
        _ => "leave it out, or leave out --legacy and the options of the legacy launcher",
    };
    Err(values.error(name, "the legacy launcher does not have this option", hint))
}

/// Reads and checks the request. `warnings` receives messages for the user.
pub fn check(values: &OptValues, vars: &EnvVars, warnings: &mut Vec<String>) -> Result<LegacySpec, SpecError> {
    // Only jobs with servers accept it among legacy options.
    refuse_launch_options(values, &["gloo_port"])?;
    let (backend, backend_from) = backend(values, vars)?;
    if let Some(number) = values.int("nproc_per_node")?.filter(|number| *number < 1) {
        return Err(values.error("nproc_per_node", &format!("{number} is not a number of ranks"), "give 1 or more"));
    }
    let ips = filled(values, "ips").unwrap_or("127.0.0.1").to_owned();
    let elastic = elastic::check(values, vars, warnings)?;
    let node_source = match &elastic {
        Some(elastic) => Some(single_node(elastic)),
        None => mapped(values, vars)?.map(NodeSource::Mapped),
    };
    let node_source = match node_source {
        Some(source) => source,
        None => match (cloud(vars, &ips, warnings)?, rank_table(values, vars, backend)?) {
            (Some(cloud), _) => NodeSource::Cloud(cloud),
            (None, Some(table)) => NodeSource::RankTable(table),
            (None, None) => listed(values, vars, &ips)?,
        },
    };
    let (idle, why): (&[&str], _) = match node_source {
        NodeSource::Mapped(_) => (&["devices", "selected_gpus", "nproc_per_node", "ips"], "--enable_auto_mapping"),
        NodeSource::RankTable(_) => (&["devices", "selected_gpus", "ips"], "RANK_TABLE_FILE"),
        NodeSource::Nodes(..) | NodeSource::Cloud(_) => (&[], ""),
    };
    for name in idle.iter().filter(|name| filled(values, name).is_some()) {
        warnings.push(format!("{} has no effect with {why}: a file places the ranks", values.field(name)));
    }
    let with_gloo = values.given("with_gloo").unwrap_or("0").to_owned();
    Ok(LegacySpec { backend, backend_from, node_source, ips, with_gloo, elastic })
}

/// The source of nodes of an elastic job: this node. Its address may be determined later.
fn single_node(elastic: &LegacyElasticSpec) -> NodeSource {
    let name = elastic.rendezvous.host.clone().unwrap_or_else(|| "127.0.0.1".into());
    let (start, from) = match elastic.ports {
        Some((first, from)) => (StartPort::From(first, from), from),
        None => (StartPort::Free, START),
    };
    let host = FixedHost { name: name.clone(), ports: HostPorts::These(Vec::new()) };
    let from_host = ("--host".to_owned(), name.clone());
    NodeSource::Nodes(
        FixedNodes { hosts: vec![host], own: Some(name), from: from_host, ports_from: from.into() },
        start,
    )
}

fn backend(values: &OptValues, vars: &EnvVars) -> Result<(LegacyBackend, (String, String)), SpecError> {
    let (from, text) = match (filled(values, "backend"), set(vars, "PADDLE_DISTRI_BACKEND")) {
        (Some(text), _) => ("--backend", text),
        (None, Some(text)) => ("PADDLE_DISTRI_BACKEND", text),
        (None, None) => ("--backend", "auto"),
    };
    let backend = match text {
        "auto" => LegacyBackend::Auto,
        "gloo" => LegacyBackend::Gloo,
        "nccl" => LegacyBackend::Nccl,
        "bkcl" => LegacyBackend::Bkcl,
        "heter" => LegacyBackend::Heter,
        "xccl" | "flagcx" => LegacyBackend::Other,
        _ => {
            let why = format!(
                "ValueError: paddle.distributed initialize error, backend argument can only be one of 'nccl', 'gloo', 'bkcl', \
                 'auto', 'heter', 'xccl' but got {text}"
            );
            return Err(SpecError::new(from, text, why, "give auto to choose by the devices"));
        }
    };
    Ok((backend, (from.into(), text.into())))
}

/// The nodes of `--ips`. A single address is this node's.
fn listed(values: &OptValues, vars: &EnvVars, ips: &str) -> Result<NodeSource, SpecError> {
    let on_cloud = nodes::is_on_paddlecloud(vars);
    let start = start(vars)?;
    let from = values.field("ips");
    let hosts = nodes::hosts(&from, ips, FIRST_PORT)?;
    let (own, start) = match &hosts[..] {
        [one] if !on_cloud => (Some(one.name.clone()), start.unwrap_or(StartPort::Free)),
        [one] => (Some(one.name.clone()), start.unwrap_or(StartPort::From(FIRST_PORT, START))),
        _ => (own(values), start.unwrap_or(StartPort::From(FIRST_PORT, START))),
    };
    let list = FixedNodes { hosts, own, from: (from, ips.to_owned()), ports_from: START.into() };
    Ok(NodeSource::Nodes(list, start))
}

/// This node's address, if the user gives it.
fn own(values: &OptValues) -> Option<String> {
    values.text("host").filter(|host| !host.is_empty()).map(|host| without_brackets(host).to_owned())
}

fn start(vars: &EnvVars) -> Result<Option<StartPort>, SpecError> {
    set(vars, START).map(|text| Ok(StartPort::From(parse_port(START, text)?, START))).transpose()
}

/// The first port on the job platform.
fn cloud_start(vars: &EnvVars) -> Result<(u16, &'static str), SpecError> {
    Ok((set(vars, START).map_or(Ok(CLOUD_PORT), |text| parse_port(START, text))?, START))
}

fn number(name: &'static str, text: &str) -> Result<usize, SpecError> {
    let number = text.trim().parse().ok();
    number.ok_or_else(|| SpecError::new(name, text, "is not a number from 0 up", "give digits only, or unset it"))
}

/// The nodes of the job platform's variables, if all are set and there are several trainers.
fn cloud(vars: &EnvVars, ips: &str, warnings: &mut Vec<String>) -> Result<Option<CloudNodes>, SpecError> {
    let trainers = set(vars, "PADDLE_TRAINERS_NUM").map_or(Ok(1), |text| number("PADDLE_TRAINERS_NUM", text))?;
    let [Some(list), Some(ip), Some(id), Some(ports)] = CLOUD.map(|name| vars.get(name)) else { return Ok(None) };
    if trainers == 1 {
        return Ok(None);
    }
    let ports = number("TRAINER_PORTS_NUM", ports)?;
    let own = number("PADDLE_TRAINER_ID", id)?;
    let hosts: Vec<String> = list.split(',').map(|host| without_brackets(host.trim()).to_owned()).collect();
    let endpoints =
        set(vars, "DISTRIBUTED_TRAINER_ENDPOINTS").map(|all| by_node(all, hosts.len(), ports)).transpose()?;
    if endpoints.is_none() {
        nodes::hosts("PADDLE_TRAINERS", list, CLOUD_PORT)?;
    }
    if !hosts.iter().any(|host| host == without_brackets(ip)) {
        let why = format!("'{ip}' is not in list ({list}, PADDLE_TRAINERS)");
        return Err(SpecError::new("POD_IP", ip, why, "correct one of them"));
    }
    if own >= hosts.len() {
        let why = format!("PADDLE_TRAINERS has {} node(s), and the first is number 0", hosts.len());
        return Err(SpecError::new("PADDLE_TRAINER_ID", id, why, "correct one of them"));
    }
    if ips != "127.0.0.1" && ips != list {
        warnings.push(format!(
            "Please NOTE: When using paddlecloud, cluster_node_ips is automatically got from PADDLE_TRAINERS(multi \
             nodes) or POD_IP(single node). Your input cluster_node_ips: {ips} doesn't equals to IPs: {list} from \
             paddlecloud environment."
        ));
    }
    let port = set(vars, "PADDLE_PORT").filter(|_| hosts.len() > 1 && endpoints.is_none());
    let port = port.map(|port| parse_port("PADDLE_PORT", port)).transpose()?;
    Ok(Some(CloudNodes { hosts, own, ports, endpoints, start: cloud_start(vars)?, port }))
}

/// Splits a list of all endpoints into equal parts, one for each node.
fn by_node(list: &str, nodes: usize, each: usize) -> Result<Vec<Vec<Endpoint>>, SpecError> {
    let refuse = |why: String| {
        Err(SpecError::new(
            "DISTRIBUTED_TRAINER_ENDPOINTS",
            list,
            why,
            "give host:port separated by commas, node by node",
        ))
    };
    let (mut all, mut known) = (Vec::new(), HashSet::new());
    for text in list.split(',').map(str::trim) {
        let Some(endpoint) = Endpoint::parse(text).filter(|endpoint| endpoint.port > 0) else {
            return refuse(format!("{} is not an endpoint", crate::spec::shown(text)));
        };
        if !known.insert(endpoint.clone()) {
            return refuse(format!("lists {endpoint} twice"));
        }
        all.push(endpoint);
    }
    if nodes.checked_mul(each) != Some(all.len()) {
        return refuse(format!("has {} endpoints, and {nodes} nodes have {each} each", all.len()));
    }
    Ok(all.chunks(each.max(1)).map(<[Endpoint]>::to_vec).collect())
}

fn mapped(values: &OptValues, vars: &EnvVars) -> Result<Option<MappingFiles>, SpecError> {
    let given = |name: &str| values.given(name).filter(|path| !path.is_empty()).map(str::to_owned);
    if values.bool("enable_auto_mapping")? != Some(true) {
        let alone = ["cluster_topo_path", "rank_mapping_path"].into_iter().find(|name| given(name).is_some());
        return match alone {
            None => Ok(None),
            Some(name) => {
                Err(values.error(name, "has no effect without --enable_auto_mapping", "add --enable_auto_mapping true"))
            }
        };
    }
    let Some(topology) = given("cluster_topo_path") else {
        let why = "The cluster topology must be provided when enabling auto mapping.";
        return Err(values.error("enable_auto_mapping", why, "name its file with --cluster_topo_path"));
    };
    let mapping = given("rank_mapping_path").map(|path| ("--rank_mapping_path".to_owned(), path));
    let inherited = || set(vars, INHERITED).map(|path| (INHERITED.to_owned(), path.to_owned()));
    let mapping = mapping.or_else(inherited);
    let start = match set(vars, "PADDLE_PORT") {
        Some(text) => StartPort::From(parse_port("PADDLE_PORT", text)?, "PADDLE_PORT"),
        None => start(vars)?.unwrap_or(StartPort::Free),
    };
    Ok(Some(MappingFiles { topology, mapping, own: own(values), start }))
}

fn rank_table(values: &OptValues, vars: &EnvVars, backend: LegacyBackend) -> Result<Option<RankTable>, SpecError> {
    let Some(path) = set(vars, "RANK_TABLE_FILE") else { return Ok(None) };
    // Any other backend is for other devices.
    if backend != LegacyBackend::Auto {
        return Ok(None);
    }
    let index = set(vars, "PADDLE_TRAINER_ID").map(|text| number("PADDLE_TRAINER_ID", text)).transpose()?;
    let hosts = set(vars, "FLAGS_MODELARTS").map(|_| modelarts(vars)).transpose()?;
    Ok(Some(RankTable { path: path.to_owned(), hosts, index, own: own(values), start: cloud_start(vars)? }))
}

/// The nodes of a job on ModelArts, from its variables.
fn modelarts(vars: &EnvVars) -> Result<Vec<String>, SpecError> {
    let unset =
        |name: &str| SpecError::new(name, "", format!("{name} didn't set!"), "set it, or unset FLAGS_MODELARTS");
    let count = set(vars, "DLS_TASK_NUMBER").ok_or_else(|| unset("DLS_TASK_NUMBER"))?;
    let mut hosts: Vec<String> = Vec::new();
    for node in 0..number("DLS_TASK_NUMBER", count)? {
        let name = format!("VC_CUSTOM{node}_HOSTS");
        let text = set(vars, &name).ok_or_else(|| unset(&name))?;
        let refuse = |why: String| Err(SpecError::new(&name, text, why, "give the address of one node, once"));
        let host = without_brackets(text.trim());
        if text.contains(',') {
            return refuse("has several nodes".into());
        }
        nodes::hosts(&name, text, CLOUD_PORT)?;
        if let Some(first) = hosts.iter().position(|known| known == host) {
            return refuse(format!("VC_CUSTOM{first}_HOSTS has {host} already"));
        }
        hosts.push(host.to_owned());
    }
    if hosts.is_empty() {
        return Err(SpecError::new("DLS_TASK_NUMBER", count, "is not a number of nodes", "give 1 or more"));
    }
    Ok(hosts)
}
