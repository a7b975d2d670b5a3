//! Plan of a job with parameter servers: the processes of this node and their environments.

use super::cluster::{self, LocalAddresses};
use crate::framework::{Binding, paddle_launch, paddle_ps};
use crate::model::{Endpoint, EnvDelta, ProcessLabel, Role};
use crate::plan::env::base_env;
use crate::plan::env::nested::ExportHashes;
use crate::plan::{LaunchContext, Plan, RankPlan, command};
use crate::spec::endpoints::{LOCALHOST, ListenAddress, is_loopback};
use crate::spec::options::EnvVars;
use crate::spec::paddle::ps::{PsLauncher, PsProcesses};
use crate::spec::{LaunchSpec, SpecError};
use std::ops::Range;
use std::sync::Arc;

/// Endpoints of all processes of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PsLayout {
    /// Endpoints of the parameter servers.
    pub servers: Arc<[Endpoint]>,
    /// Endpoints of the workers.
    pub workers: Arc<[Endpoint]>,
    /// Endpoints of the coordinators.
    pub coordinators: Arc<[Endpoint]>,
    /// Endpoints of the workers of each stage from the second on.
    pub stages: Vec<Arc<[Endpoint]>>,
    /// Endpoint of the gloo rendezvous.
    pub http: Endpoint,
    /// Which of these processes run on this node.
    pub own: OwnProcesses,
}

/// The processes of this node among those of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnProcesses {
    /// Those at this address.
    At(String),
    /// Those at these places in the lists of servers and workers. Other nodes may have the same address.
    Places {
        /// In the list of servers.
        servers: Range<usize>,
        /// In the list of workers.
        workers: Range<usize>,
    },
}

impl OwnProcesses {
    fn has(&self, role: Role, place: usize, endpoint: &Endpoint) -> bool {
        match self {
            OwnProcesses::At(host) => endpoint.host == *host,
            OwnProcesses::Places { servers, workers } => match role {
                Role::Server => servers.contains(&place),
                Role::Trainer => workers.contains(&place),
                _ => false,
            },
        }
    }
}

/// The endpoints of one node in a job whose nodes have found each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PsNode {
    /// Of its servers.
    pub servers: Vec<Endpoint>,
    /// Of its workers.
    pub workers: Vec<Endpoint>,
}

/// The layout of such a job: all servers in the order of the nodes, and all workers. `own`: the number of this node.
pub fn layout_of_nodes(nodes: &[PsNode], own: usize, http: Endpoint) -> PsLayout {
    let places = |list: fn(&PsNode) -> &[Endpoint]| {
        let before = nodes.iter().take(own).map(|node| list(node).len()).sum();
        before..before + nodes.get(own).map_or(0, |node| list(node).len())
    };
    PsLayout {
        servers: nodes.iter().flat_map(|node| node.servers.iter().cloned()).collect(),
        workers: nodes.iter().flat_map(|node| node.workers.iter().cloned()).collect(),
        coordinators: Arc::default(),
        stages: Vec::new(),
        http,
        own: OwnProcesses::Places { servers: places(|node| &node.servers), workers: places(|node| &node.workers) },
    }
}

/// Devices, which workers get in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerDevices {
    /// `gpu` or `xpu`.
    pub kind: String,
    /// Names, as in a visible list; empty: CPU.
    pub names: Vec<String>,
}

/// The address of this node in the lists. A single loopback address stands for every node.
pub fn find_own_address(spec_ps: &PsProcesses, addresses: &LocalAddresses<'_>) -> Result<String, SpecError> {
    let hosts = spec_ps.hosts();
    if let [only] = &hosts[..]
        && is_loopback(only)
    {
        return Ok(only.clone());
    }
    let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let field = match spec_ps.launcher {
        PsLauncher::Launch { .. } => "the nodes of --servers and --trainers",
        PsLauncher::Legacy { .. } => "the nodes of --servers and --workers",
    };
    // Processes given by number run on the address of this node.
    if matches!(spec_ps.launcher, PsLauncher::Launch { nnodes: Some(_) }) {
        return Ok(hosts.into_iter().next().unwrap_or_default());
    }
    let hint = "write this node's address the same way everywhere";
    if names.contains(&LOCALHOST) {
        let why = "localhost stands for every node, and other addresses are of one node";
        return Err(SpecError::new(field, hosts.join(","), why, hint));
    }
    let at =
        cluster::find_own_node(&names, spec_ps.own_host.as_deref(), &(field.to_owned(), hosts.join(",")), addresses);
    match at {
        Ok(at) => Ok(names[at].to_owned()),
        // Probably one node has two names. --host would leave out the processes under the other name.
        Err(error) if names.iter().any(|name| is_loopback(name)) => {
            let hint = format!("{hint}; --host selects one of several nodes");
            Err(SpecError { hint: Some(hint), ..error })
        }
        Err(error) => Err(error),
    }
}

/// Assigns the free ports; `None` if there are too few.
pub fn layout(spec_ps: &PsProcesses, own: &str, free: &[u16]) -> Option<PsLayout> {
    let mut free = free.iter().copied();
    let mut fill = |place: &ListenAddress| Some(Endpoint::new(&place.host, place.port.or_else(|| free.next())?));
    Some(PsLayout {
        servers: spec_ps.servers.iter().map(&mut fill).collect::<Option<_>>()?,
        workers: spec_ps.workers.iter().map(&mut fill).collect::<Option<_>>()?,
        coordinators: spec_ps.coordinators.iter().map(&mut fill).collect::<Option<_>>()?,
        stages: spec_ps
            .stages
            .iter()
            .map(|stage| stage.workers.iter().map(&mut fill).collect::<Option<_>>())
            .collect::<Option<_>>()?,
        http: fill(&spec_ps.http)?,
        own: OwnProcesses::At(own.to_owned()),
    })
}

/// The plan for this node: servers, workers, coordinators, then workers of later stages.
pub fn plan(
    spec: &LaunchSpec,
    spec_ps: &PsProcesses,
    vars: &EnvVars,
    context: &LaunchContext,
    devices: &WorkerDevices,
    layout: &PsLayout,
) -> Result<Plan, SpecError> {
    let pod = paddle_launch::PodInfo {
        name: context.pod_name.clone(),
        log_dir: context.log_dir.clone(),
        auto_cluster: spec.auto_cluster,
    };
    let argv = command::argv(&spec.script, &spec.args, &context.python, vars);
    let job = PsJob { spec_ps, layout, context, devices, later: layout.stages.concat().into() };
    let mut lists = None;
    let mut hashes = ExportHashes::default();
    let one = |process: PsProcess| {
        let identity = job.identity(&process);
        let mut env = base_env::of_paddles_launcher(vars);
        env.extend(&paddle_ps::write(&identity, lists.get_or_insert_with(|| paddle_ps::EndpointLists::of(&identity))));
        let log = format!("{}.{}", process.role.log_prefix(), process.local);
        let file = if process.role == Role::Trainer { process.number.to_string() } else { log.clone() };
        let env_overflow = base_env::complete(&mut env, vars, &context.log_dir, file, &mut hashes)?;
        let (label, endpoint) = (ProcessLabel { role: process.role, number: process.number }, Some(identity.endpoint));
        let binding = job.binding(&process);
        Ok(RankPlan { endpoint, binding, ..RankPlan::with_log(label, argv.clone(), env, log, env_overflow) })
    };
    Ok(Plan {
        ranks: job.processes().into_iter().map(one).collect::<Result<_, _>>()?,
        nnodes: match spec_ps.launcher {
            PsLauncher::Launch { nnodes: Some(nnodes) } => nnodes,
            _ => spec_ps.hosts().len(),
        },
        world_size: layout.workers.len(),
        pod,
        job_id: spec.job_id.clone(),
        mode: "ps",
        awaits_servers: matches!(spec_ps.launcher, PsLauncher::Launch { .. }) || spec.server_timeout.is_some(),
    })
}

/// The plan for a process whose variables the job platform has set. Only those for nested launchers and OMP_NUM_THREADS are added.
pub fn platform_process(
    spec: &LaunchSpec,
    role: Role,
    number: usize,
    vars: &EnvVars,
    context: &LaunchContext,
) -> Result<Plan, SpecError> {
    let mut env = EnvDelta::new();
    base_env::set_openmp_threads(&mut env, vars);
    let env_overflow =
        base_env::complete(&mut env, vars, &context.log_dir, role.log_prefix(), &mut ExportHashes::default())?;
    let argv = command::argv(&spec.script, &spec.args, &context.python, vars);
    let one =
        RankPlan::with_log(ProcessLabel { role, number }, argv, env, format!("{}.0", role.log_prefix()), env_overflow);
    let pod = paddle_launch::PodInfo {
        name: context.pod_name.clone(),
        log_dir: context.log_dir.clone(),
        auto_cluster: spec.auto_cluster,
    };
    let job_id = spec.job_id.clone();
    Ok(Plan { ranks: vec![one], nnodes: 1, world_size: 1, pod, job_id, mode: "ps", awaits_servers: false })
}

/// One process of this node.
struct PsProcess {
    role: Role,
    /// Number among the processes of its role, in the job.
    number: usize,
    /// The same on this node.
    local: usize,
    /// Number of its stage, from 1; 0 for servers and coordinators.
    stage: usize,
    endpoint: Endpoint,
}

struct PsJob<'a> {
    spec_ps: &'a PsProcesses,
    layout: &'a PsLayout,
    context: &'a LaunchContext,
    devices: &'a WorkerDevices,
    /// Endpoints of the workers of all stages but the first.
    later: Arc<[Endpoint]>,
}

impl PsJob<'_> {
    fn processes(&self) -> Vec<PsProcess> {
        let PsLayout { servers, workers, coordinators, stages, own, .. } = self.layout;
        let here = |role: Role, first: usize, list: &[Endpoint], stage: usize| -> Vec<PsProcess> {
            let all = list.iter().enumerate().filter(|(place, endpoint)| own.has(role, *place, endpoint));
            let process = |(i, endpoint): (usize, &Endpoint)| PsProcess {
                role,
                number: first + i,
                local: 0,
                stage,
                endpoint: endpoint.clone(),
            };
            all.map(process).collect()
        };
        let mut processes = here(Role::Server, 0, servers, 0);
        processes.extend(here(Role::Trainer, 0, workers, 1));
        processes.extend(here(Role::Coordinator, 0, coordinators, 0));
        let mut first = 0;
        for (stage, list) in stages.iter().enumerate() {
            processes.extend(here(Role::HeterWorker, first, list, stage + 2));
            first += list.len();
        }
        for i in 1..processes.len() {
            processes[i].local =
                if processes[i].role == processes[i - 1].role { processes[i - 1].local + 1 } else { 0 };
        }
        processes
    }

    fn identity(&self, process: &PsProcess) -> paddle_ps::PsIdentity {
        let layout = self.layout;
        let variant = match self.spec_ps.launcher {
            PsLauncher::Launch { nnodes } => paddle_ps::PsVariant::Launch {
                nnodes,
                log_dir: self.context.log_dir.clone(),
                pod: self.context.pod_name.clone(),
            },
            PsLauncher::Legacy { cloud } => paddle_ps::PsVariant::Legacy {
                coordinators: layout.coordinators.clone(),
                device: (process.role != Role::Server).then(|| self.device(process).unwrap_or("0").to_owned()),
                heter: (!self.later.is_empty()).then(|| paddle_ps::HeterStages {
                    all: self.later.clone(),
                    stage: (process.stage > 0).then(|| self.stage(process.stage)),
                    cloud,
                }),
            },
        };
        paddle_ps::PsIdentity {
            role: process.role,
            number: process.number,
            endpoint: process.endpoint.clone(),
            servers: layout.servers.clone(),
            workers: layout.workers.clone(),
            gloo: paddle_ps::GlooRendezvous {
                with: self.spec_ps.with_gloo.clone(),
                dir: self.context.gloo_tmpdir.clone(),
                http: layout.http.clone(),
            },
            variant,
        }
    }

    /// The stage of this number, with its neighbours.
    fn stage(&self, number: usize) -> paddle_ps::HeterStage {
        let PsLayout { workers, stages, .. } = self.layout;
        let list = |stage: usize| match stage {
            0 => Arc::default(),
            1 => workers.clone(),
            _ => stages.get(stage - 2).cloned().unwrap_or_default(),
        };
        let device = if number < 2 { None } else { self.spec_ps.stages.get(number - 2) };
        paddle_ps::HeterStage {
            number,
            sizes: [workers.len()].into_iter().chain(stages.iter().map(|list| list.len())).collect(),
            device: device.map_or("cpu", |stage| &stage.device).to_owned(),
            previous: list(number - 1),
            next: list(number + 1),
        }
    }

    /// The device of a process; servers have none.
    fn device(&self, process: &PsProcess) -> Option<&str> {
        let names = &self.devices.names;
        let place = if process.role == Role::Coordinator { 0 } else { process.local % names.len().max(1) };
        names.get(place).filter(|_| process.role != Role::Server).map(String::as_str)
    }

    fn binding(&self, process: &PsProcess) -> Binding {
        match (self.spec_ps.launcher, self.device(process)) {
            (PsLauncher::Legacy { .. }, Some(name)) => {
                Binding::Selected { kind: self.devices.kind.clone(), indices: name.to_owned() }
            }
            _ => Binding::Cpu,
        }
    }
}
