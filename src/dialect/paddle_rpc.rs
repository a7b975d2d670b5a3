//! What `python -m paddle.distributed.launch --run_mode rpc` tells a rank.

use super::paddle_launch::Pod;
use super::{Identity, number};
use crate::model::{Endpoint, EnvPatch};

/// Writes a rank's identity.
pub fn write(who: &Identity, pod: &Pod) -> EnvPatch {
    let mut env = EnvPatch::new();
    if let Some(master) = &who.master {
        env.set("PADDLE_MASTER_ENDPOINT", master.to_string());
    }
    env.set("PADDLE_WORKER_ENDPOINT", who.endpoints[who.rank].to_string());
    env.set("PADDLE_TRAINER_ID", who.rank.to_string());
    env.set("PADDLE_TRAINERS_NUM", who.endpoints.len().to_string());
    env.set("PADDLE_LOG_DIR", pod.log_dir.as_str());
    env.set("POD_NAME", pod.name.as_str());
    env
}

/// What a rank learns from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcIdentity {
    /// Its number in the job.
    pub rank: usize,
    /// Ranks in the job.
    pub size: usize,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Where rank 0's store listens.
    pub master: Endpoint,
}

/// Reads it back: a rank is not told where the others listen.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<RpcIdentity> {
    Some(RpcIdentity {
        rank: number(get, "PADDLE_TRAINER_ID")?,
        size: number(get, "PADDLE_TRAINERS_NUM")?,
        endpoint: Endpoint::parse(&get("PADDLE_WORKER_ENDPOINT")?)?,
        master: Endpoint::parse(&get("PADDLE_MASTER_ENDPOINT")?)?,
    })
}
