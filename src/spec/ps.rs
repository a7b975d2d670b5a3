//! Parameter-server jobs: servers, workers, coordinators and the workers of later stages, by count or by endpoint.
//! Contract: `paddle.distributed.launch` (the newer words) and `paddle.distributed.fleet.launch` (the older ones).

use super::SpecError;
use super::job::is_given;
use super::nodes::{bare, is_on_paddlecloud};
use super::options::{Values, Vars};
use super::places::{First, LOCAL, LOCALHOST, MOST, Place, at, count, counted, is_loopback, list, port, start_port};
use crate::model::{Endpoint, Role};
use std::collections::HashSet;

/// A job of this kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PsSpec {
    /// Paddle's job platform has told this process all: it runs once, with the environment as it is.
    AsTold {
        /// What the process is for.
        role: Role,
        /// Its number.
        number: usize,
    },
    /// The launcher lays it out.
    Laid(Box<Laid>),
}

impl PsSpec {
    /// Whether any process is to listen at this address.
    pub fn has_host(&self, address: &str) -> bool {
        matches!(self, PsSpec::Laid(laid) if laid.places().any(|place| place.host == address))
    }
}

/// Whose words a job was asked for in; its processes are told in the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Those of `paddle.distributed.launch`.
    Newer {
        /// By counts: a rendezvous would have found this many nodes.
        nnodes: Option<usize>,
    },
    /// Those of `paddle.distributed.fleet.launch`.
    Older {
        /// On Paddle's job platform, with later stages.
        cloud: bool,
    },
}

/// The workers of a stage after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The kind of device they use: `gpu`, `cpu`.
    pub device: String,
    /// Where they listen.
    pub workers: Vec<Place>,
}

/// All processes of a job, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Laid {
    /// Whose words.
    pub form: Form,
    /// Parameter servers.
    pub servers: Vec<Place>,
    /// Workers, which the newer words call trainers.
    pub workers: Vec<Place>,
    /// Coordinators, of a federated job.
    pub coordinators: Vec<Place>,
    /// The second stage and those after it.
    pub stages: Vec<Stage>,
    /// Where processes find each other, on the first server's node.
    pub http: Place,
    /// Whether the user has chosen that port, or another process may have it.
    pub http_asked: bool,
    /// The value of PADDLE_WITH_GLOO.
    pub with_gloo: String,
    /// This node's address, as far as the user says.
    pub own: Option<String>,
}

impl Laid {
    /// Where all of them listen, in the order of their roles.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        let stages = self.stages.iter().flat_map(|stage| &stage.workers);
        self.servers.iter().chain(&self.workers).chain(&self.coordinators).chain(stages)
    }

    /// The nodes' addresses, in the order in which they are named.
    pub fn hosts(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        self.places().filter(|place| seen.insert(&place.host)).map(|place| place.host.clone()).collect()
    }

    /// Where all hosts are `localhost` and one address of loopback, they are one node, by that address.
    fn with_one_loopback(mut self) -> Self {
        let hosts = self.hosts();
        let Some(other) = hosts.iter().find(|host| *host != LOCALHOST) else { return self };
        if hosts.len() != 2 || !hosts.iter().all(|host| is_loopback(host)) || !hosts.iter().any(|h| h == LOCALHOST) {
            return self;
        }
        let stages = self.stages.iter_mut().flat_map(|stage| &mut stage.workers);
        let listed = self.servers.iter_mut().chain(&mut self.workers).chain(&mut self.coordinators).chain(stages);
        let named = listed.chain([&mut self.http]).map(|place| &mut place.host).chain(&mut self.own);
        for host in named.filter(|host| *host == LOCALHOST) {
            host.clone_from(other);
        }
        self
    }
}

/// Workers without ports listen from here on, behind as many ports as there are servers.
const WORKER_PORT: u32 = 6170;

/// What the newer words ask for: both lists of endpoints, or counts.
pub fn newer(values: &Values, vars: &Vars) -> Result<PsSpec, SpecError> {
    let own = own(values);
    let (server_num, trainer_num) = (count(values, "server_num")?, count(values, "trainer_num")?);
    let gloo_port = port(values, "gloo_port")?;
    let lists = ["servers", "trainers"].map(|name| is_given(values, name));
    let (servers, workers, http, form) = match lists {
        [true, true] => {
            let servers = endpoints(values, "servers", server_num)?;
            let workers = endpoints(values, "trainers", trainer_num)?;
            let http = Place { host: servers[0].host.clone(), port: gloo_port };
            (servers, workers, http, Form::Newer { nnodes: None })
        }
        [false, false] => {
            let host = own.as_deref().filter(|host| host.contains(['.', ':'])).unwrap_or(LOCAL);
            let start = start_port(vars, "FLAGS_FIXED_PORT")?;
            let servers = counted(host, server_num.unwrap_or(1), start, 0)?;
            let workers = counted(host, trainer_num.unwrap_or(1), start, servers.len())?;
            let http = Place { host: host.to_owned(), port: None };
            (servers, workers, http, Form::Newer { nnodes: Some(1) })
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
    let job = Laid {
        form,
        servers,
        workers,
        coordinators: Vec::new(),
        stages: Vec::new(),
        http,
        http_asked: lists == [true, true] && values.given("gloo_port").is_some(),
        with_gloo: values.text("with_gloo").unwrap_or("1").to_owned(),
        own: own.filter(|_| lists == [true, true]),
    };
    laid(job.with_one_loopback())
}

/// This node's address, as far as the user says.
fn own(values: &Values) -> Option<String> {
    values.text("host").filter(|host| !host.is_empty()).map(|host| bare(host).to_owned())
}

/// What the older words ask for.
pub fn older(values: &Values, vars: &Vars, heter: bool, said: &mut Vec<String>) -> Result<PsSpec, SpecError> {
    for (newer, older) in [("trainers", "--workers"), ("trainer_num", "--worker_num")] {
        if is_given(values, newer) {
            let why = "is the newer launcher's word, among options of the older one";
            return Err(values.error(newer, why, &format!("say {older}")));
        }
    }
    let on_cloud = is_on_paddlecloud(vars);
    if on_cloud && !heter {
        return Ok(as_told(vars));
    }
    let told = |name: &str| vars.get(name).filter(|text| on_cloud && !text.trim().is_empty());
    let cloud = told("PSERVER_IP_PORT_LIST").zip(told("TRAINER_IP_PORT_LIST"));
    let start = start_port(vars, "FLAGS_START_PORT")?;
    let (servers, workers) = match cloud {
        Some((servers, _)) => on_the_platform(values, vars, servers, said)?,
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
    // Behind the rendezvous' port: in Paddle they have those of servers.
    let coordinators = coordinators(values, start, behind + 1)?;
    let asked = ["http_port", "gloo_port"].into_iter().find(|name| is_given(values, name));
    let http_port = match asked {
        Some(name) => port(values, name)?,
        None => at(start, behind, 1)?,
    };
    let http = Place { host: servers[0].host.clone(), port: http_port };
    let mut job = Laid {
        form: Form::Older { cloud: cloud.is_some() },
        servers,
        workers,
        coordinators,
        stages,
        http,
        http_asked: http_port.is_some(),
        with_gloo: values.given("with_gloo").unwrap_or("0").to_owned(),
        own: own(values),
    }
    .with_one_loopback();
    if http_port.is_none() && job.hosts().len() > 1 {
        // A free one would be another on each node.
        job.http.port = port(values, "gloo_port")?;
    }
    laid(job)
}

fn as_told(vars: &Vars) -> PsSpec {
    let text = |name: &str| vars.get(name).map_or("", String::as_str);
    let role = match text("TRAINING_ROLE") {
        "PSERVER" => Role::Server,
        "HETER_TRAINER" => Role::HeterWorker,
        "COORDINATOR" => Role::Coordinator,
        _ => Role::Trainer,
    };
    let port = text("PADDLE_PORT").trim().parse().unwrap_or(0);
    let own = Endpoint::new(bare(text("POD_IP")), port);
    let is_own = |endpoint: &str| Endpoint::parse(endpoint.trim()).is_some_and(|endpoint| endpoint == own);
    let number = match role {
        Role::Server => text("PADDLE_PSERVERS_IP_PORT_LIST").split(',').position(is_own),
        _ => text("PADDLE_TRAINER_ID").trim().parse().ok(),
    };
    PsSpec::AsTold { role, number: number.unwrap_or(0) }
}

/// With later stages, that platform names the servers, and the workers of the second stage as trainers; each server's
/// node has a worker of the first stage, one port above.
fn on_the_platform(
    values: &Values,
    vars: &Vars,
    servers: &str,
    said: &mut Vec<String>,
) -> Result<(Vec<Place>, Vec<Place>), SpecError> {
    let ports = vars.get("TRAINER_PORTS").map_or("", String::as_str);
    if ports.split(',').filter(|port| !port.trim().is_empty()).count() < 2 {
        let hint = "set paddle_ports_num >= 2 in config.ini for paddlecloud job submit";
        return Err(SpecError::new("TRAINER_PORTS", ports, "has fewer than two ports", hint));
    }
    let field = "PSERVER_IP_PORT_LIST";
    let places = list(field, servers, &|_| None)?;
    let above = |server: &Place| Some(Place { host: server.host.clone(), port: Some(server.port?.checked_add(1)?) });
    let Some(workers) = places.iter().map(above).collect() else {
        let why = "has an endpoint without a port, or leaves none below 65536 for the worker beside it";
        return Err(SpecError::new(field, servers, why, "give host:port joined by commas"));
    };
    for name in ["servers", "server_num", "workers", "worker_num", "heter_workers", "heter_worker_num"] {
        if is_given(values, name) {
            said.push(format!("args {name} will be overridden by env: PSERVER_IP_PORT_LIST and TRAINER_IP_PORT_LIST"));
        }
    }
    Ok((places, workers))
}

/// The stages after the first: by endpoints, or by counts.
fn stages(values: &Values, told: Option<&String>, start: First, before: usize) -> Result<Vec<Stage>, SpecError> {
    let text = |name: &str| values.text(name).filter(|text| !text.trim().is_empty());
    let missing = |what: &str, hint: &str| {
        let why = format!("The setting of Parameter-Server heter mode must has {what}");
        Err(SpecError::new(format!("--{}", what.replace(" or ", ", --")), "", why, hint))
    };
    let Some(devices) = text("heter_devices") else {
        return missing("heter_devices", "give the kind of device of each later stage, such as gpu or gpu;cpu");
    };
    let devices: Vec<&str> = devices.split(';').map(str::trim).collect();
    if devices.contains(&"") {
        return Err(values.error("heter_devices", "has an empty place in the list", "give a kind for each stage"));
    }
    let counts = text("heter_worker_num").filter(|_| told.is_none()).map(|text| {
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| (1..=MOST as usize).contains(n));
        text.split(';').map(number).collect::<Option<Vec<_>>>().ok_or_else(|| {
            values.error("heter_worker_num", "is no list of numbers", "give a number of workers a stage, such as 1;2")
        })
    });
    let counts = counts.transpose()?;
    if counts.iter().flatten().sum::<usize>() > MOST as usize {
        return Err(values.error(
            "heter_worker_num",
            "asks for more workers than there are ports",
            "give 65535 in all",
        ));
    }
    let (field, lists) = match told {
        Some(list) => ("TRAINER_IP_PORT_LIST".to_owned(), Some(list.as_str())),
        None => (values.error("heter_workers", "", "").field, text("heter_workers")),
    };
    let mut first = before;
    let stages: Vec<Vec<Place>> = match (lists, &counts) {
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
                return Err(SpecError::new(field, lists.join(";"), why, "give one list of endpoints a stage"));
            }
            let of = |(i, text): (usize, &&str)| {
                let base = first;
                let places = list(&field, text, &|j| start?.1.checked_add(u16::try_from(base + j).ok()?))?;
                if places.iter().any(|place| place.port.is_none()) {
                    at(start, base, places.len())?;
                }
                first += places.len();
                match counts.as_ref().map(|counts| counts[i]).filter(|count| *count != places.len()) {
                    None => Ok(places),
                    Some(_) => {
                        let why = format!(
                            "The heter trainer num in stage {i} is not equal in args.heter_worker_num and \
                             args.heter_workers"
                        );
                        Err(SpecError::new(&field, *text, why, "leave one of the two out"))
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
        let why = format!("names {} kind(s) of device for {} stage(s)", devices.len(), stages.len());
        return Err(values.error("heter_devices", &why, "give one a stage, joined by ;"));
    }
    let stage = |(device, workers): (&str, Vec<Place>)| Stage { device: device.to_owned(), workers };
    Ok(devices.into_iter().zip(stages).map(stage).collect())
}

fn coordinators(values: &Values, start: First, offset: usize) -> Result<Vec<Place>, SpecError> {
    if !is_given(values, "coordinators") && !is_given(values, "coordinator_num") {
        return Ok(Vec::new());
    }
    group(values, ("coordinator", "--coordinator_num, --coordinators"), start, offset, &|_| None)
}

/// Processes of one kind in the older words: `--{kind}_num`, `--{kind}s`, or both.
fn group(
    values: &Values,
    (kind, both): (&str, &str),
    start: First,
    offset: usize,
    default: &dyn Fn(usize) -> Option<u16>,
) -> Result<Vec<Place>, SpecError> {
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
    let places = list(&values.error(&all, "", "").field, text, default)?;
    if let Some(place) = places.iter().find(|place| place.port.is_none()) {
        let why = format!("{} has no port", place.host.escape_debug());
        return Err(values.error(&all, &why, "give host:port joined by commas"));
    }
    match count.filter(|count| *count != places.len()) {
        Some(count) => Err(mismatch(values, kind, &all, places.len(), count)),
        None => Ok(places),
    }
}

/// The newer words' endpoints, which all have ports.
fn endpoints(values: &Values, name: &'static str, count: Option<usize>) -> Result<Vec<Place>, SpecError> {
    let places = list(&values.error(name, "", "").field, values.text(name).unwrap_or(""), &|_| None)?;
    if let Some(place) = places.iter().find(|place| place.port.is_none()) {
        let why = format!("{} has no port", place.host.escape_debug());
        return Err(values.error(name, &why, "give host:port joined by commas"));
    }
    match count.filter(|count| *count != places.len()) {
        Some(count) => Err(mismatch(values, name.trim_end_matches('s'), name, places.len(), count)),
        None => Ok(places),
    }
}

fn mismatch(values: &Values, kind: &str, all: &str, endpoints: usize, count: usize) -> SpecError {
    // As Paddle says it.
    let received = if kind == "coordinator" { kind } else { all };
    let why = format!(
        "The {kind}_num and {kind}s doesn't match. Expect {kind}s endpoints num equal to {kind}_num, but received \
         {received} endpoint num: {endpoints} and {kind}_num {count}"
    );
    values.error(all, &why, "leave one of the two out")
}

/// The last checks, of all processes together.
fn laid(job: Laid) -> Result<PsSpec, SpecError> {
    let shown = |place: &Place| match place.port {
        Some(port) => Endpoint::new(&place.host, port).to_string(),
        None => place.host.clone(),
    };
    let hosts = job.hosts();
    if let (Some(place), true) = (job.places().find(|place| place.port.is_none()), hosts.len() > 1) {
        let why = "is to get a free port, which the other nodes could not know";
        return Err(SpecError::new("the process on", shown(place), why, "give all endpoints with ports"));
    }
    let http = Some(&job.http).filter(|http| http.port.is_some());
    let mut seen = HashSet::new();
    let mut chosen = job.places().filter(|place| place.port.is_some()).chain(http);
    let twice = chosen.find(|place| !seen.insert((&place.host, place.port)));
    if let Some(place) = twice.cloned() {
        let why = "is where two processes are to listen";
        let hint = "give each of them one of its own, and --gloo_port or --http_port another";
        return Err(SpecError::new("the endpoint", shown(&place), why, hint));
    }
    drop(chosen);
    Ok(PsSpec::Laid(Box::new(job)))
}
