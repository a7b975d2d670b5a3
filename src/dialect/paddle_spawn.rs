//! What `paddle.distributed.spawn` tells a rank.

use super::{Binding, Identity, binding, endpoint_list, number};
use crate::model::{Endpoint, EnvPatch};

/// Writes a rank's identity, in the order that Paddle has.
pub fn write(who: &Identity) -> EnvPatch {
    let mut env = EnvPatch::new();
    if let Binding::Selected { kind, indices } = &who.binding {
        env.set(format!("FLAGS_selected_{kind}s"), indices.as_str());
    }
    env.set("PADDLE_TRAINER_ID", who.rank.to_string());
    env.set("PADDLE_CURRENT_ENDPOINT", who.endpoints[who.rank].to_string());
    env.set("PADDLE_TRAINERS_NUM", who.endpoints.len().to_string());
    env.set("PADDLE_TRAINER_ENDPOINTS", Endpoint::join(&who.endpoints));
    if who.binding == Binding::Cpu {
        env.set("PADDLE_DISTRI_BACKEND", "gloo");
    }
    env
}

/// Reads it back. What this dialect does not say (local numbers, nodes, the master) is as on one node.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<Identity> {
    let rank = number(get, "PADDLE_TRAINER_ID")?;
    let endpoints = endpoint_list(get, "PADDLE_TRAINER_ENDPOINTS")?;
    Some(Identity {
        rank,
        local_rank: rank,
        local_size: endpoints.len(),
        nnodes: 1,
        endpoints: endpoints.into(),
        master: None,
        binding: binding(get),
    })
}
