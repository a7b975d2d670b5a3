//! Jobs with parameter servers: servers, workers, coordinators and workers of later stages, by number or by endpoint.
//! Contract: `paddle.distributed.launch`, and `paddle.distributed.fleet.launch` for the legacy options.

use crate::model::{Endpoint, Role};
use crate::spec::endpoints::{
    FirstPort, LOCAL, LOCALHOST, ListenAddress, MOST, at, count, counted, is_loopback, list, port, start_port,
    without_brackets,
};
use crate::spec::error::{SpecError, shown};
use crate::spec::options::{EnvVars, OptValues};
use crate::spec::paddle::nodes::is_on_paddlecloud;
use std::collections::HashSet;

/// A job with parameter servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PsSpec {
    /// Paddle's job platform has set the whole environment: one process runs, with the environment as it is.
    Platform {
        /// The role of the process.
        role: Role,
        /// Its number in the role.
        number: usize,
    },
    /// The launcher starts these processes.
    Processes(Box<PsProcesses>),
}

impl PsSpec {
    /// Whether a process listens at this address.
    pub fn has_host(&self, address: &str) -> bool {
        matches!(self, PsSpec::Processes(all) if all.addresses().any(|own| own.host == address))
    }

    /// The same job on a node that has this address, if its processes are given by number.
    pub fn at(mut self, host: &str) -> Self {
        if let PsSpec::Processes(all) = &mut self
            && matches!(all.launcher, PsLauncher::Launch { nnodes: Some(_) })
        {
            for address in all.servers.iter_mut().chain(&mut all.workers).chain([&mut all.http]) {
                host.clone_into(&mut address.host);
            }
        }
        self
    }

    /// Whether its processes are given by number, so that nodes which no list names can find each other.
    pub fn is_by_number(&self) -> bool {
        matches!(self, PsSpec::Processes(all) if matches!(all.launcher, PsLauncher::Launch { nnodes: Some(_) }))
    }
}

/// The launcher whose options were given; the processes receive the variables of the same launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PsLauncher {
    /// `paddle.distributed.launch`.
    Launch {
        /// The number of nodes, if processes are given by number: each node then has those of its own. `None`: by endpoint.
        nnodes: Option<usize>,
    },
    /// `paddle.distributed.fleet.launch`.
    Legacy {
        /// Whether the job has later stages and runs on Paddle's job platform.
        cloud: bool,
    },
}

/// The workers of a stage after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PsStage {
    /// Their device type: `gpu`, `cpu`.
    pub device: String,
    /// Their addresses.
    pub workers: Vec<ListenAddress>,
}

/// All processes of a job, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PsProcesses {
    /// The launcher whose options were given.
    pub launcher: PsLauncher,
    /// Parameter servers.
    pub servers: Vec<ListenAddress>,
    /// Workers, also called trainers.
    pub workers: Vec<ListenAddress>,
    /// Coordinators of a federated job.
    pub coordinators: Vec<ListenAddress>,
    /// The second stage and those after it.
    pub stages: Vec<PsStage>,
    /// The address of the rendezvous, on the first server's node.
    pub http: ListenAddress,
    /// Whether the user gave that port, or it follows from other ports.
    pub http_is_given: bool,
    /// Value of PADDLE_WITH_GLOO.
    pub with_gloo: String,
    /// This node's address, if the user gives it.
    pub own_host: Option<String>,
}

impl PsProcesses {
    /// The addresses of all processes, in the order of their roles.
    pub fn addresses(&self) -> impl Iterator<Item = &ListenAddress> {
        let stages = self.stages.iter().flat_map(|stage| &stage.workers);
        self.servers.iter().chain(&self.workers).chain(&self.coordinators).chain(stages)
    }

    /// The hosts, each once, in order of appearance.
    pub fn hosts(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        self.addresses().filter(|address| seen.insert(&address.host)).map(|address| address.host.clone()).collect()
    }

    /// If the hosts are `localhost` and one loopback address, replaces `localhost` by that address: they are one node.
    fn with_one_loopback(mut self) -> Self {
        let hosts = self.hosts();
        let Some(other) = hosts.iter().find(|host| *host != LOCALHOST) else { return self };
        if hosts.len() != 2 || !hosts.iter().all(|host| is_loopback(host)) || !hosts.iter().any(|h| h == LOCALHOST) {
            return self;
        }
        let stages = self.stages.iter_mut().flat_map(|stage| &mut stage.workers);
        let listed = self.servers.iter_mut().chain(&mut self.workers).chain(&mut self.coordinators).chain(stages);
        let named = listed.chain([&mut self.http]).map(|address| &mut address.host).chain(&mut self.own_host);
        for host in named.filter(|host| *host == LOCALHOST) {
            host.clone_from(other);
        }
        self
    }
}

/// The first port of workers without ports; one port for each server precedes theirs.
const WORKER_PORT: u32 = 6170;

/// Reads the options of `paddle.distributed.launch`: both lists of endpoints, or numbers.
pub fn from_launch_options(values: &OptValues, vars: &EnvVars) -> Result<PsSpec, SpecError> {
    let own_host = own_host(values);
    let (server_num, trainer_num) = (count(values, "server_num")?, count(values, "trainer_num")?);
    let gloo_port = port(values, "gloo_port")?;
    let lists = ["servers", "trainers"].map(|name| values.is_set(name));
    let (servers, workers, http, launcher) = match lists {
        [true, true] => {
            let servers = endpoints(values, "servers", server_num)?;
            let workers = endpoints(values, "trainers", trainer_num)?;
            let http = ListenAddress { host: servers[0].host.clone(), port: gloo_port };
            (servers, workers, http, PsLauncher::Launch { nnodes: None })
        }
        [false, false] => {
            let host = own_host.as_deref().filter(|host| host.contains(['.', ':'])).unwrap_or(LOCAL);
            let start = start_port(vars, "FLAGS_FIXED_PORT")?;
            let servers = counted(host, server_num.unwrap_or(1), start, 0)?;
            let workers = counted(host, trainer_num.unwrap_or(1), start, servers.len())?;
            let http = ListenAddress { host: host.to_owned(), port: None };
            (servers, workers, http, PsLauncher::Launch { nnodes: Some(1) })
        }
        [true, false] => {
            let hint = "give --trainers as well, or --server_num and --trainer_num for processes on this node";
            return Err(values.error("servers", "has no effect without --trainers", hint));
        }
        [false, true] => {
            let hint = "give --servers as well, or --server_num and --trainer_num for processes on this node";
            return Err(values.error("trainers", "has no effect without --servers", hint));
        }
    };
    let job = PsProcesses {
        launcher,
        servers,
        workers,
        coordinators: Vec::new(),
        stages: Vec::new(),
        http,
        http_is_given: lists == [true, true] && values.given("gloo_port").is_some(),
        with_gloo: values.text("with_gloo").unwrap_or("1").to_owned(),
        own_host: own_host.filter(|_| lists == [true, true]),
    };
    check_addresses(job.with_one_loopback())
}

/// This node's address, if the user gives it.
fn own_host(values: &OptValues) -> Option<String> {
    values.text("host").filter(|host| !host.is_empty()).map(|host| without_brackets(host).to_owned())
}

/// Reads the options of the legacy launcher.
pub fn from_legacy_options(
    values: &OptValues,
    vars: &EnvVars,
    heter: bool,
    warnings: &mut Vec<String>,
) -> Result<PsSpec, SpecError> {
    for (name, legacy) in [("trainers", "--workers"), ("trainer_num", "--worker_num")] {
        if values.is_set(name) {
            let why = "cannot be combined with options of the legacy launcher";
            return Err(values.error(name, why, &format!("give {legacy}")));
        }
    }
    let on_cloud = is_on_paddlecloud(vars);
    if on_cloud && !heter {
        return Ok(from_platform(vars));
    }
    let on_platform = |name: &str| vars.get(name).filter(|text| on_cloud && !text.trim().is_empty());
    let cloud = on_platform("PSERVER_IP_PORT_LIST").zip(on_platform("TRAINER_IP_PORT_LIST"));
    let start = start_port(vars, "FLAGS_START_PORT")?;
    let (servers, workers) = match cloud {
        Some((servers, _)) => read_platform_lists(values, vars, servers, warnings)?,
        None => {
            let servers = group(values, ("server", "--server_num, --servers"), start, 0, &|_| None)?;
            let first = WORKER_PORT + servers.len() as u32;
            let default = |i: usize| u16::try_from(first + i as u32).ok();
            let workers = group(values, ("worker", "--worker_num, --workers"), start, servers.len(), &default)?;
            (servers, workers)
        }
    };
    let stages = match cloud {
        Some((_, later)) => stages(values, Some(later), start, servers.len() + workers.len())?,
        None if heter => stages(values, None, start, servers.len() + workers.len())?,
        None => Vec::new(),
    };
    let behind = servers.len() + workers.len() + stages.iter().map(|stage| stage.workers.len()).sum::<usize>();
    // Their ports follow that of the rendezvous; in Paddle they are the servers' ports.
    let coordinators = coordinators(values, start, behind + 1)?;
    let given = ["http_port", "gloo_port"].into_iter().find(|name| values.is_set(name));
    let http_port = match given {
        Some(name) => port(values, name)?,
        None => at(start, behind, 1)?,
    };
    let http = ListenAddress { host: servers[0].host.clone(), port: http_port };
    let mut job = PsProcesses {
        launcher: PsLauncher::Legacy { cloud: cloud.is_some() },
        servers,
        workers,
        coordinators,
        stages,
        http,
        http_is_given: http_port.is_some(),
        with_gloo: values.given("with_gloo").unwrap_or("0").to_owned(),
        own_host: own_host(values),
    }
    .with_one_loopback();
    if http_port.is_none() && job.hosts().len() > 1 {
        // A free port would differ from node to node.
        job.http.port = port(values, "gloo_port")?;
    }
    check_addresses(job)
}

/// Reads the role and number of this process from the platform's variables.
fn from_platform(vars: &EnvVars) -> PsSpec {
    let text = |name: &str| vars.get(name).map_or("", String::as_str);
    let role = match text("TRAINING_ROLE") {
        "PSERVER" => Role::Server,
        "HETER_TRAINER" => Role::HeterWorker,
        "COORDINATOR" => Role::Coordinator,
        _ => Role::Trainer,
    };
    let port = text("PADDLE_PORT").trim().parse().unwrap_or(0);
    let own = Endpoint::new(without_brackets(text("POD_IP")), port);
    let is_own = |endpoint: &str| Endpoint::parse(endpoint.trim()).is_some_and(|endpoint| endpoint == own);
    let number = match role {
        Role::Server => text("PADDLE_PSERVERS_IP_PORT_LIST").split(',').position(is_own),
        _ => text("PADDLE_TRAINER_ID").trim().parse().ok(),
    };
    PsSpec::Platform { role, number: number.unwrap_or(0) }
}

/// With later stages, the platform lists the servers, and the workers of the second stage as trainers. Each server's
/// node has a worker of the first stage, one port above the server's.
fn read_platform_lists(
    values: &OptValues,
    vars: &EnvVars,
    servers: &str,
    warnings: &mut Vec<String>,
) -> Result<(Vec<ListenAddress>, Vec<ListenAddress>), SpecError> {
    let ports = vars.get("TRAINER_PORTS").map_or("", String::as_str);
    if ports.split(',').filter(|port| !port.trim().is_empty()).count() < 2 {
        let hint = "set paddle_ports_num >= 2 in config.ini for paddlecloud job submit";
        return Err(SpecError::new("TRAINER_PORTS", ports, "has fewer than two ports", hint));
    }
    let field = "PSERVER_IP_PORT_LIST";
    let servers_at = list(field, servers, &|_| None)?;
    let above = |server: &ListenAddress| {
        Some(ListenAddress { host: server.host.clone(), port: Some(server.port?.checked_add(1)?) })
    };
    let Some(workers) = servers_at.iter().map(above).collect() else {
        let why = "has an endpoint without a port, or with no port below 65536 left for its worker";
        return Err(SpecError::new(field, servers, why, "give host:port separated by commas"));
    };
    for name in ["servers", "server_num", "workers", "worker_num", "heter_workers", "heter_worker_num"] {
        if values.is_set(name) {
            warnings
                .push(format!("args {name} will be overridden by env: PSERVER_IP_PORT_LIST and TRAINER_IP_PORT_LIST"));
        }
    }
    Ok((servers_at, workers))
}

/// Reads the stages after the first, by endpoints or by numbers. `platform_list`: the platform's endpoints.
fn stages(
    values: &OptValues,
    platform_list: Option<&String>,
    start: FirstPort,
    before: usize,
) -> Result<Vec<PsStage>, SpecError> {
    let text = |name: &str| values.text(name).filter(|text| !text.trim().is_empty());
    let missing = |what: &str, hint: &str| {
        let why = format!("The setting of Parameter-Server heter mode must has {what}");
        Err(SpecError::new(format!("--{}", what.replace(" or ", ", --")), "", why, hint))
    };
    let Some(devices) = text("heter_devices") else {
        return missing("heter_devices", "give the device type of each later stage, such as gpu or gpu;cpu");
    };
    let devices: Vec<&str> = devices.split(';').map(str::trim).collect();
    if devices.contains(&"") {
        return Err(values.error("heter_devices", "has an empty item", "give a device type for each stage"));
    }
    let counts = text("heter_worker_num").filter(|_| platform_list.is_none()).map(|text| {
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| (1..=MOST as usize).contains(n));
        text.split(';').map(number).collect::<Option<Vec<_>>>().ok_or_else(|| {
            values.error(
                "heter_worker_num",
                "is not a list of numbers",
                "give a number of workers for each stage, such as 1;2",
            )
        })
    });
    let counts = counts.transpose()?;
    if counts.iter().flatten().sum::<usize>() > MOST as usize {
        return Err(values.error(
            "heter_worker_num",
            "is more workers than there are ports",
            "give at most 65535 in all",
        ));
    }
    let (field, lists) = match platform_list {
        Some(list) => ("TRAINER_IP_PORT_LIST".to_owned(), Some(list.as_str())),
        None => (values.field("heter_workers"), text("heter_workers")),
    };
    let mut first = before;
    let stages: Vec<Vec<ListenAddress>> = match (lists, &counts) {
        (Some(lists), _) => {
            let lists: Vec<&str> = lists.split(';').collect();
            if let Some(counts) = counts.as_ref().filter(|counts| counts.len() != lists.len()) {
                let why = format!(
                    "The stage_num and heter_workers doesn't match. Expect heter_workers endpoints stage num equal to \
                     heter_worker_num stage, but received heter_workers endpoint stage num: {} and heter_worker_num \
                     stage {}",
                    lists.len(),
                    counts.len()
                );
                return Err(SpecError::new(field, lists.join(";"), why, "give one list of endpoints for each stage"));
            }
            let of = |(i, text): (usize, &&str)| {
                let base = first;
                let workers = list(&field, text, &|j| start?.1.checked_add(u16::try_from(base + j).ok()?))?;
                if workers.iter().any(|worker| worker.port.is_none()) {
                    at(start, base, workers.len())?;
                }
                first += workers.len();
                match counts.as_ref().map(|counts| counts[i]).filter(|count| *count != workers.len()) {
                    None => Ok(workers),
                    Some(_) => {
                        let why = format!(
                            "The heter trainer num in stage {i} is not equal in args.heter_worker_num and \
                             args.heter_workers"
                        );
                        Err(SpecError::new(&field, *text, why, "leave out one of the two"))
                    }
                }
            };
            lists.iter().enumerate().map(of).collect::<Result<_, _>>()?
        }
        (None, Some(counts)) => {
            let of = |count: &usize| {
                first += count;
                counted(LOCAL, *count, start, first - count)
            };
            counts.iter().map(of).collect::<Result<_, _>>()?
        }
        (None, None) => {
            return missing("heter_worker_num or heter_workers", "give one of them, with ; between stages");
        }
    };
    if devices.len() != stages.len() {
        let why = format!("has {} device type(s) for {} stage(s)", devices.len(), stages.len());
        return Err(values.error("heter_devices", &why, "give one for each stage, separated by ;"));
    }
    let stage = |(device, workers): (&str, Vec<ListenAddress>)| PsStage { device: device.to_owned(), workers };
    Ok(devices.into_iter().zip(stages).map(stage).collect())
}

fn coordinators(values: &OptValues, start: FirstPort, offset: usize) -> Result<Vec<ListenAddress>, SpecError> {
    if !values.is_set("coordinators") && !values.is_set("coordinator_num") {
        return Ok(Vec::new());
    }
    group(values, ("coordinator", "--coordinator_num, --coordinators"), start, offset, &|_| None)
}

/// Reads the legacy options about one kind of process: `--{kind}_num`, `--{kind}s`, or both.
fn group(
    values: &OptValues,
    (kind, both): (&str, &str),
    start: FirstPort,
    offset: usize,
    default: &dyn Fn(usize) -> Option<u16>,
) -> Result<Vec<ListenAddress>, SpecError> {
    let (num, all) = (format!("{kind}_num"), format!("{kind}s"));
    let count = count(values, &num)?;
    let Some(text) = values.text(&all).filter(|text| !text.trim().is_empty()) else {
        return match count {
            Some(count) => counted(LOCAL, count, start, offset),
            None => {
                let why = format!("The setting of Parameter-Server must has {num} or {all}");
                Err(SpecError::new(both, "", why, "give a number of processes on this node, or endpoints"))
            }
        };
    };
    let places = list(&values.field(&all), text, default)?;
    if let Some(place) = places.iter().find(|place| place.port.is_none()) {
        let why = format!("{} has no port", shown(&place.host));
        return Err(values.error(&all, &why, "give host:port separated by commas"));
    }
    match count.filter(|count| *count != places.len()) {
        Some(count) => Err(mismatch(values, kind, &all, places.len(), count)),
        None => Ok(places),
    }
}

/// Reads endpoints with ports.
fn endpoints(values: &OptValues, name: &'static str, count: Option<usize>) -> Result<Vec<ListenAddress>, SpecError> {
    let places = list(&values.field(name), values.text(name).unwrap_or(""), &|_| None)?;
    if let Some(place) = places.iter().find(|place| place.port.is_none()) {
        let why = format!("{} has no port", shown(&place.host));
        return Err(values.error(name, &why, "give host:port separated by commas"));
    }
    match count.filter(|count| *count != places.len()) {
        Some(count) => Err(mismatch(values, name.trim_end_matches('s'), name, places.len(), count)),
        None => Ok(places),
    }
}

fn mismatch(values: &OptValues, kind: &str, all: &str, endpoints: usize, count: usize) -> SpecError {
    // Paddle's text.
    let received = if kind == "coordinator" { kind } else { all };
    let why = format!(
        "The {kind}_num and {kind}s doesn't match. Expect {kind}s endpoints num equal to {kind}_num, but received \
         {received} endpoint num: {endpoints} and {kind}_num {count}"
    );
    values.error(all, &why, "leave out one of the two")
}

/// Checks that all addresses are known to all nodes, and different.
fn check_addresses(job: PsProcesses) -> Result<PsSpec, SpecError> {
    let shown = |address: &ListenAddress| match address.port {
        Some(port) => Endpoint::new(&address.host, port).to_string(),
        None => address.host.clone(),
    };
    let hosts = job.hosts();
    if let (Some(place), true) = (job.addresses().find(|address| address.port.is_none()), hosts.len() > 1) {
        let why = "has no port, and other nodes cannot know a free one";
        return Err(SpecError::new("the process on", shown(place), why, "give all endpoints with ports"));
    }
    let http = Some(&job.http).filter(|http| http.port.is_some());
    let mut seen = HashSet::new();
    let mut chosen = job.addresses().filter(|address| address.port.is_some()).chain(http);
    let twice = chosen.find(|place| !seen.insert((&place.host, place.port)));
    if let Some(place) = twice.cloned() {
        let why = "is the address of two processes";
        let hint = "give each process its own address, and --gloo_port or --http_port another port";
        return Err(SpecError::new("the endpoint", shown(&place), why, hint));
    }
    drop(chosen);
    Ok(PsSpec::Processes(Box::new(job)))
}
