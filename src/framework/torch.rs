//! torch: the variables that torchrun sets for a worker and `torch.distributed` reads (`env://`).

use super::read_env::number;
use crate::model::{Endpoint, EnvDelta};

/// Identity of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorchWorker {
    /// Rank in the job.
    pub rank: usize,
    /// Number of workers in the job.
    pub world_size: usize,
    /// Rank on its node.
    pub local_rank: usize,
    /// Number of workers on its node.
    pub local_size: usize,
    /// Number of its node.
    pub node: usize,
    /// Number of nodes.
    pub nnodes: usize,
    /// Rank among the workers of its role.
    pub role_rank: usize,
    /// Number of workers of its role.
    pub role_size: usize,
    /// Whether LOCAL_RANK is 0, because only its own device is visible to it.
    pub virtual_local_rank: bool,
}

/// What all workers of a node have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerGroup {
    /// Endpoint of the store.
    pub master: Endpoint,
    /// Whether the launcher serves the store, so that no worker has to.
    pub agent_store: bool,
    /// Name of the job.
    pub run_id: String,
    /// Role of these workers.
    pub role: String,
    /// Maximum number of restarts.
    pub max_restarts: u32,
    /// Signals that stop the job, as the user gave them.
    pub signals: String,
    /// TORCH_NCCL_ASYNC_ERROR_HANDLING.
    pub async_error_handling: String,
}

/// Writes the variables of a worker, in torchrun's order.
pub fn write(worker: &TorchWorker, group: &WorkerGroup, env: &mut EnvDelta) {
    let local_rank = if worker.virtual_local_rank { 0 } else { worker.local_rank };
    env.set("LOCAL_RANK", local_rank.to_string());
    env.set("RANK", worker.rank.to_string());
    env.set("GROUP_RANK", worker.node.to_string());
    env.set("ROLE_RANK", worker.role_rank.to_string());
    env.set("ROLE_NAME", group.role.as_str());
    env.set("LOCAL_WORLD_SIZE", worker.local_size.to_string());
    env.set("WORLD_SIZE", worker.world_size.to_string());
    env.set("GROUP_WORLD_SIZE", worker.nnodes.to_string());
    env.set("ROLE_WORLD_SIZE", worker.role_size.to_string());
    env.set("MASTER_ADDR", group.master.host.as_str());
    env.set("MASTER_PORT", group.master.port.to_string());
    env.set("TORCHELASTIC_MAX_RESTARTS", group.max_restarts.to_string());
    env.set("TORCHELASTIC_RUN_ID", group.run_id.as_str());
    env.set("TORCHELASTIC_USE_AGENT_STORE", if group.agent_store { "True" } else { "False" });
    env.set("TORCH_NCCL_ASYNC_ERROR_HANDLING", group.async_error_handling.as_str());
    env.set("TORCHELASTIC_SIGNALS_TO_HANDLE", group.signals.as_str());
}

/// Writes the variables that differ between attempts: the number of restarts, and the file for the exception of the
/// worker, empty for none.
pub fn write_attempt(attempt: u32, error_file: &str, env: &mut EnvDelta) {
    env.set("TORCHELASTIC_RESTART_COUNT", attempt.to_string());
    env.set("TORCHELASTIC_ERROR_FILE", error_file);
}

/// Reads the variables back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<(TorchWorker, WorkerGroup)> {
    let worker = TorchWorker {
        rank: number(get, "RANK")?,
        world_size: number(get, "WORLD_SIZE")?,
        local_rank: number(get, "LOCAL_RANK")?,
        local_size: number(get, "LOCAL_WORLD_SIZE")?,
        node: number(get, "GROUP_RANK")?,
        nnodes: number(get, "GROUP_WORLD_SIZE")?,
        role_rank: number(get, "ROLE_RANK")?,
        role_size: number(get, "ROLE_WORLD_SIZE")?,
        virtual_local_rank: false,
    };
    let group = WorkerGroup {
        master: Endpoint::new(&get("MASTER_ADDR")?, get("MASTER_PORT")?.parse().ok()?),
        agent_store: get("TORCHELASTIC_USE_AGENT_STORE")? == "True",
        run_id: get("TORCHELASTIC_RUN_ID")?,
        role: get("ROLE_NAME")?,
        max_restarts: get("TORCHELASTIC_MAX_RESTARTS")?.parse().ok()?,
        signals: get("TORCHELASTIC_SIGNALS_TO_HANDLE")?,
        async_error_handling: get("TORCH_NCCL_ASYNC_ERROR_HANDLING")?,
    };
    Some((worker, group))
}
