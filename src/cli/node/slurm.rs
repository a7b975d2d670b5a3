//! How Slurm ends a job: SIGTERM to all processes of its steps, SIGCONT and SIGTERM again, and SIGKILL after KillWait (slurm.conf(5)). A
//! launcher cannot read KillWait, which is 30 s by default.

use crate::spec::options::EnvVars;
use crate::sys::clock;
use std::time::Duration;
use tracing::warn;

/// KillWait's default, less a little.
const UNTIL_KILL: Duration = Duration::from_secs(28);
/// The default of KillWait, and of the grace period.
const KILL_WAIT: Duration = Duration::from_secs(30);
/// Slurm 22.05 repeated SIGTERM after 8 to 330 ms; a user who stops a job twice waits longer.
const REPEATED_WITHIN: Duration = Duration::from_secs(5);

fn is_in_job(vars: &EnvVars) -> bool {
    vars.contains_key("SLURM_JOB_ID")
}

/// When Slurm kills the job at its time limit, on the supervisor's clock: SLURM_JOB_END_TIME plus KillWait. A time in the past is
/// ignored: the job was prolonged, or the variable is another job's.
pub fn stop_by(vars: &EnvVars) -> Option<Duration> {
    let end: u64 = vars.get("SLURM_JOB_END_TIME")?.trim().parse().ok()?;
    let Some(left) = Duration::from_secs(end).saturating_add(UNTIL_KILL).checked_sub(clock::wall()) else {
        warn!(
            "SLURM_JOB_END_TIME {end} has passed, but the job still runs; the variable is ignored, and the grace period stays as set"
        );
        return None;
    };
    Some(clock::now().saturating_add(left))
}

/// When Slurm ends the job by its time limit, since the epoch, if that time is to come.
pub fn time_limit() -> Option<Duration> {
    let end: u64 = std::env::var("SLURM_JOB_END_TIME").ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(end)).filter(|end| *end > clock::wall())
}

/// The grace period: what scancel and a preemption leave, unless the user wants more than the default.
pub fn grace_period(wanted: Duration, vars: &EnvVars) -> Duration {
    if is_in_job(vars) && wanted == KILL_WAIT { UNTIL_KILL } else { wanted }
}

/// How long after the first SIGTERM further ones are the same request.
pub fn same_sigterm(vars: &EnvVars) -> Duration {
    if is_in_job(vars) { REPEATED_WITHIN } else { Duration::ZERO }
}
