//! Variables that `python -m paddle.distributed.launch --run_mode rpc` sets for a rank.

use super::identity::RankIdentity;
use super::paddle_launch::PodInfo;
use super::read_env::number;
use crate::model::{Endpoint, EnvDelta};

/// Writes the variables of a rank.
pub fn write(identity: &RankIdentity, pod: &PodInfo) -> EnvDelta {
    let mut env = EnvDelta::new();
    if let Some(master) = &identity.master {
        env.set("PADDLE_MASTER_ENDPOINT", master.to_string());
    }
    env.set("PADDLE_WORKER_ENDPOINT", identity.endpoints[identity.rank].to_string());
    env.set("PADDLE_TRAINER_ID", identity.rank.to_string());
    env.set("PADDLE_TRAINERS_NUM", identity.endpoints.len().to_string());
    env.set("PADDLE_LOG_DIR", pod.log_dir.as_str());
    env.set("POD_NAME", pod.name.as_str());
    env
}

/// What a rank reads from these variables. It has no endpoints of other ranks but that of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcIdentity {
    /// Rank in the job.
    pub rank: usize,
    /// Number of ranks in the job.
    pub size: usize,
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// Endpoint of the store in rank 0.
    pub master: Endpoint,
}

/// Reads the variables back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<RpcIdentity> {
    Some(RpcIdentity {
        rank: number(get, "PADDLE_TRAINER_ID")?,
        size: number(get, "PADDLE_TRAINERS_NUM")?,
        endpoint: Endpoint::parse(&get("PADDLE_WORKER_ENDPOINT")?)?,
        master: Endpoint::parse(&get("PADDLE_MASTER_ENDPOINT")?)?,
    })
}
