//! Variables that Paddle's launchers, current and legacy, set for a process of a parameter-server job.

use super::read_env::{endpoint_list, number};
use crate::model::{Endpoint, EnvDelta, Role};
use std::sync::Arc;

/// Identity of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PsIdentity {
    /// Its role.
    pub role: Role,
    /// Number among the processes of its role.
    pub number: usize,
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// Endpoints of the servers.
    pub servers: Arc<[Endpoint]>,
    /// Endpoints of the workers.
    pub workers: Arc<[Endpoint]>,
    /// The rendezvous of the processes over gloo.
    pub gloo: GlooRendezvous,
    /// Values that only one of the two launchers sets.
    pub variant: PsVariant,
}

/// Paddle's rendezvous of the processes over gloo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlooRendezvous {
    /// PADDLE_WITH_GLOO: 1 for trainers, 2 for all processes.
    pub with: String,
    /// Directory that exists for the duration of the job.
    pub dir: String,
    /// Endpoint of its server.
    pub http: Endpoint,
}

/// Values that only one of the two launchers sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PsVariant {
    /// `paddle.distributed.launch`.
    Launch {
        /// Number of nodes; only if the user gave numbers of processes.
        nnodes: Option<usize>,
        /// Absolute path of the log directory.
        log_dir: String,
        /// Name of the launcher of this node.
        pod: String,
    },
    /// `paddle.distributed.fleet.launch`.
    Legacy {
        /// Endpoints of the coordinators.
        coordinators: Arc<[Endpoint]>,
        /// The device that is visible to it; `None` for servers.
        device: Option<String>,
        /// The stages of a heterogeneous job.
        heter: Option<HeterStages>,
    },
}

/// The stages of a heterogeneous job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeterStages {
    /// Endpoints of the workers of the stages after the first.
    pub all: Arc<[Endpoint]>,
    /// Its own stage; servers and coordinators have none.
    pub stage: Option<HeterStage>,
    /// Whether PaddleCloud is used, which reads that list and the number of workers from other variables.
    pub cloud: bool,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeterStage {
    /// Number of the stage, from 1.
    pub number: usize,
    /// Number of workers of each stage.
    pub sizes: Vec<usize>,
    /// Its device type: `cpu`, `gpu`.
    pub device: String,
    /// Endpoints of the workers of the previous stage.
    pub previous: Arc<[Endpoint]>,
    /// Endpoints of the workers of the next stage.
    pub next: Arc<[Endpoint]>,
}

/// The lists of endpoints that all processes share, formatted once.
#[derive(Clone, Debug)]
pub struct EndpointLists {
    servers: Arc<str>,
    workers: Arc<str>,
    coordinators: Arc<str>,
    heter: Arc<str>,
}

impl EndpointLists {
    /// The lists of the job of this process.
    pub fn of(identity: &PsIdentity) -> Self {
        let (coordinators, heter) = match &identity.variant {
            PsVariant::Launch { .. } => (Arc::default(), Arc::default()),
            PsVariant::Legacy { coordinators, heter, .. } => {
                (joined(coordinators), heter.as_ref().map(|heter| joined(&heter.all)).unwrap_or_default())
            }
        };
        Self { servers: joined(&identity.servers), workers: joined(&identity.workers), coordinators, heter }
    }
}

fn joined(endpoints: &[Endpoint]) -> Arc<str> {
    Endpoint::join(endpoints).into()
}

/// The value of TRAINING_ROLE.
fn training_role(role: Role) -> &'static str {
    match role {
        Role::Server => "PSERVER",
        Role::HeterWorker => "HETER_TRAINER",
        Role::Coordinator => "COORDINATOR",
        Role::Trainer | Role::Tuner | Role::Mapper => "TRAINER",
    }
}

/// Writes the variables of a process. `lists`: [`EndpointLists::of`] any process of the job.
pub fn write(identity: &PsIdentity, lists: &EndpointLists) -> EnvDelta {
    let mut env = EnvDelta::new();
    if let PsVariant::Launch { nnodes: Some(nnodes), .. } = identity.variant {
        env.set("PADDLE_NNODES", nnodes.to_string());
    }
    env.set("PADDLE_PSERVERS_IP_PORT_LIST", lists.servers.clone());
    env.set("PADDLE_TRAINER_ENDPOINTS", lists.workers.clone());
    env.set("PADDLE_TRAINERS_NUM", identity.workers.len().to_string());
    env.set("TRAINING_ROLE", training_role(identity.role));
    env.set("POD_IP", identity.endpoint.host.as_str());
    env.set("PADDLE_PORT", identity.endpoint.port.to_string());
    if matches!(identity.role, Role::Trainer | Role::Coordinator) {
        env.set("PADDLE_TRAINER_ID", identity.number.to_string());
    }
    env.set("PADDLE_WITH_GLOO", identity.gloo.with.as_str());
    env.set("PADDLE_GLOO_RENDEZVOUS", "3");
    env.set("PADDLE_GLOO_FS_PATH", identity.gloo.dir.as_str());
    env.set("PADDLE_GLOO_HTTP_ENDPOINT", identity.gloo.http.to_string());
    match &identity.variant {
        PsVariant::Launch { log_dir, pod, .. } => {
            env.set("PADDLE_ROLE", training_role(identity.role));
            env.set("PADDLE_LOG_DIR", log_dir.as_str()).set("POD_NAME", pod.as_str());
        }
        PsVariant::Legacy { coordinators, device, heter } => {
            if identity.role != Role::HeterWorker {
                env.set("PADDLE_COORDINATOR_ENDPOINTS", lists.coordinators.clone());
            }
            if identity.role == Role::Coordinator {
                env.set("PADDLE_COORDINATOR_NUM", coordinators.len().to_string());
            }
            if let Some(device) = device {
                env.set("FLAGS_selected_gpus", "0").set("FLAGS_selected_xpus", "0");
                env.set("CUDA_VISIBLE_DEVICES", device.as_str()).set("XPU_VISIBLE_DEVICES", device.as_str());
            }
            if let Some(heter) = heter {
                write_stages(&mut env, identity, heter, lists);
            }
        }
    }
    env
}

fn write_stages(env: &mut EnvDelta, identity: &PsIdentity, heter: &HeterStages, lists: &EndpointLists) {
    if identity.role != Role::Coordinator {
        env.set("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", lists.heter.clone());
    }
    if heter.cloud {
        env.set("PADDLE_HETER_TRAINER_IP_PORT_LIST", lists.heter.clone());
        env.set("TRAINERS_NUM", identity.workers.len().to_string());
    }
    if let Some(stage) = &heter.stage {
        env.set("STAGE_ID", stage.number.to_string()).set("STAGE_NUM", stage.sizes.len().to_string());
        env.set("PADDLE_STAGE_TRAINERS_NUM", format!("{:?}", stage.sizes));
        env.set("HETER_DEVICE_TYPE", stage.device.as_str());
        env.set("PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST", joined(&stage.previous));
        env.set("PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST", joined(&stage.next));
    }
}

/// Reads the variables back. A coordinator has no variables of stages, and a worker of a later stage has none of
/// coordinators.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<PsIdentity> {
    let role = match get("TRAINING_ROLE")?.as_str() {
        "PSERVER" => Role::Server,
        "TRAINER" => Role::Trainer,
        "HETER_TRAINER" => Role::HeterWorker,
        "COORDINATOR" => Role::Coordinator,
        _ => return None,
    };
    let list = |name: &str| -> Option<Arc<[Endpoint]>> {
        match get(name)?.as_str() {
            "" => Some(Arc::default()),
            _ => Some(endpoint_list(get, name)?.into()),
        }
    };
    let endpoint = Endpoint::new(get("POD_IP")?, get("PADDLE_PORT")?.parse().ok()?);
    let servers = list("PADDLE_PSERVERS_IP_PORT_LIST")?;
    let later = list("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST");
    let place = |list: &[Endpoint]| list.iter().position(|other| *other == endpoint);
    let number_of = match role {
        Role::Server => place(&servers),
        Role::HeterWorker => place(later.as_ref()?),
        _ => number(get, "PADDLE_TRAINER_ID"),
    };
    let variant = match get("PADDLE_ROLE") {
        Some(_) => PsVariant::Launch {
            nnodes: number(get, "PADDLE_NNODES"),
            log_dir: get("PADDLE_LOG_DIR")?,
            pod: get("POD_NAME")?,
        },
        None => PsVariant::Legacy {
            coordinators: list("PADDLE_COORDINATOR_ENDPOINTS").unwrap_or_default(),
            device: get("CUDA_VISIBLE_DEVICES"),
            heter: later.map(|all| HeterStages { all, stage: read_stage(get), cloud: get("TRAINERS_NUM").is_some() }),
        },
    };
    let gloo = GlooRendezvous {
        with: get("PADDLE_WITH_GLOO")?,
        dir: get("PADDLE_GLOO_FS_PATH")?,
        http: Endpoint::parse(&get("PADDLE_GLOO_HTTP_ENDPOINT")?)?,
    };
    let workers = list("PADDLE_TRAINER_ENDPOINTS")?;
    Some(PsIdentity { role, number: number_of?, endpoint, servers, workers, gloo, variant })
}

fn read_stage(get: &dyn Fn(&str) -> Option<String>) -> Option<HeterStage> {
    let list = |name: &str| -> Option<Arc<[Endpoint]>> {
        if get(name)?.is_empty() { Some(Arc::default()) } else { Some(endpoint_list(get, name)?.into()) }
    };
    let sizes = get("PADDLE_STAGE_TRAINERS_NUM")?;
    let sizes = sizes.strip_prefix('[')?.strip_suffix(']')?.split(", ").map(|size| size.parse().ok());
    Some(HeterStage {
        number: number(get, "STAGE_ID")?,
        sizes: sizes.collect::<Option<_>>()?,
        device: get("HETER_DEVICE_TYPE")?,
        previous: list("PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST")?,
        next: list("PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST")?,
    })
}
