//! Variables of the frameworks that `--frameworks` adds to the default of the front end.

use crate::framework::paddle_launch;
use crate::framework::paddle_launch::{NodeEnv, PodInfo};
use crate::framework::torch;
use crate::framework::torch::{TorchWorker, WorkerGroup};
use crate::framework::{Binding, RankIdentity, jax};
use crate::model::{Endpoint, EnvDelta};
use crate::plan::devices::assign::DeviceShare;
use crate::spec::frameworks::Framework;
use crate::spec::options::EnvVars;
use crate::spec::torchrun::options::SIGNALS;
use core::net::IpAddr;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Endpoints on which rank 0 serves the other ranks, by framework.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameworkServers {
    /// Store of torch.
    pub torch: Option<Endpoint>,
    /// Coordinator of jax.
    pub jax: Option<Endpoint>,
}

impl FrameworkServers {
    /// The servers of these frameworks, at the ports for torch and jax.
    pub fn at(frameworks: &BTreeSet<Framework>, host: &str, [torch, jax]: [u16; 2]) -> Self {
        let of = |framework, port| frameworks.contains(&framework).then(|| Endpoint::new(host, port));
        Self { torch: of(Framework::Torch, torch), jax: of(Framework::Jax, jax) }
    }

    /// Number of ports to reserve: one for torch and one for jax, or none.
    pub fn ports_needed(frameworks: &BTreeSet<Framework>) -> usize {
        if frameworks.iter().all(|framework| *framework == Framework::Paddle) { 0 } else { 2 }
    }

    /// Ports of the servers.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        [&self.torch, &self.jax].into_iter().flatten().map(|server| server.port)
    }

    /// Writes the variables of torch and jax for a rank on the node of this number. `run_id` and `max_restarts` have
    /// torchrun's meaning.
    pub fn write(
        &self,
        identity: &RankIdentity,
        node: usize,
        (run_id, max_restarts): (&str, u32),
        vars: &EnvVars,
        env: &mut EnvDelta,
    ) {
        let size = identity.endpoints.len();
        if let Some(master) = &self.torch {
            let worker = TorchWorker {
                rank: identity.rank,
                world_size: size,
                local_rank: identity.local_rank,
                local_size: identity.local_size,
                node,
                nnodes: identity.nnodes,
                role_rank: identity.rank,
                role_size: size,
                virtual_local_rank: false,
            };
            let group = WorkerGroup {
                master: master.clone(),
                agent_store: false,
                run_id: run_id.to_owned(),
                role: "default".into(),
                max_restarts,
                signals: SIGNALS.into(),
                async_error_handling: async_error_handling(vars),
            };
            torch::write(&worker, &group, env);
        }
        if let Some(coordinator) = &self.jax {
            let devices = match &identity.binding {
                Binding::Selected { kind, indices } if kind == "gpu" => Some(indices.as_str()),
                _ => None,
            };
            write_jax((identity.rank, size, identity.local_rank), (coordinator, identity.nnodes), devices, vars, env);
        }
    }
}

/// TORCH_NCCL_ASYNC_ERROR_HANDLING: 1 unless already set, as in torchrun.
pub fn async_error_handling(vars: &EnvVars) -> String {
    vars.get("TORCH_NCCL_ASYNC_ERROR_HANDLING").map_or("1", String::as_str).to_owned()
}

fn write_jax(
    (id, count, local_id): (usize, usize, usize),
    (coordinator, nnodes): (&Endpoint, usize),
    devices: Option<&str>,
    vars: &EnvVars,
    env: &mut EnvDelta,
) {
    let is_free = |name: &str| !vars.contains_key(name);
    // jax listens on all addresses by default, which is needed only on several nodes.
    let is_local = nnodes == 1 && coordinator.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let process = jax::JaxProcess {
        id,
        count,
        local_id,
        coordinator: coordinator.clone(),
        bind: (is_local && is_free("JAX_COORDINATOR_BIND_ADDRESS")).then(|| coordinator.clone()),
        devices: devices.filter(|_| is_free("JAX_LOCAL_DEVICE_IDS")).map(str::to_owned),
    };
    jax::write(&process, env);
}

/// A warning if scripts for torch, which use the GPU of LOCAL_RANK, would use other GPUs than their ranks get.
pub fn gpu_mismatch(frameworks: &BTreeSet<Framework>, shares: &[DeviceShare]) -> Option<String> {
    let given = |(local_rank, share): (usize, &DeviceShare)| match &share.binding {
        Binding::Selected { kind, indices } if kind == "gpu" => {
            (indices.split(',').next() != Some(local_rank.to_string().as_str())).then(|| indices.clone())
        }
        _ => None,
    };
    let (rank, given) = shares.iter().enumerate().find_map(|(at, share)| Some((at, given((at, share))?)))?;
    frameworks.contains(&Framework::Torch).then(|| {
        format!(
            "scripts for torch use the GPU of LOCAL_RANK, but local rank {rank} is given {given}; \
             set CUDA_VISIBLE_DEVICES instead of --devices, and run one rank for each GPU"
        )
    })
}

/// Frameworks other than torch whose variables the workers of torchrun jobs get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraFrameworks {
    /// Paddle.
    pub paddle: Option<PaddleEnv>,
    /// jax: endpoint of its coordinator.
    pub jax: Option<Endpoint>,
}

/// Values that Paddle's variables need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaddleEnv {
    /// Endpoints of all ranks, by rank.
    pub endpoints: Arc<[Endpoint]>,
    /// Endpoint of the store in rank 0.
    pub master: Endpoint,
    /// Kind and number of the devices of this node.
    pub devices: (String, usize),
    /// Random name of this launcher.
    pub pod: String,
}

impl ExtraFrameworks {
    /// Writes the variables of a worker.
    pub fn write(&self, worker: &TorchWorker, log_dir: &str, vars: &EnvVars, env: &mut EnvDelta) {
        let local_rank = if worker.virtual_local_rank { 0 } else { worker.local_rank };
        if let Some(paddle) = &self.paddle {
            let identity = paddle.identity(worker, local_rank);
            let pod = PodInfo { name: paddle.pod.clone(), log_dir: log_dir.to_owned(), auto_cluster: false };
            let list = Endpoint::join(&paddle.endpoints).into();
            paddle_launch::write(&identity, &NodeEnv::of(&identity, &pod, &list), env);
        }
        if let Some(coordinator) = &self.jax {
            let numbers = (worker.rank, worker.world_size, local_rank);
            write_jax(numbers, (coordinator, worker.nnodes), None, vars, env);
        }
    }
}

impl PaddleEnv {
    /// The identity of a worker for Paddle. It has the device of its local rank, as in torch; if there are fewer devices
    /// than workers, all workers use the CPU.
    fn identity(&self, worker: &TorchWorker, device: usize) -> RankIdentity {
        let (kind, count) = &self.devices;
        let enough = worker.local_size <= *count;
        RankIdentity {
            rank: worker.rank,
            local_rank: worker.local_rank,
            local_size: worker.local_size,
            nnodes: worker.nnodes,
            endpoints: self.endpoints.clone(),
            master: Some(self.master.clone()),
            binding: match enough {
                true => Binding::Selected { kind: kind.clone(), indices: device.to_string() },
                false => Binding::Cpu,
            },
        }
    }
}
