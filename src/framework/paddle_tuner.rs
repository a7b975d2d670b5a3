//! Variables that `python -m paddle.distributed.launch` sets for the tuner of `--auto_parallel_config`, and for the
//! ranks that run after it.

use super::read_env::number;
use crate::model::{Endpoint, EnvDelta};

/// What the tuner needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunerEnv {
    /// The configuration file, as the user gave it.
    pub config: String,
    /// Endpoint on which the tuner may listen.
    pub endpoint: Endpoint,
    /// Number of ranks of the job that it tunes.
    pub world_size: usize,
    /// Number of these ranks on this node.
    pub local_size: usize,
}

/// Writes the variables of the tuner, in Paddle's order. The tuner is a job of one rank, on the first GPU if there is one.
pub fn write(tuner: &TunerEnv, env: &mut EnvDelta) {
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

/// Reads the variables back.
pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Option<TunerEnv> {
    get("PADDLE_AUTO_PARALLEL_STAGE").filter(|stage| stage == "tuner")?;
    Some(TunerEnv {
        config: get("PADDLE_AUTO_PARALLEL_CONFIG")?,
        endpoint: Endpoint::parse(&get("PADDLE_CURRENT_ENDPOINT")?)?,
        world_size: number(get, "PADDLE_GLOBAL_SIZE")?,
        local_size: number(get, "PADDLE_LOCAL_SIZE")?,
    })
}

/// Writes the variables of a rank that runs after the tuner, beside those of its identity.
pub fn write_to_rank(config: &str, env: &mut EnvDelta) {
    env.set("PADDLE_AUTO_PARALLEL_CONFIG", config);
    env.set("PADDLE_AUTO_PARALLEL_STAGE", "run");
}
