//! The tuner of automatic parallelism: one process before the job, of the same script.

use super::cluster::Cluster;
use super::nested::Hashes;
use super::{HostFacts, RankPlan, command, surroundings};
use crate::dialect::{paddle_launch, paddle_tuner};
use crate::model::{Endpoint, EnvPatch, Role, Who};
use crate::spec::options::Vars;
use crate::spec::tuner::Tuning;
use crate::spec::{LaunchSpec, SpecError};

/// Its plan. `port`: where it may listen.
pub fn plan(
    tuning: &Tuning,
    spec: &LaunchSpec,
    vars: &Vars,
    facts: &HostFacts,
    cluster: &Cluster,
    port: u16,
) -> Result<RankPlan, SpecError> {
    let endpoint = Endpoint::new("127.0.0.1", port);
    let told = paddle_tuner::Tuner {
        config: tuning.path.clone(),
        endpoint: endpoint.clone(),
        world_size: cluster.endpoints.len(),
        local_size: cluster.own_ports().len(),
    };
    let mut env: EnvPatch = surroundings::proxies_set_aside(vars);
    paddle_tuner::write(&told, &mut env);
    paddle_launch::write_pod(&facts.log_dir, &facts.pod_name, &mut env);
    let backup = surroundings::complete(&mut env, vars, &facts.log_dir, Role::Tuner, &mut Hashes::default())?;
    let argv = command::argv(&spec.script, &spec.args, &facts.python, vars);
    let (who, log) = (Who { role: Role::Tuner, number: 0 }, Role::Tuner.log().to_owned());
    Ok(RankPlan { endpoint: Some(endpoint), ..RankPlan::with_log(who, argv, env, log, backup) })
}
