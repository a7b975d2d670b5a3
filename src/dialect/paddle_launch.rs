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

/// Writes a rank's identity. `list`: `who.endpoints`, joined by commas, made once for all ranks.
pub fn write(who: &Identity, pod: &Pod, list: &Arc<str>, env: &mut EnvPatch) {
    if let Some(master) = &who.master {
        env.set("PADDLE_MASTER", master.to_string());
    }
    let size = who.endpoints.len().to_string();
    env.set("PADDLE_GLOBAL_SIZE", size.as_str());
    env.set("PADDLE_LOCAL_SIZE", who.local_size.to_string());
    env.set("PADDLE_GLOBAL_RANK", who.rank.to_string());
    env.set("PADDLE_LOCAL_RANK", who.local_rank.to_string());
    env.set("PADDLE_NNODES", who.nnodes.to_string());
    env.set("PADDLE_CURRENT_ENDPOINT", who.endpoints[who.rank].to_string());
    env.set("PADDLE_TRAINER_ID", who.rank.to_string());
    env.set("PADDLE_TRAINERS_NUM", size);
    env.set("PADDLE_RANK_IN_NODE", who.local_rank.to_string());
    env.set("PADDLE_AUTO_CLUSTER", if pod.auto_cluster { "1" } else { "0" });
    env.set("PADDLE_TRAINER_ENDPOINTS", list.clone());
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
    write_pod(&pod.log_dir, &pod.name, env);
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
