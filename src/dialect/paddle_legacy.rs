//! What the older launcher, `python -m paddle.distributed.fleet.launch`, tells a rank of a collective job.

use super::{Binding, binding, number};
use crate::model::{Endpoint, EnvPatch, accelerator};
use std::sync::Arc;

/// Who a rank is. Numbers need not follow the order of endpoints: a mapping may place them anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number in the job.
    pub rank: usize,
    /// Its number on its node.
    pub local_rank: usize,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Its devices.
    pub binding: Binding,
}

/// What all ranks are told alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Ranks in the job.
    pub size: usize,
    /// Where they listen, node by node.
    pub endpoints: Arc<str>,
    /// Where rank 0's store listens, if that cannot be told from the first of them.
    pub master: Option<Endpoint>,
    /// Their devices in the same order: `:` within a rank, `,` between ranks.
    pub devices: Arc<str>,
    /// `gloo`, `nccl`, ...
    pub backend: String,
    /// PADDLE_WITH_GLOO.
    pub with_gloo: String,
    /// An empty folder that is there as long as the job.
    pub folder: String,
    /// The nodes' addresses, where nodes come and go.
    pub trainers: Option<Arc<str>>,
    /// Only with `--enable_auto_mapping`.
    pub mapping: Option<Mapping>,
}

/// What is said of the mapping of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The file of the machines.
    pub topology: String,
    /// What has still to be made: the file, and the launcher's arguments. None: ranks are placed.
    pub wanted: Option<Wanted>,
}

/// A mapping that a mapper is to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The file to write.
    pub path: String,
    /// The launcher's arguments, joined by blanks.
    pub args: String,
}

/// The devices of all ranks as `World` has them.
pub fn world_devices<'a>(bindings: impl Iterator<Item = &'a Binding>) -> String {
    let of = |binding: &Binding| match binding {
        Binding::Cpu => String::new(),
        Binding::Selected { indices, .. } => indices.replace(',', ":"),
    };
    bindings.map(of).collect::<Vec<_>>().join(",")
}

/// Writes what a rank is told.
pub fn write(who: &Identity, world: &World) -> EnvPatch {
    let mut env = EnvPatch::new();
    env.set("PADDLE_WITH_GLOO", world.with_gloo.as_str());
    env.set("PADDLE_GLOO_RENDEZVOUS", "3");
    env.set("PADDLE_GLOO_FS_PATH", world.folder.as_str());
    env.set("PADDLE_DISTRI_BACKEND", world.backend.as_str());
    if let Some(master) = &world.master {
        env.set("PADDLE_MASTER", master.to_string());
    }
    if let Some(mapping) = &world.mapping {
        let wanted = mapping.wanted.as_ref();
        env.set("PADDLE_NEED_RANK_MAPPING", if wanted.is_some() { "True" } else { "False" });
        // What a mapper is told by this is to end with 102 instead of starting a launcher of its own.
        env.set("PADDLE_ENABLE_ELASTIC", if wanted.is_some() { "True" } else { "False" });
        if let Some(wanted) = wanted {
            env.set("PADDLE_ORIGINAL_CMD_ARGS", wanted.args.as_str());
        }
    }
    if let Some(trainers) = &world.trainers {
        env.set("PADDLE_TRAINERS", trainers.clone());
        env.set("DISTRIBUTED_TRAINER_ENDPOINTS", world.endpoints.clone());
    }
    env.set("PADDLE_TRAINER_ID", who.rank.to_string());
    env.set("PADDLE_CURRENT_ENDPOINT", who.endpoint.to_string());
    env.set("PADDLE_TRAINERS_NUM", world.size.to_string());
    env.set("PADDLE_TRAINER_ENDPOINTS", world.endpoints.clone());
    env.set("PADDLE_RANK_IN_NODE", who.local_rank.to_string());
    let own = match &who.binding {
        Binding::Cpu => "",
        Binding::Selected { indices, .. } => indices,
    };
    env.set("PADDLE_LOCAL_DEVICE_IDS", own);
    env.set("PADDLE_WORLD_DEVICE_IDS", world.devices.clone());
    if let Some(mapping) = &world.mapping {
        env.set("PADDLE_CLUSTER_TOPO_PATH", mapping.topology.as_str());
        env.set("PADDLE_RANK_MAPPING_PATH", mapping.wanted.as_ref().map_or("", |wanted| &wanted.path));
        env.set("PADDLE_ENABLE_AUTO_MAPPING", "True");
    }
    if let Binding::Selected { kind, indices } = &who.binding {
        env.set(format!("FLAGS_selected_{kind}s"), indices.as_str());
        env.set("FLAGS_selected_accelerators", indices.as_str());
        if accelerator::is_custom(kind) {
            env.set("PADDLE_XCCL_BACKEND", kind.as_str());
        }
    }
    env
}

/// Reads it back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<(Identity, World)> {
    let mapping = |topology| {
        let needed = get("PADDLE_NEED_RANK_MAPPING")? == "True";
        let wanted = Wanted { path: get("PADDLE_RANK_MAPPING_PATH")?, args: get("PADDLE_ORIGINAL_CMD_ARGS")? };
        Some(Mapping { topology, wanted: needed.then_some(wanted) })
    };
    let placed = |topology| Mapping { topology, wanted: None };
    let identity = Identity {
        rank: number(get, "PADDLE_TRAINER_ID")?,
        local_rank: number(get, "PADDLE_RANK_IN_NODE")?,
        endpoint: Endpoint::parse(&get("PADDLE_CURRENT_ENDPOINT")?)?,
        binding: binding(get),
    };
    let world = World {
        size: number(get, "PADDLE_TRAINERS_NUM")?,
        endpoints: get("PADDLE_TRAINER_ENDPOINTS")?.into(),
        master: get("PADDLE_MASTER").as_deref().and_then(Endpoint::parse),
        devices: get("PADDLE_WORLD_DEVICE_IDS")?.into(),
        backend: get("PADDLE_DISTRI_BACKEND")?,
        with_gloo: get("PADDLE_WITH_GLOO")?,
        folder: get("PADDLE_GLOO_FS_PATH")?,
        trainers: get("PADDLE_TRAINERS").map(Into::into),
        mapping: get("PADDLE_CLUSTER_TOPO_PATH").map(|path| mapping(path.clone()).unwrap_or_else(|| placed(path))),
    };
    Some((identity, world))
}
