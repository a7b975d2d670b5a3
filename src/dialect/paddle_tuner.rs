//! What `python -m paddle.distributed.launch` tells the tuner of `--auto_parallel_config`, and the ranks after it.

use super::number;
use crate::model::{Endpoint, EnvPatch};

/// What a tuner is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuner {
    /// The configuration file, as the user gave it.
    pub config: String,
    /// Where it may listen.
    pub endpoint: Endpoint,
    /// Ranks of the job that it tunes.
    pub world_size: usize,
    /// Those on this node.
    pub local_size: usize,
}

/// Writes it, in the order that Paddle has. The tuner is a job of one rank, on the first GPU if there is one.
pub fn write(tuner: &Tuner, env: &mut EnvPatch) {
    let endpoint = tuner.endpoint.to_string();
    env.set("PADDLE_AUTO_PARALLEL_CONFIG", tuner.config.as_str());
    env.set("PADDLE_TRAINERS_NUM", "1");
    env.set("PADDLE_TRAINER_ENDPOINTS", endpoint.as_str());
    env.set("PADDLE_TRAINER_ID", "0");
    env.set("PADDLE_CURRENT_ENDPOINT", endpoint);
    env.set("FLAGS_selected_gpus", "0");
    env.set("PADDLE_AUTO_PARALLEL_STAGE", "tuner");
    env.set("PADDLE_GLOBAL_SIZE", tuner.world_size.to_string());
    env.set("PADDLE_LOCAL_SIZE", tuner.local_size.to_string());
}

/// Reads it back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<Tuner> {
    get("PADDLE_AUTO_PARALLEL_STAGE").filter(|stage| stage == "tuner")?;
    Some(Tuner {
        config: get("PADDLE_AUTO_PARALLEL_CONFIG")?,
        endpoint: Endpoint::parse(&get("PADDLE_CURRENT_ENDPOINT")?)?,
        world_size: number(get, "PADDLE_GLOBAL_SIZE")?,
        local_size: number(get, "PADDLE_LOCAL_SIZE")?,
    })
}

/// What a rank is told beside who it is.
pub fn write_to_rank(config: &str, env: &mut EnvPatch) {
    env.set("PADDLE_AUTO_PARALLEL_CONFIG", config);
    env.set("PADDLE_AUTO_PARALLEL_STAGE", "run");
}
