//! The jax dialect: what `jax.distributed.initialize()` without arguments reads.
//!
//! Of jax's own variables it reads the coordinator's address (JAX_COORDINATOR_ADDRESS), where the coordinator listens
//! (JAX_COORDINATOR_BIND_ADDRESS) and the devices (JAX_LOCAL_DEVICE_IDS). How many processes there are and which of them
//! this is it takes from the first cluster that it finds (jax/_src/clusters, in jax 0.4.30 and 0.10.2); Open MPI's comes
//! before Slurm's, and is known by OMPI_MCA_orte_hnp_uri being there. So the numbers are told in Open MPI's words, and in
//! JAX_NUM_PROCESSES and JAX_PROCESS_ID too, which scripts read and jax does not.

use super::number;
use crate::model::{Endpoint, EnvPatch};

/// Who a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number in the job.
    pub id: usize,
    /// Processes in the job.
    pub count: usize,
    /// Its number on its node; the index of its device, where `devices` does not say.
    pub local_id: usize,
    /// Where process 0's coordinator can be reached.
    pub coordinator: Endpoint,
    /// Where it listens, if not on all addresses of its machine.
    pub bind: Option<Endpoint>,
    /// Its devices as indices into what is visible, joined by commas, if it is told.
    pub devices: Option<String>,
}

/// By which jax knows that the numbers are there. An MPI library that takes it for an address says that it is none.
const PRESENT: (&str, &str) = ("OMPI_MCA_orte_hnp_uri", "rlaunch");

/// Writes a process's identity.
pub fn write(who: &Process, env: &mut EnvPatch) {
    let (id, count) = (who.id.to_string(), who.count.to_string());
    env.set("JAX_COORDINATOR_ADDRESS", who.coordinator.to_string());
    if let Some(bind) = &who.bind {
        env.set("JAX_COORDINATOR_BIND_ADDRESS", bind.to_string());
    }
    env.set("JAX_NUM_PROCESSES", count.as_str());
    env.set("JAX_PROCESS_ID", id.as_str());
    if let Some(devices) = &who.devices {
        env.set("JAX_LOCAL_DEVICE_IDS", devices.as_str());
    }
    env.set(PRESENT.0, PRESENT.1);
    env.set("OMPI_COMM_WORLD_SIZE", count);
    env.set("OMPI_COMM_WORLD_RANK", id);
    env.set("OMPI_COMM_WORLD_LOCAL_RANK", who.local_id.to_string());
}

/// Reads it back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<Process> {
    get(PRESENT.0)?;
    Some(Process {
        id: number(get, "OMPI_COMM_WORLD_RANK")?,
        count: number(get, "OMPI_COMM_WORLD_SIZE")?,
        local_id: number(get, "OMPI_COMM_WORLD_LOCAL_RANK")?,
        coordinator: Endpoint::parse(&get("JAX_COORDINATOR_ADDRESS")?)?,
        bind: get("JAX_COORDINATOR_BIND_ADDRESS").as_deref().and_then(Endpoint::parse),
        devices: get("JAX_LOCAL_DEVICE_IDS"),
    })
}
