//! A job with parameter servers: who of them runs on this node, and what each is told.

use super::cluster::{self, Addresses};
use super::nested::Hashes;
use super::{HostFacts, Plan, RankPlan, command, surroundings};
use crate::dialect::{Binding, paddle_launch, paddle_ps};
use crate::model::{Endpoint, EnvPatch, Role, Who};
use crate::spec::options::Vars;
use crate::spec::places::{LOCALHOST, Place, is_loopback};
use crate::spec::ps::{Form, Laid};
use crate::spec::{LaunchSpec, SpecError};
use std::sync::Arc;

/// Where all processes of a job listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Parameter servers.
    pub servers: Arc<[Endpoint]>,
    /// Workers.
    pub workers: Arc<[Endpoint]>,
    /// Coordinators.
    pub coordinators: Arc<[Endpoint]>,
    /// Workers of the second stage and of those after it.
    pub stages: Vec<Arc<[Endpoint]>>,
    /// Where the rendezvous listens.
    pub http: Endpoint,
    /// This node's address in those lists.
    pub own: String,
}

/// The devices that workers get in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// `gpu` or `xpu`.
    pub kind: String,
    /// Their names, as a visible list has them; none: the CPU.
    pub names: Vec<String>,
}

/// This node's address in the lists. One that is alone and a loopback address is every node's.
pub fn own(laid: &Laid, addresses: &Addresses<'_>) -> Result<String, SpecError> {
    let hosts = laid.hosts();
    if let [only] = &hosts[..]
        && is_loopback(only)
    {
        return Ok(only.clone());
    }
    let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let field = match laid.form {
        Form::Newer { .. } => "the nodes of --servers and --trainers",
        Form::Older { .. } => "the nodes of --servers and --workers",
    };
    // By count they are where the user says that this node is.
    if matches!(laid.form, Form::Newer { nnodes: Some(_) }) {
        return Ok(hosts.into_iter().next().unwrap_or_default());
    }
    let hint = "write this node's address the same way everywhere";
    if names.contains(&LOCALHOST) {
        let why = "localhost is every node, beside addresses of one";
        return Err(SpecError::new(field, hosts.join(","), why, hint));
    }
    let at = cluster::own(&names, laid.own.as_deref(), &(field.to_owned(), hosts.join(",")), addresses);
    match at {
        Ok(at) => Ok(names[at].to_owned()),
        // It is likely that one node has two names; --host would leave out what is under the other.
        Err(error) if names.iter().any(|name| is_loopback(name)) => {
            let hint = format!("{hint}; --host chooses among nodes that are apart");
            Err(SpecError { hint, ..error })
        }
        Err(error) => Err(error),
    }
}

/// Fills in the free ports; `None` if there are too few.
pub fn layout(laid: &Laid, own: &str, free: &[u16]) -> Option<Layout> {
    let mut free = free.iter().copied();
    let mut fill = |place: &Place| Some(Endpoint::new(&place.host, place.port.or_else(|| free.next())?));
    Some(Layout {
        servers: laid.servers.iter().map(&mut fill).collect::<Option<_>>()?,
        workers: laid.workers.iter().map(&mut fill).collect::<Option<_>>()?,
        coordinators: laid.coordinators.iter().map(&mut fill).collect::<Option<_>>()?,
        stages: laid
            .stages
            .iter()
            .map(|stage| stage.workers.iter().map(&mut fill).collect::<Option<_>>())
            .collect::<Option<_>>()?,
        http: fill(&laid.http)?,
        own: own.to_owned(),
    })
}

/// The plan for this node: servers, workers, coordinators, workers of later stages.
pub fn plan(
    spec: &LaunchSpec,
    laid: &Laid,
    vars: &Vars,
    facts: &HostFacts,
    devices: &Devices,
    layout: &Layout,
) -> Result<Plan, SpecError> {
    let pod = paddle_launch::Pod {
        name: facts.pod_name.clone(),
        log_dir: facts.log_dir.clone(),
        auto_cluster: spec.auto_cluster,
    };
    let argv = command::argv(&spec.script, &spec.args, &facts.python, vars);
    let job = Job { laid, layout, facts, devices, later: layout.stages.concat().into() };
    let mut lists = None;
    let mut hashes = Hashes::default();
    let one = |seat: Seat| {
        let who = job.identity(&seat);
        let mut env = surroundings::proxies_set_aside(vars);
        env.extend(&paddle_ps::write(&who, lists.get_or_insert_with(|| paddle_ps::Lists::of(&who))));
        let log = format!("{}.{}", seat.role.log(), seat.local);
        let file = if seat.role == Role::Trainer { seat.number.to_string() } else { log.clone() };
        let backup = surroundings::complete(&mut env, vars, &facts.log_dir, file, &mut hashes)?;
        let (process, endpoint) = (Who { role: seat.role, number: seat.number }, Some(who.endpoint));
        let binding = job.binding(&seat);
        Ok(RankPlan { endpoint, binding, ..RankPlan::with_log(process, argv.clone(), env, log, backup) })
    };
    Ok(Plan {
        ranks: job.seats().into_iter().map(one).collect::<Result<_, _>>()?,
        nnodes: laid.hosts().len(),
        world_size: layout.workers.len(),
        pod,
        job_id: spec.job_id.clone(),
        mode: "ps",
        servers_end: matches!(laid.form, Form::Newer { .. }) && laid.hosts().len() > 1,
    })
}

/// The plan for a process that Paddle's job platform has told all: a launcher inside it is told of its logs.
pub fn as_told(
    spec: &LaunchSpec,
    role: Role,
    number: usize,
    vars: &Vars,
    facts: &HostFacts,
) -> Result<Plan, SpecError> {
    let mut env = EnvPatch::new();
    let backup = surroundings::complete(&mut env, vars, &facts.log_dir, role.log(), &mut Hashes::default())?;
    let argv = command::argv(&spec.script, &spec.args, &facts.python, vars);
    let one = RankPlan::with_log(Who { role, number }, argv, env, format!("{}.0", role.log()), backup);
    let pod = paddle_launch::Pod {
        name: facts.pod_name.clone(),
        log_dir: facts.log_dir.clone(),
        auto_cluster: spec.auto_cluster,
    };
    let job_id = spec.job_id.clone();
    Ok(Plan { ranks: vec![one], nnodes: 1, world_size: 1, pod, job_id, mode: "ps", servers_end: false })
}

/// One process of this node.
struct Seat {
    role: Role,
    /// Among those of its role, in the job.
    number: usize,
    /// The same, on this node.
    local: usize,
    /// From 1 on, for who trains.
    stage: usize,
    endpoint: Endpoint,
}

struct Job<'a> {
    laid: &'a Laid,
    layout: &'a Layout,
    facts: &'a HostFacts,
    devices: &'a Devices,
    /// Workers of all stages but the first.
    later: Arc<[Endpoint]>,
}

impl Job<'_> {
    fn seats(&self) -> Vec<Seat> {
        let Layout { servers, workers, coordinators, stages, own, .. } = self.layout;
        let here = |role: Role, first: usize, list: &[Endpoint], stage: usize| -> Vec<Seat> {
            let all = list.iter().enumerate().filter(|(_, endpoint)| endpoint.host == *own);
            let seat = |(i, endpoint): (usize, &Endpoint)| Seat {
                role,
                number: first + i,
                local: 0,
                stage,
                endpoint: endpoint.clone(),
            };
            all.map(seat).collect()
        };
        let mut seats = here(Role::Server, 0, servers, 0);
        seats.extend(here(Role::Trainer, 0, workers, 1));
        seats.extend(here(Role::Coordinator, 0, coordinators, 0));
        let mut first = 0;
        for (stage, list) in stages.iter().enumerate() {
            seats.extend(here(Role::HeterWorker, first, list, stage + 2));
            first += list.len();
        }
        for i in 1..seats.len() {
            seats[i].local = if seats[i].role == seats[i - 1].role { seats[i - 1].local + 1 } else { 0 };
        }
        seats
    }

    fn identity(&self, seat: &Seat) -> paddle_ps::PsIdentity {
        let layout = self.layout;
        let form = match self.laid.form {
            Form::Newer { nnodes } => {
                paddle_ps::Form::Newer { nnodes, log_dir: self.facts.log_dir.clone(), pod: self.facts.pod_name.clone() }
            }
            Form::Older { cloud } => paddle_ps::Form::Older {
                coordinators: layout.coordinators.clone(),
                device: (seat.role != Role::Server).then(|| self.device(seat).unwrap_or("0").to_owned()),
                heter: (!self.later.is_empty()).then(|| paddle_ps::Heter {
                    all: self.later.clone(),
                    stage: (seat.stage > 0).then(|| self.stage(seat.stage)),
                    cloud,
                }),
            },
        };
        paddle_ps::PsIdentity {
            role: seat.role,
            number: seat.number,
            endpoint: seat.endpoint.clone(),
            servers: layout.servers.clone(),
            workers: layout.workers.clone(),
            gloo: paddle_ps::Gloo {
                with: self.laid.with_gloo.clone(),
                folder: self.facts.temporary.clone(),
                http: layout.http.clone(),
            },
            form,
        }
    }

    /// What a process of this stage is told of the stages.
    fn stage(&self, number: usize) -> paddle_ps::Stage {
        let Layout { workers, stages, .. } = self.layout;
        let list = |stage: usize| match stage {
            0 => Arc::default(),
            1 => workers.clone(),
            _ => stages.get(stage - 2).cloned().unwrap_or_default(),
        };
        let device = if number < 2 { None } else { self.laid.stages.get(number - 2) };
        paddle_ps::Stage {
            number,
            sizes: [workers.len()].into_iter().chain(stages.iter().map(|list| list.len())).collect(),
            device: device.map_or("cpu", |stage| &stage.device).to_owned(),
            previous: list(number - 1),
            next: list(number + 1),
        }
    }

    /// Its device; servers get none.
    fn device(&self, seat: &Seat) -> Option<&str> {
        let names = &self.devices.names;
        let place = if seat.role == Role::Coordinator { 0 } else { seat.local % names.len().max(1) };
        names.get(place).filter(|_| seat.role != Role::Server).map(String::as_str)
    }

    fn binding(&self, seat: &Seat) -> Binding {
        match (self.laid.form, self.device(seat)) {
            (Form::Older { .. }, Some(name)) => {
                Binding::Selected { kind: self.devices.kind.clone(), indices: name.to_owned() }
            }
            _ => Binding::Cpu,
        }
    }
}
