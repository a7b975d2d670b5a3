//! What ranks are told in the words of frameworks that are not their door's own (`--dialect`).

use super::devices::Share;
use crate::dialect::paddle_launch::{self, Alike, Pod};
use crate::dialect::torch::{self, Group, Worker};
use crate::dialect::{Binding, Identity, jax};
use crate::model::{Endpoint, EnvPatch};
use crate::spec::dialects::Dialect;
use crate::spec::options::Vars;
use crate::spec::torchrun::options::SIGNALS;
use core::net::IpAddr;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Where rank 0 itself listens for the others, framework by framework.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    /// torch's store.
    pub torch: Option<Endpoint>,
    /// jax's coordinator.
    pub jax: Option<Endpoint>,
}

impl Servers {
    /// Those that are needed, with a port for each that there may be.
    pub fn at(dialects: &BTreeSet<Dialect>, host: &str, [torch, jax]: [u16; 2]) -> Self {
        let of = |dialect, port| dialects.contains(&dialect).then(|| Endpoint::new(host, port));
        Self { torch: of(Dialect::Torch, torch), jax: of(Dialect::Jax, jax) }
    }

    /// How many ports there have to be.
    pub fn ports_needed(dialects: &BTreeSet<Dialect>) -> usize {
        if dialects.iter().all(|dialect| *dialect == Dialect::Paddle) { 0 } else { 2 }
    }

    /// Their ports.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        [&self.torch, &self.jax].into_iter().flatten().map(|server| server.port)
    }

    /// Tells a rank of them that is `who` in Paddle's words, on the node of this number. `run_id` and `max_restarts` as
    /// torchrun has them.
    pub fn write(
        &self,
        who: &Identity,
        node: usize,
        (run_id, max_restarts): (&str, u32),
        vars: &Vars,
        env: &mut EnvPatch,
    ) {
        let size = who.endpoints.len();
        if let Some(master) = &self.torch {
            let worker = Worker {
                rank: who.rank,
                world_size: size,
                local_rank: who.local_rank,
                local_size: who.local_size,
                node,
                nnodes: who.nnodes,
                role_rank: who.rank,
                role_size: size,
                virtual_local_rank: false,
            };
            let group = Group {
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
            let devices = match &who.binding {
                Binding::Selected { kind, indices } if kind == "gpu" => Some(indices.as_str()),
                _ => None,
            };
            write_jax((who.rank, size, who.local_rank), (coordinator, who.nnodes), devices, vars, env);
        }
    }
}

/// TORCH_NCCL_ASYNC_ERROR_HANDLING, which torchrun sets where nobody has.
pub fn async_error_handling(vars: &Vars) -> String {
    vars.get("TORCH_NCCL_ASYNC_ERROR_HANDLING").map_or("1", String::as_str).to_owned()
}

fn write_jax(
    (id, count, local_id): (usize, usize, usize),
    (coordinator, nnodes): (&Endpoint, usize),
    devices: Option<&str>,
    vars: &Vars,
    env: &mut EnvPatch,
) {
    let is_free = |name: &str| !vars.contains_key(name);
    // On all addresses, which is jax's default, only where other nodes have to reach it.
    let near = nnodes == 1 && coordinator.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let process = jax::Process {
        id,
        count,
        local_id,
        coordinator: coordinator.clone(),
        bind: (near && is_free("JAX_COORDINATOR_BIND_ADDRESS")).then(|| coordinator.clone()),
        devices: devices.filter(|_| is_free("JAX_LOCAL_DEVICE_IDS")).map(str::to_owned),
    };
    jax::write(&process, env);
}

/// What is said where torch's scripts would take other devices than they are given: they take the one of LOCAL_RANK.
pub fn misses(dialects: &BTreeSet<Dialect>, shares: &[Share]) -> Option<String> {
    let given = |(local_rank, share): (usize, &Share)| match &share.binding {
        Binding::Selected { kind, indices } if kind == "gpu" => {
            (indices.split(',').next() != Some(local_rank.to_string().as_str())).then(|| indices.clone())
        }
        _ => None,
    };
    let (rank, given) = shares.iter().enumerate().find_map(|(at, share)| Some((at, given((at, share))?)))?;
    dialects.contains(&Dialect::Torch).then(|| {
        format!(
            "torch's scripts take the GPU of LOCAL_RANK, and local rank {rank} is given {given}; \
             set CUDA_VISIBLE_DEVICES to the GPUs instead of --devices, with one rank for each"
        )
    })
}

/// What the workers of torch's door are told beside torch's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// In Paddle's words.
    pub paddle: Option<Paddle>,
    /// Where jax's coordinator listens.
    pub jax: Option<Endpoint>,
}

/// What Paddle's words need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paddle {
    /// Where each rank listens, by rank.
    pub endpoints: Arc<[Endpoint]>,
    /// Where rank 0's store listens.
    pub master: Endpoint,
    /// The kind of this node's devices, and how many there are.
    pub devices: (String, usize),
    /// This launcher's random name.
    pub pod: String,
}

impl Beside {
    /// Tells a worker.
    pub fn write(&self, worker: &Worker, log_dir: &str, vars: &Vars, env: &mut EnvPatch) {
        let local_rank = if worker.virtual_local_rank { 0 } else { worker.local_rank };
        if let Some(paddle) = &self.paddle {
            let who = paddle.of(worker, local_rank);
            let pod = Pod { name: paddle.pod.clone(), log_dir: log_dir.to_owned(), auto_cluster: false };
            let list = Endpoint::join(&paddle.endpoints).into();
            paddle_launch::write(&who, &Alike::of(&who, &pod, &list), env);
        }
        if let Some(coordinator) = &self.jax {
            let numbers = (worker.rank, worker.world_size, local_rank);
            write_jax(numbers, (coordinator, worker.nnodes), None, vars, env);
        }
    }
}

impl Paddle {
    /// A worker in Paddle's words. As in torch's, it has the device of its number; where there are not so many, none has.
    fn of(&self, worker: &Worker, device: usize) -> Identity {
        let (kind, count) = &self.devices;
        let enough = worker.local_size <= *count;
        Identity {
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
