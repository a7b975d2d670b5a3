//! A collective job, or one whose ranks call each other (RPC): ranks that are all alike.

use super::cluster::Cluster;
use super::devices::Share;
use super::nested::Hashes;
use super::{Elastic, HostFacts, Plan, RankPlan, command, surroundings};
use crate::dialect::paddle_launch::Alike;
use crate::dialect::{Identity, paddle_launch, paddle_rpc, paddle_tuner};
use crate::model::{Role, Who};
use crate::spec::dialects::Dialect;
use crate::spec::job::Job;
use crate::spec::options::Vars;
use crate::spec::{LaunchSpec, SpecError};

/// The plan for this node of the cluster. `shares` has one entry a rank of this node.
pub fn plan(
    spec: &LaunchSpec,
    vars: &Vars,
    facts: &HostFacts,
    shares: &[Share],
    cluster: &Cluster,
) -> Result<Plan, SpecError> {
    let endpoints = &cluster.endpoints;
    let master = cluster.master.clone().or_else(|| endpoints.first().cloned());
    let pod = paddle_launch::Pod {
        name: facts.pod_name.clone(),
        log_dir: facts.log_dir.clone(),
        auto_cluster: spec.auto_cluster,
    };
    let argv = command::argv(&spec.script, &spec.args, &facts.python, vars);
    let (mut hashes, mut alike) = (Hashes::default(), None);
    let ranks = shares.iter().enumerate().map(|(local_rank, share)| {
        let rank = cluster.first_rank + local_rank;
        let identity = Identity {
            rank,
            local_rank,
            local_size: shares.len(),
            nnodes: cluster.nodes.len(),
            endpoints: endpoints.clone(),
            master: master.clone(),
            binding: share.binding.clone(),
        };
        let mut env = surroundings::proxies_set_aside(vars);
        env.extend(&share.lists);
        let in_name = match spec.job {
            Job::Rpc => {
                env.extend(&paddle_rpc::write(&identity, &pod));
                rank
            }
            _ if !spec.dialects.contains(&Dialect::Paddle) => local_rank,
            _ => {
                let alike = alike.get_or_insert_with(|| Alike::of(&identity, &pod, &cluster.list));
                paddle_launch::write(&identity, alike, &mut env);
                local_rank
            }
        };
        let attempts = (spec.job_id.as_str(), spec.restarts.max_restart);
        cluster.servers.write(&identity, cluster.own, attempts, vars, &mut env);
        if let Some(tuning) = &spec.tuning {
            paddle_tuner::write_to_rank(&tuning.path, &mut env);
        }
        if let Some(interface) = &cluster.interface {
            surroundings::set_interface(&mut env, vars, interface);
        }
        let backup = surroundings::complete(&mut env, vars, &facts.log_dir, rank, &mut hashes)?;
        let log = format!("{}.{in_name}", Role::Trainer.log());
        let endpoint = endpoints.get(rank).cloned();
        let binding = identity.binding;
        let elastic = cluster.servers.torch.as_ref().map(|_| Elastic { error_file: None, restarts: None });
        let one = RankPlan::with_log(Who::rank(rank), argv.clone(), env, log, backup);
        Ok(RankPlan { endpoint, binding, elastic, ..one })
    });
    Ok(Plan {
        ranks: ranks.collect::<Result<_, _>>()?,
        nnodes: cluster.nodes.len(),
        world_size: endpoints.len(),
        pod,
        job_id: spec.job_id.clone(),
        mode: if spec.job == Job::Rpc { "rpc" } else { "collective" },
        servers_end: false,
    })
}
