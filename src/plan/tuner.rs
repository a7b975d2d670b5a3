//! Tuner of automatic parallelism: one process, of the same script, that runs before the job.

use super::cluster::Cluster;
use crate::framework::{paddle_launch, paddle_tuner};
use crate::model::{Endpoint, EnvDelta, ProcessLabel, Role};
use crate::plan::env::base_env;
use crate::plan::env::nested::ExportHashes;
use crate::plan::{LaunchContext, RankPlan, command};
use crate::spec::options::EnvVars;
use crate::spec::paddle::tuner::Tuning;
use crate::spec::{LaunchSpec, SpecError};

/// The plan of the tuner. `port`: the port on which it may listen.
pub fn plan(
    tuning: &Tuning,
    spec: &LaunchSpec,
    vars: &EnvVars,
    context: &LaunchContext,
    cluster: &Cluster,
    port: u16,
) -> Result<RankPlan, SpecError> {
    let endpoint = Endpoint::new("127.0.0.1", port);
    let tuner_env = paddle_tuner::TunerEnv {
        config: tuning.path.clone(),
        endpoint: endpoint.clone(),
        world_size: cluster.endpoints.len(),
        local_size: cluster.own_ports().len(),
    };
    let mut env: EnvDelta = base_env::of_paddles_launcher(vars);
    paddle_tuner::write(&tuner_env, &mut env);
    paddle_launch::write_pod(&context.log_dir, &context.pod_name, &mut env);
    let env_overflow = base_env::complete(&mut env, vars, &context.log_dir, Role::Tuner, &mut ExportHashes::default())?;
    let argv = command::argv(&spec.script, &spec.args, &context.python, vars);
    let (label, log) = (ProcessLabel { role: Role::Tuner, number: 0 }, Role::Tuner.log_prefix().to_owned());
    Ok(RankPlan { endpoint: Some(endpoint), ..RankPlan::with_log(label, argv, env, log, env_overflow) })
}
