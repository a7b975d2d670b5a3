//! Variables that `python -m paddle.distributed.launch` sets for a rank of a collective job. `plan/collective.rs` computes
//! their values.

use super::identity::{Binding, RankIdentity};
use super::read_env::{binding, endpoint_list, number};
use crate::model::{Endpoint, EnvDelta, accelerator};
use std::sync::Arc;

/// The launcher of one node, which Paddle calls a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodInfo {
    /// Six random lower-case letters.
    pub name: String,
    /// Absolute path of the log directory.
    pub log_dir: String,
    /// PADDLE_AUTO_CLUSTER. Paddle writes `True` if the option is on, which its own reader rejects; rlaunch writes 1.
    pub auto_cluster: bool,
}

/// Values that all ranks of a node share, formatted once.
#[derive(Clone, Debug)]
pub struct NodeEnv {
    master: Option<Arc<str>>,
    size: Arc<str>,
    local_size: Arc<str>,
    nnodes: Arc<str>,
    list: Arc<str>,
    auto_cluster: Arc<str>,
    log_dir: Arc<str>,
    name: Arc<str>,
}

impl NodeEnv {
    /// The values of the node of this rank. `list`: `identity.endpoints`, comma-separated.
    pub fn of(identity: &RankIdentity, pod: &PodInfo, list: &Arc<str>) -> Self {
        Self {
            master: identity.master.as_ref().map(|master| master.to_string().into()),
            size: identity.endpoints.len().to_string().into(),
            local_size: identity.local_size.to_string().into(),
            nnodes: identity.nnodes.to_string().into(),
            list: list.clone(),
            auto_cluster: if pod.auto_cluster { "1" } else { "0" }.into(),
            log_dir: pod.log_dir.as_str().into(),
            name: pod.name.as_str().into(),
        }
    }
}

/// Writes the variables of a rank.
pub fn write(identity: &RankIdentity, node: &NodeEnv, env: &mut EnvDelta) {
    if let Some(master) = &node.master {
        env.set("PADDLE_MASTER", master.clone());
    }
    let (rank, local_rank): (Arc<str>, Arc<str>) =
        (identity.rank.to_string().into(), identity.local_rank.to_string().into());
    env.set("PADDLE_GLOBAL_SIZE", node.size.clone());
    env.set("PADDLE_LOCAL_SIZE", node.local_size.clone());
    env.set("PADDLE_GLOBAL_RANK", rank.clone());
    env.set("PADDLE_LOCAL_RANK", local_rank.clone());
    env.set("PADDLE_NNODES", node.nnodes.clone());
    env.set("PADDLE_CURRENT_ENDPOINT", identity.endpoints[identity.rank].to_string());
    env.set("PADDLE_TRAINER_ID", rank);
    env.set("PADDLE_TRAINERS_NUM", node.size.clone());
    env.set("PADDLE_RANK_IN_NODE", local_rank);
    env.set("PADDLE_AUTO_CLUSTER", node.auto_cluster.clone());
    env.set("PADDLE_TRAINER_ENDPOINTS", node.list.clone());
    match &identity.binding {
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
    env.set("PADDLE_LOG_DIR", node.log_dir.clone());
    env.set("POD_NAME", node.name.clone());
}

/// Writes the variables that processes of every role get.
pub fn write_pod(log_dir: &str, name: &str, env: &mut EnvDelta) {
    env.set("PADDLE_LOG_DIR", log_dir);
    env.set("POD_NAME", name);
}

/// Reads the variables back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<(RankIdentity, PodInfo)> {
    let identity = RankIdentity {
        rank: number(get, "PADDLE_GLOBAL_RANK")?,
        local_rank: number(get, "PADDLE_LOCAL_RANK")?,
        local_size: number(get, "PADDLE_LOCAL_SIZE")?,
        nnodes: number(get, "PADDLE_NNODES")?,
        endpoints: endpoint_list(get, "PADDLE_TRAINER_ENDPOINTS")?.into(),
        master: get("PADDLE_MASTER").as_deref().and_then(Endpoint::parse),
        binding: binding(get),
    };
    let pod = PodInfo {
        name: get("POD_NAME")?,
        log_dir: get("PADDLE_LOG_DIR")?,
        auto_cluster: get("PADDLE_AUTO_CLUSTER")? == "1",
    };
    Some((identity, pod))
}
