//! Plan of a collective or RPC job, whose ranks all run the same command: rank numbers, environment (`PADDLE_TRAINER_ID`,
//! `PADDLE_TRAINER_ENDPOINTS`, `FLAGS_selected_gpus`, ...), endpoint and log file of each rank. The variables are written by
//! `framework/paddle_launch.rs`, those of torch and JAX (`--frameworks`) by `plan/env/frameworks.rs`, further ones by
//! `plan/env/base_env.rs`. Rank numbers come from `plan/cluster.rs`, devices from `plan/devices/assign.rs`.

use super::cluster::Cluster;
use crate::framework::paddle_launch::NodeEnv;
use crate::framework::{RankIdentity, paddle_launch, paddle_rpc, paddle_tuner};
use crate::model::{ProcessLabel, Role};
use crate::plan::devices::assign::DeviceShare;
use crate::plan::env::base_env;
use crate::plan::env::nested::ExportHashes;
use crate::plan::{LaunchContext, PerAttemptEnv, Plan, RankPlan, command};
use crate::spec::frameworks::Framework;
use crate::spec::options::EnvVars;
use crate::spec::paddle::job::JobKind;
use crate::spec::{LaunchSpec, SpecError};

/// The plan for this node of the cluster. `shares`: devices, one entry a rank of this node.
pub fn plan(
    spec: &LaunchSpec,
    vars: &EnvVars,
    context: &LaunchContext,
    shares: &[DeviceShare],
    cluster: &Cluster,
) -> Result<Plan, SpecError> {
    let endpoints = &cluster.endpoints;
    let master = cluster.master.clone().or_else(|| endpoints.first().cloned());
    let pod = paddle_launch::PodInfo {
        name: context.pod_name.clone(),
        log_dir: context.log_dir.clone(),
        auto_cluster: spec.auto_cluster,
    };
    let argv = command::argv(&spec.script, &spec.args, &context.python, vars);
    let (mut hashes, mut node_env) = (ExportHashes::default(), None);
    let ranks = shares.iter().enumerate().map(|(local_rank, share)| {
        let rank = cluster.first_rank + local_rank;
        let identity = RankIdentity {
            rank,
            local_rank,
            local_size: shares.len(),
            nnodes: cluster.nodes.len(),
            endpoints: endpoints.clone(),
            master: master.clone(),
            binding: share.binding.clone(),
        };
        let mut env = base_env::of_paddles_launcher(vars);
        env.extend(&share.lists);
        let log_number = match spec.job {
            JobKind::Rpc => {
                env.extend(&paddle_rpc::write(&identity, &pod));
                rank
            }
            _ if !spec.frameworks.contains(&Framework::Paddle) => local_rank,
            _ => {
                let node_env = node_env.get_or_insert_with(|| NodeEnv::of(&identity, &pod, &cluster.list));
                paddle_launch::write(&identity, node_env, &mut env);
                local_rank
            }
        };
        let attempts = (spec.job_id.as_str(), spec.restarts.max_restart);
        cluster.servers.write(&identity, cluster.own, attempts, vars, &mut env);
        if let Some(tuning) = &spec.tuning {
            paddle_tuner::write_to_rank(&tuning.path, &mut env);
        }
        if let Some(interface) = &cluster.interface {
            base_env::set_interface(&mut env, vars, interface);
        }
        let env_overflow = base_env::complete(&mut env, vars, &context.log_dir, rank, &mut hashes)?;
        let log = format!("{}.{log_number}", Role::Trainer.log_prefix());
        let endpoint = endpoints.get(rank).cloned();
        let binding = identity.binding;
        let per_attempt = cluster.servers.torch.as_ref().map(|_| PerAttemptEnv { error_file: None, restarts: None });
        let one = RankPlan::with_log(ProcessLabel::rank(rank), argv.clone(), env, log, env_overflow);
        Ok(RankPlan { endpoint, binding, per_attempt, ..one })
    });
    Ok(Plan {
        ranks: ranks.collect::<Result<_, _>>()?,
        nnodes: cluster.nodes.len(),
        world_size: endpoints.len(),
        pod,
        job_id: spec.job_id.clone(),
        mode: if spec.job == JobKind::Rpc { "rpc" } else { "collective" },
        awaits_servers: false,
    })
}
