//! What `python -m paddle.distributed.launch` tells a rank of a collective job.

use super::{Binding, Identity, binding, endpoint_list, number};
use crate::model::{Endpoint, EnvPatch, accelerator};
use std::sync::Arc;

/// What the launcher says of itself to all its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Six random lower-case letters.
    pub name: String,
    /// Absolute folder of the logs.
    pub log_dir: String,
    /// PADDLE_AUTO_CLUSTER. Paddle writes `True` here when it is switched on, which its own reader
    /// cannot take; rlaunch writes 1.
    pub auto_cluster: bool,
}

/// What all ranks of a node are told alike, written once for all of them.
#[derive(Clone, Debug)]
pub struct Alike {
    master: Option<Arc<str>>,
    size: Arc<str>,
    local_size: Arc<str>,
    nnodes: Arc<str>,
    list: Arc<str>,
    auto_cluster: Arc<str>,
    log_dir: Arc<str>,
    name: Arc<str>,
}

impl Alike {
    /// What those are told who are like this one. `list`: `who.endpoints`, joined by commas.
    pub fn of(who: &Identity, pod: &Pod, list: &Arc<str>) -> Self {
        Self {
            master: who.master.as_ref().map(|master| master.to_string().into()),
            size: who.endpoints.len().to_string().into(),
            local_size: who.local_size.to_string().into(),
            nnodes: who.nnodes.to_string().into(),
            list: list.clone(),
            auto_cluster: if pod.auto_cluster { "1" } else { "0" }.into(),
            log_dir: pod.log_dir.as_str().into(),
            name: pod.name.as_str().into(),
        }
    }
}

/// Writes a rank's identity.
pub fn write(who: &Identity, alike: &Alike, env: &mut EnvPatch) {
    if let Some(master) = &alike.master {
        env.set("PADDLE_MASTER", master.clone());
    }
    let (rank, local_rank): (Arc<str>, Arc<str>) = (who.rank.to_string().into(), who.local_rank.to_string().into());
    env.set("PADDLE_GLOBAL_SIZE", alike.size.clone());
    env.set("PADDLE_LOCAL_SIZE", alike.local_size.clone());
    env.set("PADDLE_GLOBAL_RANK", rank.clone());
    env.set("PADDLE_LOCAL_RANK", local_rank.clone());
    env.set("PADDLE_NNODES", alike.nnodes.clone());
    env.set("PADDLE_CURRENT_ENDPOINT", who.endpoints[who.rank].to_string());
    env.set("PADDLE_TRAINER_ID", rank);
    env.set("PADDLE_TRAINERS_NUM", alike.size.clone());
    env.set("PADDLE_RANK_IN_NODE", local_rank);
    env.set("PADDLE_AUTO_CLUSTER", alike.auto_cluster.clone());
    env.set("PADDLE_TRAINER_ENDPOINTS", alike.list.clone());
    match &who.binding {
        Binding::Cpu => {
            env.set("PADDLE_DISTRI_BACKEND", "gloo");
        }
        Binding::Selected { kind, indices } => {
            if accelerator::is_custom(kind) {
                env.set("PADDLE_DISTRI_BACKEND", "xccl").set("PADDLE_XCCL_BACKEND", kind.as_str());
            }
            env.set(format!("FLAGS_selected_{kind}s"), indices.as_str());
        }
    }
    env.set("PADDLE_LOG_DIR", alike.log_dir.clone());
    env.set("POD_NAME", alike.name.clone());
}

/// What every process is told, whatever it is for.
pub fn write_pod(log_dir: &str, name: &str, env: &mut EnvPatch) {
    env.set("PADDLE_LOG_DIR", log_dir);
    env.set("POD_NAME", name);
}

/// Reads it back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<(Identity, Pod)> {
    let identity = Identity {
        rank: number(get, "PADDLE_GLOBAL_RANK")?,
        local_rank: number(get, "PADDLE_LOCAL_RANK")?,
        local_size: number(get, "PADDLE_LOCAL_SIZE")?,
        nnodes: number(get, "PADDLE_NNODES")?,
        endpoints: endpoint_list(get, "PADDLE_TRAINER_ENDPOINTS")?.into(),
        master: get("PADDLE_MASTER").as_deref().and_then(Endpoint::parse),
        binding: binding(get),
    };
    let pod = Pod {
        name: get("POD_NAME")?,
        log_dir: get("PADDLE_LOG_DIR")?,
        auto_cluster: get("PADDLE_AUTO_CLUSTER")? == "1",
    };
    Some((identity, pod))
}
