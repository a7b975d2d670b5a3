//! jax: the variables that `jax.distributed.initialize()` reads without arguments.
//!
//! Of its own variables jax reads the coordinator's address (JAX_COORDINATOR_ADDRESS), the address on which the
//! coordinator listens (JAX_COORDINATOR_BIND_ADDRESS) and the devices (JAX_LOCAL_DEVICE_IDS). It takes the number of
//! processes and its own number from the first cluster that it detects (jax/_src/clusters, in jax 0.4.30 and 0.10.2).
//! Open MPI comes before Slurm there, and is detected by OMPI_MCA_orte_hnp_uri. rlaunch therefore writes Open MPI's
//! variables. It also writes JAX_NUM_PROCESSES and JAX_PROCESS_ID, which scripts read and jax does not.

use super::read_env::number;
use crate::model::{Endpoint, EnvDelta};

/// Identity of a process of a jax job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JaxProcess {
    /// Number in the job.
    pub id: usize,
    /// Number of processes in the job.
    pub count: usize,
    /// Number on its node; also the index of its device if `devices` is `None`.
    pub local_id: usize,
    /// Endpoint of the coordinator in process 0.
    pub coordinator: Endpoint,
    /// Address on which the coordinator listens; `None`: all addresses of its machine.
    pub bind: Option<Endpoint>,
    /// Comma-separated indices into the visible list.
    pub devices: Option<String>,
}

/// The variable by which jax detects Open MPI. The value is no valid address, so that an MPI library rejects it.
const OPEN_MPI_MARKER: (&str, &str) = ("OMPI_MCA_orte_hnp_uri", "rlaunch");

/// Writes the variables of a process.
pub fn write(process: &JaxProcess, env: &mut EnvDelta) {
    let (id, count) = (process.id.to_string(), process.count.to_string());
    env.set("JAX_COORDINATOR_ADDRESS", process.coordinator.to_string());
    if let Some(bind) = &process.bind {
        env.set("JAX_COORDINATOR_BIND_ADDRESS", bind.to_string());
    }
    env.set("JAX_NUM_PROCESSES", count.as_str());
    env.set("JAX_PROCESS_ID", id.as_str());
    if let Some(devices) = &process.devices {
        env.set("JAX_LOCAL_DEVICE_IDS", devices.as_str());
    }
    env.set(OPEN_MPI_MARKER.0, OPEN_MPI_MARKER.1);
    env.set("OMPI_COMM_WORLD_SIZE", count);
    env.set("OMPI_COMM_WORLD_RANK", id);
    env.set("OMPI_COMM_WORLD_LOCAL_RANK", process.local_id.to_string());
}

/// Reads the variables back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<JaxProcess> {
    get(OPEN_MPI_MARKER.0)?;
    Some(JaxProcess {
        id: number(get, "OMPI_COMM_WORLD_RANK")?,
        count: number(get, "OMPI_COMM_WORLD_SIZE")?,
        local_id: number(get, "OMPI_COMM_WORLD_LOCAL_RANK")?,
        coordinator: Endpoint::parse(&get("JAX_COORDINATOR_ADDRESS")?)?,
        bind: get("JAX_COORDINATOR_BIND_ADDRESS").as_deref().and_then(Endpoint::parse),
        devices: get("JAX_LOCAL_DEVICE_IDS"),
    })
}
