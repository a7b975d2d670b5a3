//! How a job is stopped and started again: what was asked for, and what the scheduler allows.

use crate::spec::LaunchSpec;
use crate::spec::options::Vars;
use crate::spec::restarts::Restarts;
use crate::supervise::{Backoff, Policy, RestartPolicy};
use crate::sys::clock;
use std::time::Duration;
use tracing::warn;

/// Of a checked request. `seed`: of the random part of the waits before restarts.
pub fn policy(spec: &LaunchSpec, vars: &Vars, seed: u64) -> Policy {
    let restart = restart_policy(&spec.restarts, seed);
    Policy { grace: spec.grace, stop_by: stop_by(vars), restart, ..Policy::default() }
}

/// When Slurm will kill all of the job, on the clock of supervision: its KillWait, 30 s unless configured
/// otherwise, after the end time that it tells (slurm.conf(5)), less a little. A time after which nothing
/// could run any more is no end of this job: it was prolonged, or the variable is another job's.
pub(super) fn stop_by(vars: &Vars) -> Option<Duration> {
    let end: u64 = vars.get("SLURM_JOB_END_TIME")?.trim().parse().ok()?;
    let Some(left) = Duration::from_secs(end.saturating_add(28)).checked_sub(clock::wall()) else {
        warn!(
            "SLURM_JOB_END_TIME {end} has passed, and the job still runs; no end is known, and the grace is as it is set"
        );
        return None;
    };
    Some(clock::now().saturating_add(left))
}

fn restart_policy(restarts: &Restarts, seed: u64) -> RestartPolicy {
    let Restarts {
        max_restart,
        is_given: _,
        restart_on,
        never_restart_on,
        delay,
        delay_max,
        window,
        same_failure_limit,
    } = restarts.clone();
    let backoff = Backoff { base: delay, max: delay_max, seed };
    RestartPolicy { max_restart, restart_on, never_restart_on, backoff, window, same_failure_limit }
}
