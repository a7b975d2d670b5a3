//! The torch dialect: what torchrun tells a worker, and `torch.distributed` reads (`env://`).

use super::number;
use crate::model::{Endpoint, EnvPatch};

/// Who a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its number in the job.
    pub rank: usize,
    /// Workers in the job.
    pub world_size: usize,
    /// Its number on its node.
    pub local_rank: usize,
    /// Workers on its node.
    pub local_size: usize,
    /// Its node's number.
    pub node: usize,
    /// Nodes in the job.
    pub nnodes: usize,
    /// Its number among those of its role.
    pub role_rank: usize,
    /// Workers of its role.
    pub role_size: usize,
    /// Whether it is told 0 for its number on its node: it sees one device, its own.
    pub virtual_local_rank: bool,
}

/// What all workers of a node are told alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where the store listens.
    pub master: Endpoint,
    /// Whether a store listens there that no worker has to host.
    pub agent_store: bool,
    /// The job's name.
    pub run_id: String,
    /// What these workers are for.
    pub role: String,
    /// How many times all may be started again.
    pub max_restarts: u32,
    /// The signals that stop the job, as given.
    pub signals: String,
    /// TORCH_NCCL_ASYNC_ERROR_HANDLING.
    pub async_error_handling: String,
}

/// Writes a worker's identity, in torchrun's order.
pub fn write(worker: &Worker, group: &Group, env: &mut EnvPatch) {
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

/// Writes what is another in each attempt: its number, and the file for what a worker dies of, empty for none.
pub fn write_attempt(attempt: u32, error_file: &str, env: &mut EnvPatch) {
    env.set("TORCHELASTIC_RESTART_COUNT", attempt.to_string());
    env.set("TORCHELASTIC_ERROR_FILE", error_file);
}

/// Reads it back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<(Worker, Group)> {
    let worker = Worker {
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
    let group = Group {
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
