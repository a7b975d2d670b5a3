//! What Paddle's two launchers tell a process of a parameter-server job.

use super::{endpoint_list, number};
use crate::model::{Endpoint, EnvPatch, Role};
use std::sync::Arc;

/// Who a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PsIdentity {
    /// What it is for.
    pub role: Role,
    /// Its number among those of its role.
    pub number: usize,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Where the servers listen.
    pub servers: Arc<[Endpoint]>,
    /// Where the workers listen.
    pub workers: Arc<[Endpoint]>,
    /// How processes find each other.
    pub gloo: Gloo,
    /// What only one of the two launchers says.
    pub form: Form,
}

/// The rendezvous of the framework's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gloo {
    /// PADDLE_WITH_GLOO: 1 for trainers, 2 for all.
    pub with: String,
    /// A folder that is there during the job.
    pub folder: String,
    /// Where its server listens.
    pub http: Endpoint,
}

/// What only one of the two launchers says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// `paddle.distributed.launch`.
    Newer {
        /// Nodes in the job; only if processes were asked for by count.
        nnodes: Option<usize>,
        /// Absolute folder of the logs.
        log_dir: String,
        /// The launcher's name.
        pod: String,
    },
    /// `paddle.distributed.fleet.launch`.
    Older {
        /// Where the coordinators listen.
        coordinators: Arc<[Endpoint]>,
        /// The device that it may see; servers are told nothing.
        device: Option<String>,
        /// In a job with later stages.
        heter: Option<Heter>,
    },
}

/// The stages of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heter {
    /// Where the workers of the stages after the first listen.
    pub all: Arc<[Endpoint]>,
    /// Its own stage; servers and coordinators have none.
    pub stage: Option<Stage>,
    /// Whether Paddle's job platform knows that list, and the number of workers, by another name too.
    pub cloud: bool,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// From 1 on.
    pub number: usize,
    /// Workers of each stage.
    pub sizes: Vec<usize>,
    /// Its kind of device: `cpu`, `gpu`.
    pub device: String,
    /// Where the workers of the stage before listen.
    pub previous: Arc<[Endpoint]>,
    /// Where those of the next one do.
    pub next: Arc<[Endpoint]>,
}

/// The lists that all processes are told, written once.
#[derive(Clone, Debug)]
pub struct Lists {
    servers: Arc<str>,
    workers: Arc<str>,
    coordinators: Arc<str>,
    heter: Arc<str>,
}

impl Lists {
    /// Those of whoever is like this one.
    pub fn of(who: &PsIdentity) -> Self {
        let (coordinators, heter) = match &who.form {
            Form::Newer { .. } => (Arc::default(), Arc::default()),
            Form::Older { coordinators, heter, .. } => {
                (joined(coordinators), heter.as_ref().map(|heter| joined(&heter.all)).unwrap_or_default())
            }
        };
        Self { servers: joined(&who.servers), workers: joined(&who.workers), coordinators, heter }
    }
}

fn joined(endpoints: &[Endpoint]) -> Arc<str> {
    Endpoint::join(endpoints).into()
}

/// What a process of this role is called, in TRAINING_ROLE.
fn word(role: Role) -> &'static str {
    match role {
        Role::Server => "PSERVER",
        Role::HeterWorker => "HETER_TRAINER",
        Role::Coordinator => "COORDINATOR",
        Role::Trainer | Role::Tuner | Role::Mapper => "TRAINER",
    }
}

/// Writes a process's identity. `lists`: [`Lists::of`] any process of the job.
pub fn write(who: &PsIdentity, lists: &Lists) -> EnvPatch {
    let mut env = EnvPatch::new();
    if let Form::Newer { nnodes: Some(nnodes), .. } = who.form {
        env.set("PADDLE_NNODES", nnodes.to_string());
    }
    env.set("PADDLE_PSERVERS_IP_PORT_LIST", lists.servers.clone());
    env.set("PADDLE_TRAINER_ENDPOINTS", lists.workers.clone());
    env.set("PADDLE_TRAINERS_NUM", who.workers.len().to_string());
    env.set("TRAINING_ROLE", word(who.role));
    env.set("POD_IP", who.endpoint.host.as_str());
    env.set("PADDLE_PORT", who.endpoint.port.to_string());
    if matches!(who.role, Role::Trainer | Role::Coordinator) {
        env.set("PADDLE_TRAINER_ID", who.number.to_string());
    }
    env.set("PADDLE_WITH_GLOO", who.gloo.with.as_str());
    env.set("PADDLE_GLOO_RENDEZVOUS", "3");
    env.set("PADDLE_GLOO_FS_PATH", who.gloo.folder.as_str());
    env.set("PADDLE_GLOO_HTTP_ENDPOINT", who.gloo.http.to_string());
    match &who.form {
        Form::Newer { log_dir, pod, .. } => {
            env.set("PADDLE_ROLE", word(who.role));
            env.set("PADDLE_LOG_DIR", log_dir.as_str()).set("POD_NAME", pod.as_str());
        }
        Form::Older { coordinators, device, heter } => {
            if who.role != Role::HeterWorker {
                env.set("PADDLE_COORDINATOR_ENDPOINTS", lists.coordinators.clone());
            }
            if who.role == Role::Coordinator {
                env.set("PADDLE_COORDINATOR_NUM", coordinators.len().to_string());
            }
            if let Some(device) = device {
                env.set("FLAGS_selected_gpus", "0").set("FLAGS_selected_xpus", "0");
                env.set("CUDA_VISIBLE_DEVICES", device.as_str()).set("XPU_VISIBLE_DEVICES", device.as_str());
            }
            if let Some(heter) = heter {
                write_stages(&mut env, who, heter, lists);
            }
        }
    }
    env
}

fn write_stages(env: &mut EnvPatch, who: &PsIdentity, heter: &Heter, lists: &Lists) {
    if who.role != Role::Coordinator {
        env.set("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", lists.heter.clone());
    }
    if heter.cloud {
        env.set("PADDLE_HETER_TRAINER_IP_PORT_LIST", lists.heter.clone());
        env.set("TRAINERS_NUM", who.workers.len().to_string());
    }
    if let Some(stage) = &heter.stage {
        env.set("STAGE_ID", stage.number.to_string()).set("STAGE_NUM", stage.sizes.len().to_string());
        env.set("PADDLE_STAGE_TRAINERS_NUM", format!("{:?}", stage.sizes));
        env.set("HETER_DEVICE_TYPE", stage.device.as_str());
        env.set("PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST", joined(&stage.previous));
        env.set("PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST", joined(&stage.next));
    }
}

/// Reads it back. A coordinator is told nothing of stages, and a later stage's worker nothing of coordinators.
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
    let form = match get("PADDLE_ROLE") {
        Some(_) => {
            Form::Newer { nnodes: number(get, "PADDLE_NNODES"), log_dir: get("PADDLE_LOG_DIR")?, pod: get("POD_NAME")? }
        }
        None => Form::Older {
            coordinators: list("PADDLE_COORDINATOR_ENDPOINTS").unwrap_or_default(),
            device: get("CUDA_VISIBLE_DEVICES"),
            heter: later.map(|all| Heter { all, stage: read_stage(get), cloud: get("TRAINERS_NUM").is_some() }),
        },
    };
    let gloo = Gloo {
        with: get("PADDLE_WITH_GLOO")?,
        folder: get("PADDLE_GLOO_FS_PATH")?,
        http: Endpoint::parse(&get("PADDLE_GLOO_HTTP_ENDPOINT")?)?,
    };
    let workers = list("PADDLE_TRAINER_ENDPOINTS")?;
    Some(PsIdentity { role, number: number_of?, endpoint, servers, workers, gloo, form })
}

fn read_stage(get: &dyn Fn(&str) -> Option<String>) -> Option<Stage> {
    let list = |name: &str| -> Option<Arc<[Endpoint]>> {
        if get(name)?.is_empty() { Some(Arc::default()) } else { Some(endpoint_list(get, name)?.into()) }
    };
    let sizes = get("PADDLE_STAGE_TRAINERS_NUM")?;
    let sizes = sizes.strip_prefix('[')?.strip_suffix(']')?.split(", ").map(|size| size.parse().ok());
    Some(Stage {
        number: number(get, "STAGE_ID")?,
        sizes: sizes.collect::<Option<_>>()?,
        device: get("HETER_DEVICE_TYPE")?,
        previous: list("PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST")?,
        next: list("PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST")?,
    })
}
