//! Variables that the legacy launcher, `python -m paddle.distributed.fleet.launch`, sets for a rank of a collective job.

use super::identity::Binding;
use super::read_env::{binding, number};
use crate::model::{Endpoint, EnvDelta, accelerator};
use std::sync::Arc;

/// Identity of a rank. A rank mapping may number ranks in another order than their endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyIdentity {
    /// Rank in the job.
    pub rank: usize,
    /// Rank on its node.
    pub local_rank: usize,
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// Its devices.
    pub binding: Binding,
}

/// What all ranks have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyWorld {
    /// Number of ranks in the job.
    pub size: usize,
    /// Comma-separated endpoints of all ranks, node by node.
    pub endpoints: Arc<str>,
    /// Endpoint of the store in rank 0, if it is not the first of `endpoints`.
    pub master: Option<Endpoint>,
    /// Devices in the same order, separated by `:` within a rank and by `,` between ranks.
    pub devices: Arc<str>,
    /// `gloo`, `nccl`, ...
    pub backend: String,
    /// PADDLE_WITH_GLOO.
    pub with_gloo: String,
    /// Empty directory that exists for the duration of the job.
    pub gloo_dir: String,
    /// Addresses of the nodes; only in elastic jobs.
    pub trainers: Option<Arc<str>>,
    /// Only with `--enable_auto_mapping`.
    pub mapping: Option<RankMappingEnv>,
}

/// Variables of a rank mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMappingEnv {
    /// JSON file of the machines.
    pub topology: String,
    /// The mapping that is still to be made; `None`: ranks are placed.
    pub request: Option<MapperRequest>,
}

/// Request to a mapper process to write a rank mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapperRequest {
    /// File to write.
    pub path: String,
    /// Arguments of the launcher, separated by blanks.
    pub args: String,
}

/// The devices of all ranks in the form of `LegacyWorld::devices`.
pub fn world_devices<'a>(bindings: impl Iterator<Item = &'a Binding>) -> String {
    let of = |binding: &Binding| match binding {
        Binding::Cpu => String::new(),
        Binding::Selected { indices, .. } => indices.replace(',', ":"),
    };
    bindings.map(of).collect::<Vec<_>>().join(",")
}

/// Writes the variables of a rank.
pub fn write(identity: &LegacyIdentity, world: &LegacyWorld) -> EnvDelta {
    let mut env = EnvDelta::new();
    env.set("PADDLE_WITH_GLOO", world.with_gloo.as_str());
    env.set("PADDLE_GLOO_RENDEZVOUS", "3");
    env.set("PADDLE_GLOO_FS_PATH", world.gloo_dir.as_str());
    env.set("PADDLE_DISTRI_BACKEND", world.backend.as_str());
    if let Some(master) = &world.master {
        env.set("PADDLE_MASTER", master.to_string());
    }
    if let Some(mapping) = &world.mapping {
        let request = mapping.request.as_ref();
        env.set("PADDLE_NEED_RANK_MAPPING", if request.is_some() { "True" } else { "False" });
        // With True, a mapper exits with status 102 instead of starting a launcher of its own.
        env.set("PADDLE_ENABLE_ELASTIC", if request.is_some() { "True" } else { "False" });
        if let Some(request) = request {
            env.set("PADDLE_ORIGINAL_CMD_ARGS", request.args.as_str());
        }
    }
    if let Some(trainers) = &world.trainers {
        env.set("PADDLE_TRAINERS", trainers.clone());
        env.set("DISTRIBUTED_TRAINER_ENDPOINTS", world.endpoints.clone());
    }
    env.set("PADDLE_TRAINER_ID", identity.rank.to_string());
    env.set("PADDLE_CURRENT_ENDPOINT", identity.endpoint.to_string());
    env.set("PADDLE_TRAINERS_NUM", world.size.to_string());
    env.set("PADDLE_TRAINER_ENDPOINTS", world.endpoints.clone());
    env.set("PADDLE_RANK_IN_NODE", identity.local_rank.to_string());
    let own = match &identity.binding {
        Binding::Cpu => "",
        Binding::Selected { indices, .. } => indices,
    };
    env.set("PADDLE_LOCAL_DEVICE_IDS", own);
    env.set("PADDLE_WORLD_DEVICE_IDS", world.devices.clone());
    if let Some(mapping) = &world.mapping {
        env.set("PADDLE_CLUSTER_TOPO_PATH", mapping.topology.as_str());
        env.set("PADDLE_RANK_MAPPING_PATH", mapping.request.as_ref().map_or("", |request| &request.path));
        env.set("PADDLE_ENABLE_AUTO_MAPPING", "True");
    }
    if let Binding::Selected { kind, indices } = &identity.binding {
        env.set(format!("FLAGS_selected_{kind}s"), indices.as_str());
        env.set("FLAGS_selected_accelerators", indices.as_str());
        if accelerator::is_custom(kind) {
            env.set("PADDLE_XCCL_BACKEND", kind.as_str());
        }
    }
    env
}

/// Reads the variables back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<(LegacyIdentity, LegacyWorld)> {
    let mapping = |topology| {
        let needed = get("PADDLE_NEED_RANK_MAPPING")? == "True";
        let request = MapperRequest { path: get("PADDLE_RANK_MAPPING_PATH")?, args: get("PADDLE_ORIGINAL_CMD_ARGS")? };
        Some(RankMappingEnv { topology, request: needed.then_some(request) })
    };
    let placed = |topology| RankMappingEnv { topology, request: None };
    let identity = LegacyIdentity {
        rank: number(get, "PADDLE_TRAINER_ID")?,
        local_rank: number(get, "PADDLE_RANK_IN_NODE")?,
        endpoint: Endpoint::parse(&get("PADDLE_CURRENT_ENDPOINT")?)?,
        binding: binding(get),
    };
    let world = LegacyWorld {
        size: number(get, "PADDLE_TRAINERS_NUM")?,
        endpoints: get("PADDLE_TRAINER_ENDPOINTS")?.into(),
        master: get("PADDLE_MASTER").as_deref().and_then(Endpoint::parse),
        devices: get("PADDLE_WORLD_DEVICE_IDS")?.into(),
        backend: get("PADDLE_DISTRI_BACKEND")?,
        with_gloo: get("PADDLE_WITH_GLOO")?,
        gloo_dir: get("PADDLE_GLOO_FS_PATH")?,
        trainers: get("PADDLE_TRAINERS").map(Into::into),
        mapping: get("PADDLE_CLUSTER_TOPO_PATH").map(|path| mapping(path.clone()).unwrap_or_else(|| placed(path))),
    };
    Some((identity, world))
}
