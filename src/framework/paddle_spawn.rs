//! Variables that `paddle.distributed.spawn` sets for a rank.

use super::identity::{Binding, RankIdentity};
use super::read_env::{binding, endpoint_list, number};
use crate::model::{Endpoint, EnvDelta};

/// Writes the variables of a rank, in Paddle's order.
pub fn write(identity: &RankIdentity) -> EnvDelta {
    let mut env = EnvDelta::new();
    if let Binding::Selected { kind, indices } = &identity.binding {
        env.set(format!("FLAGS_selected_{kind}s"), indices.as_str());
    }
    env.set("PADDLE_TRAINER_ID", identity.rank.to_string());
    env.set("PADDLE_CURRENT_ENDPOINT", identity.endpoints[identity.rank].to_string());
    env.set("PADDLE_TRAINERS_NUM", identity.endpoints.len().to_string());
    env.set("PADDLE_TRAINER_ENDPOINTS", Endpoint::join(&identity.endpoints));
    if identity.binding == Binding::Cpu {
        env.set("PADDLE_DISTRI_BACKEND", "gloo");
    }
    env
}

/// Reads the variables back. Local numbers, the number of nodes and the master are not set, so they are those of one
/// node.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<RankIdentity> {
    let rank = number(get, "PADDLE_TRAINER_ID")?;
    let endpoints = endpoint_list(get, "PADDLE_TRAINER_ENDPOINTS")?;
    Some(RankIdentity {
        rank,
        local_rank: rank,
        local_size: endpoints.len(),
        nnodes: 1,
        endpoints: endpoints.into(),
        master: None,
        binding: binding(get),
    })
}
