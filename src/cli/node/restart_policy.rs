//! The supervision policy of a job: grace period and restarts.

use crate::cli::node::slurm;
use crate::spec::LaunchSpec;
use crate::spec::options::EnvVars;
use crate::spec::restarts::RestartSpec;
use crate::supervise::{RestartBackoff, RestartPolicy, SupervisionPolicy};

/// The policy for checked options. `seed`: of the random part of restart delays.
pub fn supervision_policy(spec: &LaunchSpec, vars: &EnvVars, seed: u64) -> SupervisionPolicy {
    let restart = restart_policy(&spec.restarts, seed);
    SupervisionPolicy {
        grace: slurm::grace_period(spec.grace_period, vars),
        stop_by: slurm::stop_by(vars),
        same_sigterm: slurm::same_sigterm(vars),
        restart,
        server_timeout: spec.server_timeout,
        straggler_timeout: spec.hang.straggler_timeout,
        ..SupervisionPolicy::default()
    }
}

fn restart_policy(restarts: &RestartSpec, seed: u64) -> RestartPolicy {
    let RestartSpec {
        max_restart,
        is_given: _,
        restart_on,
        never_restart_on,
        delay,
        delay_max,
        window,
        same_failure_limit,
    } = restarts.clone();
    let backoff = RestartBackoff { base: delay, max: delay_max, seed };
    RestartPolicy { max_restart, restart_on, never_restart_on, backoff, window, same_failure_limit }
}
