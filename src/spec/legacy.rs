//! What was asked of the older launcher, `python -m paddle.distributed.fleet.launch`, for a collective job. Its
//! parameter servers are another kind of job.

use super::nodes::{self, CLOUD, CLOUD_PORT, Fixed, Host, HostPorts, bare, field, port_of};
use super::older_elastic::{self, Elastic};
use super::options::{Values, Vars};
use super::{SpecError, shown};
use crate::model::Endpoint;
use std::collections::HashSet;

/// A checked request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacySpec {
    /// What the ranks talk by.
    pub backend: Backend,
    /// The option or variable that says so, and its value.
    pub backend_from: (String, String),
    /// Who runs where.
    pub layout: Layout,
    /// `--ips` as given.
    pub ips: String,
    /// Value of PADDLE_WITH_GLOO.
    pub with_gloo: String,
    /// How the nodes find each other, if they come and go; then `layout` is this node's part.
    pub elastic: Option<Elastic>,
}

/// What ranks talk by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// What the devices that are there need.
    Auto,
    /// The CPU.
    Gloo,
    /// GPUs.
    Nccl,
    /// XPUs.
    Bkcl,
    /// GPUs, else XPUs, and others in the same job.
    Heter,
    /// One that this launcher has no devices for.
    Other,
}

/// Where endpoints begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Free ones: the node is alone.
    Free,
    /// Consecutive ones from here on each node, as this variable says.
    From(u16, &'static str),
}

/// How it is known who runs where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// By a list of nodes, on each of which run as many ranks as here.
    Nodes(Fixed, Start),
    /// By Paddle's job platform.
    Cloud(Cloud),
    /// By JSON files of machines, and of ranks.
    Mapped(Mapped),
    /// By Ascend's JSON file of servers and their NPUs.
    RankTable(RankTable),
}

/// What the job platform says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloud {
    /// PADDLE_TRAINERS: the nodes.
    pub hosts: Vec<String>,
    /// PADDLE_TRAINER_ID: which of them this is.
    pub own: usize,
    /// TRAINER_PORTS_NUM: ports of each.
    pub ports: usize,
    /// DISTRIBUTED_TRAINER_ENDPOINTS, by node.
    pub endpoints: Option<Vec<Vec<Endpoint>>>,
    /// Where ports begin, and the variable that says so.
    pub start: (u16, &'static str),
    /// PADDLE_PORT: where they begin if there are enough of them.
    pub port: Option<u16>,
}

/// Files of machines and ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The machines.
    pub topology: String,
    /// Which rank runs where, and the option or variable that names the file; `None`: it is made first.
    pub mapping: Option<(String, String)>,
    /// Which machine this is, as far as the user says.
    pub own: Option<String>,
    /// Where ports begin.
    pub start: Start,
}

/// Ascend's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankTable {
    /// The file.
    pub path: String,
    /// The nodes' addresses where the file does not count (FLAGS_MODELARTS).
    pub hosts: Option<Vec<String>>,
    /// PADDLE_TRAINER_ID: which of them this is.
    pub index: Option<usize>,
    /// Which of them this is, as far as the user says.
    pub own: Option<String>,
    /// Where ports begin, and the variable that says so.
    pub start: (u16, &'static str),
}

/// Options that ask for the older launcher, as those do that Paddle's present one does not know.
const OLDER: [&str; 5] = ["backend", "selected_gpus", "cluster_topo_path", "rank_mapping_path", "enable_auto_mapping"];

/// Options that the older launcher has not, and that would mean something.
const NEWER: [&str; 10] = [
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
/// The first port where nobody says.
const FIRST_PORT: u16 = 6070;

/// Whether the older launcher is meant.
pub fn is_asked(values: &Values) -> Result<bool, SpecError> {
    let own = OLDER.iter().chain(&older_elastic::OPTIONS).any(|name| values.given(name).is_some());
    Ok(own || values.bool("legacy")? == Some(true))
}

/// Checks that options go together: backend and mode, and both names for the devices. `said` gets what the user
/// should know.
pub fn check_mode(values: &Values, vars: &Vars, said: &mut Vec<String>) -> Result<(), SpecError> {
    refuse_newer(values, &NEWER)?;
    check_devices(values, said)?;
    let (backend, from) = backend(values, vars)?;
    let mode = values.text("run_mode").unwrap_or("");
    if backend != Backend::Auto && !matches!(mode, "" | "collective") {
        let why = "When backend is not 'auto', run mode must be collective";
        return Err(values.error("run_mode", why, &format!("leave out {}", from.0)));
    }
    if backend == Backend::Gloo && values.given("servers").is_some_and(|servers| !servers.is_empty()) {
        let why = "CPUONLY launch can't have --servers as arguments.";
        return Err(values.error("servers", why, &format!("leave out {}", from.0)));
    }
    if !matches!(mode.to_ascii_lowercase().as_str(), "" | "collective" | "ps" | "ps-heter") {
        let why = "is no mode of the older launcher";
        return Err(values.error("run_mode", why, "give collective, ps or ps-heter, or use no older option"));
    }
    Ok(())
}

/// Two names for one list.
fn check_devices(values: &Values, said: &mut Vec<String>) -> Result<(), SpecError> {
    let (Some(one), Some(other)) = (filled(values, "devices"), filled(values, "selected_gpus")) else {
        return Ok(());
    };
    if one.split(',').map(str::trim).eq(other.split(',').map(str::trim)) {
        return Ok(());
    }
    let name = field(values, "devices");
    if values.on_command_line("devices").is_none() {
        said.push(format!("--selected_gpus has no effect: {name} is {}", shown(one)));
        return Ok(());
    }
    Err(values.error("selected_gpus", &format!("{name} is {}", shown(one)), "give one of the two"))
}

/// What the user gave, if it is anything.
fn filled<'a>(values: &'a Values, name: &str) -> Option<&'a str> {
    values.given(name).filter(|text| !text.trim().is_empty())
}

/// The value of a variable; nothing counts as unset.
fn set<'a>(vars: &'a Vars, name: &str) -> Option<&'a str> {
    vars.get(name).map(String::as_str).filter(|text| !text.trim().is_empty())
}

fn refuse_newer(values: &Values, newer: &[&str]) -> Result<(), SpecError> {
    let Some(name) = newer.iter().find(|name| values.on_command_line(name).is_some()) else { return Ok(()) };
    let hint = match *name {
        "start_port" => "set FLAGS_START_PORT",
        "nnodes" | "rank" | "master" => "name the nodes with --ips, and this one with --host",
        _ => "leave it out, or leave out --legacy and the older launcher's own options",
    };
    Err(values.error(name, "the older launcher has no such option", hint))
}

/// Checks the request. `said` gets what the user should know.
pub fn check(values: &Values, vars: &Vars, said: &mut Vec<String>) -> Result<LegacySpec, SpecError> {
    // Jobs with servers have it in older words too.
    refuse_newer(values, &["gloo_port"])?;
    let (backend, backend_from) = backend(values, vars)?;
    if let Some(number) = values.int("nproc_per_node")?.filter(|number| *number < 1) {
        return Err(values.error("nproc_per_node", &format!("{number} is no number of ranks"), "give 1 or more"));
    }
    let ips = filled(values, "ips").unwrap_or("127.0.0.1").to_owned();
    let elastic = older_elastic::check(values, vars, said)?;
    let layout = match &elastic {
        Some(elastic) => Some(alone(elastic)),
        None => mapped(values, vars)?.map(Layout::Mapped),
    };
    let layout = match layout {
        Some(layout) => layout,
        None => match (cloud(vars, &ips, said)?, rank_table(values, vars, backend)?) {
            (Some(cloud), _) => Layout::Cloud(cloud),
            (None, Some(table)) => Layout::RankTable(table),
            (None, None) => listed(values, vars, &ips)?,
        },
    };
    let (idle, why): (&[&str], _) = match layout {
        Layout::Mapped(_) => (&["devices", "selected_gpus", "nproc_per_node", "ips"], "--enable_auto_mapping"),
        Layout::RankTable(_) => (&["devices", "selected_gpus", "ips"], "RANK_TABLE_FILE"),
        Layout::Nodes(..) | Layout::Cloud(_) => (&[], ""),
    };
    for name in idle.iter().filter(|name| filled(values, name).is_some()) {
        said.push(format!("{} has no effect with {why}: a file says who runs where", field(values, name)));
    }
    let with_gloo = values.given("with_gloo").unwrap_or("0").to_owned();
    Ok(LegacySpec { backend, backend_from, layout, ips, with_gloo, elastic })
}

/// This node's part of a job whose nodes find each other. Its address may be found later.
fn alone(elastic: &Elastic) -> Layout {
    let name = elastic.meeting.host.clone().unwrap_or_else(|| "127.0.0.1".into());
    let (start, from) = match elastic.ports {
        Some((first, from)) => (Start::From(first, from), from),
        None => (Start::Free, START),
    };
    let host = Host { name: name.clone(), ports: HostPorts::These(Vec::new()) };
    let from_host = ("--host".to_owned(), name.clone());
    Layout::Nodes(Fixed { hosts: vec![host], own: Some(name), from: from_host, ports_from: from.into() }, start)
}

fn backend(values: &Values, vars: &Vars) -> Result<(Backend, (String, String)), SpecError> {
    let (from, text) = match (filled(values, "backend"), set(vars, "PADDLE_DISTRI_BACKEND")) {
        (Some(text), _) => ("--backend", text),
        (None, Some(text)) => ("PADDLE_DISTRI_BACKEND", text),
        (None, None) => ("--backend", "auto"),
    };
    let backend = match text {
        "auto" => Backend::Auto,
        "gloo" => Backend::Gloo,
        "nccl" => Backend::Nccl,
        "bkcl" => Backend::Bkcl,
        "heter" => Backend::Heter,
        "xccl" | "flagcx" => Backend::Other,
        _ => {
            let why = format!(
                "paddle.distributed initialize error, backend argument can only be one of 'nccl', 'gloo', 'bkcl', \
                 'auto', 'heter', 'xccl' but got {text}"
            );
            return Err(SpecError::new(from, text, why, "auto takes what the devices that are there need"));
        }
    };
    Ok((backend, (from.into(), text.into())))
}

/// `--ips`, or this node alone. A single address is this node's, wherever it is.
fn listed(values: &Values, vars: &Vars, ips: &str) -> Result<Layout, SpecError> {
    let on_cloud = nodes::is_on_paddlecloud(vars);
    let start = start(vars)?;
    let from = field(values, "ips");
    let hosts = nodes::hosts(&from, ips, FIRST_PORT)?;
    let (own, start) = match &hosts[..] {
        [one] if !on_cloud => (Some(one.name.clone()), start.unwrap_or(Start::Free)),
        [one] => (Some(one.name.clone()), start.unwrap_or(Start::From(FIRST_PORT, START))),
        _ => (own(values), start.unwrap_or(Start::From(FIRST_PORT, START))),
    };
    let list = Fixed { hosts, own, from: (from, ips.to_owned()), ports_from: START.into() };
    Ok(Layout::Nodes(list, start))
}

/// This node's address, as far as the user says.
fn own(values: &Values) -> Option<String> {
    values.text("host").filter(|host| !host.is_empty()).map(|host| bare(host).to_owned())
}

fn start(vars: &Vars) -> Result<Option<Start>, SpecError> {
    set(vars, START).map(|text| Ok(Start::From(port_of(START, text)?, START))).transpose()
}

/// On the platform ports begin elsewhere.
fn cloud_start(vars: &Vars) -> Result<(u16, &'static str), SpecError> {
    Ok((set(vars, START).map_or(Ok(CLOUD_PORT), |text| port_of(START, text))?, START))
}

fn number(name: &'static str, text: &str) -> Result<usize, SpecError> {
    let number = text.trim().parse().ok();
    number.ok_or_else(|| SpecError::new(name, text, "is no number from 0 on", "give digits only, or unset it"))
}

/// The job platform's variables, if all are there and speak of several trainers.
fn cloud(vars: &Vars, ips: &str, said: &mut Vec<String>) -> Result<Option<Cloud>, SpecError> {
    let trainers = set(vars, "PADDLE_TRAINERS_NUM").map_or(Ok(1), |text| number("PADDLE_TRAINERS_NUM", text))?;
    let [Some(list), Some(ip), Some(id), Some(ports)] = CLOUD.map(|name| vars.get(name)) else { return Ok(None) };
    if trainers == 1 {
        return Ok(None);
    }
    let ports = number("TRAINER_PORTS_NUM", ports)?;
    let own = number("PADDLE_TRAINER_ID", id)?;
    let hosts: Vec<String> = list.split(',').map(|host| bare(host.trim()).to_owned()).collect();
    let endpoints =
        set(vars, "DISTRIBUTED_TRAINER_ENDPOINTS").map(|all| by_node(all, hosts.len(), ports)).transpose()?;
    if endpoints.is_none() {
        nodes::hosts("PADDLE_TRAINERS", list, CLOUD_PORT)?;
    }
    if !hosts.iter().any(|host| host == bare(ip)) {
        let why = format!("'{ip}' is not in list ({list}, PADDLE_TRAINERS)");
        return Err(SpecError::new("POD_IP", ip, why, "correct one of them"));
    }
    if own >= hosts.len() {
        let why = format!("PADDLE_TRAINERS has {} node(s), and the first is number 0", hosts.len());
        return Err(SpecError::new("PADDLE_TRAINER_ID", id, why, "correct one of them"));
    }
    if ips != "127.0.0.1" && ips != list {
        said.push(format!(
            "Please NOTE: When using paddlecloud, cluster_node_ips is automatically got from PADDLE_TRAINERS(multi \
             nodes) or POD_IP(single node). Your input cluster_node_ips: {ips} doesn't equals to IPs: {list} from \
             paddlecloud environment."
        ));
    }
    let port = set(vars, "PADDLE_PORT").filter(|_| hosts.len() > 1 && endpoints.is_none());
    let port = port.map(|port| port_of("PADDLE_PORT", port)).transpose()?;
    Ok(Some(Cloud { hosts, own, ports, endpoints, start: cloud_start(vars)?, port }))
}

/// A list of all endpoints, cut into as many for each node.
fn by_node(list: &str, nodes: usize, each: usize) -> Result<Vec<Vec<Endpoint>>, SpecError> {
    let refuse = |why: String| {
        Err(SpecError::new("DISTRIBUTED_TRAINER_ENDPOINTS", list, why, "give host:port joined by commas, node by node"))
    };
    let (mut all, mut known) = (Vec::new(), HashSet::new());
    for text in list.split(',').map(str::trim) {
        let Some(endpoint) = Endpoint::parse(text).filter(|endpoint| endpoint.port > 0) else {
            return refuse(format!("{} is no endpoint", text.escape_debug()));
        };
        if !known.insert(endpoint.clone()) {
            return refuse(format!("has {endpoint} twice"));
        }
        all.push(endpoint);
    }
    if nodes.checked_mul(each) != Some(all.len()) {
        return refuse(format!("has {} endpoints, and {nodes} nodes have {each} each", all.len()));
    }
    Ok(all.chunks(each.max(1)).map(<[Endpoint]>::to_vec).collect())
}

fn mapped(values: &Values, vars: &Vars) -> Result<Option<Mapped>, SpecError> {
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
        Some(text) => Start::From(port_of("PADDLE_PORT", text)?, "PADDLE_PORT"),
        None => start(vars)?.unwrap_or(Start::Free),
    };
    Ok(Some(Mapped { topology, mapping, own: own(values), start }))
}

fn rank_table(values: &Values, vars: &Vars, backend: Backend) -> Result<Option<RankTable>, SpecError> {
    let Some(path) = set(vars, "RANK_TABLE_FILE") else { return Ok(None) };
    // Any other names what runs, and that is no NPU.
    if backend != Backend::Auto {
        return Ok(None);
    }
    let index = set(vars, "PADDLE_TRAINER_ID").map(|text| number("PADDLE_TRAINER_ID", text)).transpose()?;
    let hosts = set(vars, "FLAGS_MODELARTS").map(|_| modelarts(vars)).transpose()?;
    Ok(Some(RankTable { path: path.to_owned(), hosts, index, own: own(values), start: cloud_start(vars)? }))
}

/// The nodes of a job on ModelArts.
fn modelarts(vars: &Vars) -> Result<Vec<String>, SpecError> {
    let unset =
        |name: &str| SpecError::new(name, "", format!("{name} didn't set!"), "set it, or unset FLAGS_MODELARTS");
    let count = set(vars, "DLS_TASK_NUMBER").ok_or_else(|| unset("DLS_TASK_NUMBER"))?;
    let mut hosts: Vec<String> = Vec::new();
    for node in 0..number("DLS_TASK_NUMBER", count)? {
        let name = format!("VC_CUSTOM{node}_HOSTS");
        let text = set(vars, &name).ok_or_else(|| unset(&name))?;
        let refuse = |why: String| Err(SpecError::new(&name, text, why, "give the address of one node, once"));
        let host = bare(text.trim());
        if text.contains(',') {
            return refuse("names several nodes".into());
        }
        nodes::hosts(&name, text, CLOUD_PORT)?;
        if let Some(first) = hosts.iter().position(|known| known == host) {
            return refuse(format!("VC_CUSTOM{first}_HOSTS names {host} already"));
        }
        hosts.push(host.to_owned());
    }
    if hosts.is_empty() {
        return Err(SpecError::new("DLS_TASK_NUMBER", count, "is no number of nodes", "give 1 or more"));
    }
    Ok(hosts)
}
