//! The supervision policy of a job: grace period, restarts, and the end time that Slurm sets.

use crate::spec::LaunchSpec;
use crate::spec::options::EnvVars;
use crate::spec::restarts::RestartSpec;
use crate::supervise::{RestartBackoff, RestartPolicy, SupervisionPolicy};
use crate::sys::clock;
use std::time::Duration;
use tracing::warn;

/// The policy for checked options. `seed`: of the random part of restart delays.
pub fn supervision_policy(spec: &LaunchSpec, vars: &EnvVars, seed: u64) -> SupervisionPolicy {
    let restart = restart_policy(&spec.restarts, seed);
    SupervisionPolicy {
        grace: spec.grace_period,
        stop_by: stop_by(vars),
        restart,
        server_timeout: spec.server_timeout,
        straggler_timeout: spec.hang.straggler_timeout,
        ..SupervisionPolicy::default()
    }
}

/// When Slurm kills the job, on the supervisor's clock: SLURM_JOB_END_TIME plus its KillWait (slurm.conf(5)), 30 s by
/// default, less a little. A time in the past is ignored: the job was prolonged, or the variable is another job's.
pub(crate) fn stop_by(vars: &EnvVars) -> Option<Duration> {
    let end: u64 = vars.get("SLURM_JOB_END_TIME")?.trim().parse().ok()?;
    let Some(left) = Duration::from_secs(end.saturating_add(28)).checked_sub(clock::wall()) else {
        warn!(
            "SLURM_JOB_END_TIME {end} has passed, but the job still runs; the variable is ignored, and the grace period stays as set"
        );
        return None;
    };
    Some(clock::now().saturating_add(left))
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
