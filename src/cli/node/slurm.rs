//! How Slurm ends a job: SIGTERM to all processes of its steps, SIGCONT and SIGTERM again, and SIGKILL after KillWait
//! (slurm.conf(5)). Launchers do not ask Slurm for KillWait: each would send a request to slurmctld, which squeue(1) warns of,
//! and a launcher would wait for the answer. The batch script asks once for all of them, and sets a variable.

use crate::spec::options::EnvVars;
use crate::sys::clock;
use std::time::Duration;
use tracing::warn;

/// KillWait in seconds, as the batch script has read it.
pub const KILL_WAIT_VAR: &str = "RLAUNCH_SLURM_KILL_WAIT";
/// The default of KillWait, and of the grace period.
const KILL_WAIT: Duration = Duration::from_secs(30);
/// How much earlier than Slurm a launcher kills its ranks, to report that: at most a quarter of KillWait.
const MARGIN: Duration = Duration::from_secs(2);
/// Slurm 22.05 repeated SIGTERM after 8 to 330 ms; a user who stops a job twice waits longer.
const REPEATED_WITHIN: Duration = Duration::from_secs(5);

fn is_in_job(vars: &EnvVars) -> bool {
    vars.contains_key("SLURM_JOB_ID")
}

/// KillWait, less a little.
fn until_kill(vars: &EnvVars) -> Duration {
    let wait = match vars.get(KILL_WAIT_VAR).map(|text| text.trim()) {
        None | Some("") => KILL_WAIT,
        Some(text) => text.parse().map_or_else(
            |_| {
                let default = KILL_WAIT.as_secs();
                warn!(
                    "{KILL_WAIT_VAR} {text:?} is not a whole number of seconds; {default}, Slurm's default, is assumed"
                );
                KILL_WAIT
            },
            Duration::from_secs,
        ),
    };
    wait.saturating_sub(MARGIN.min(wait / 4))
}

/// When Slurm kills the job at its time limit, on the supervisor's clock: SLURM_JOB_END_TIME plus KillWait. A time in the past is
/// ignored: the job was prolonged, or the variable is another job's.
pub fn stop_by(vars: &EnvVars) -> Option<Duration> {
    let end: u64 = vars.get("SLURM_JOB_END_TIME")?.trim().parse().ok()?;
    let Some(left) = Duration::from_secs(end).saturating_add(until_kill(vars)).checked_sub(clock::wall()) else {
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

/// The grace period: the default is no longer than what scancel and a preemption leave.
pub fn grace_period(wanted: Duration, vars: &EnvVars) -> Duration {
    if is_in_job(vars) && wanted == KILL_WAIT { wanted.min(until_kill(vars)) } else { wanted }
}

/// How long after the first SIGTERM further ones are the same request.
pub fn same_sigterm(vars: &EnvVars) -> Duration {
    if is_in_job(vars) { REPEATED_WITHIN } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_period_is_what_kill_wait_leaves() {
        let grace = |wanted, vars: &[(&str, &str)]| {
            let vars = vars.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            grace_period(Duration::from_secs(wanted), &vars).as_millis()
        };
        let job = ("SLURM_JOB_ID", "17");
        let wait = |seconds| (KILL_WAIT_VAR, seconds);
        assert_eq!(grace(30, &[]), 30_000);
        assert_eq!(grace(30, &[wait("60")]), 30_000, "this is no job of Slurm");
        assert_eq!(grace(30, &[job]), 28_000);
        assert_eq!(grace(30, &[job, wait("60")]), 30_000, "a rank that fails need not wait longer either");
        assert_eq!(grace(30, &[job, wait(" 10 ")]), 8_000);
        assert_eq!(grace(30, &[job, wait("4")]), 3_000);
        assert_eq!(grace(120, &[job, wait("60")]), 120_000, "the user has set it");
        assert_eq!(grace(30, &[job, wait("")]), 28_000, "the batch script could not read it");
        assert_eq!(grace(30, &[job, wait("30 sec")]), 28_000);
    }

    #[test]
    fn at_the_time_limit_the_grace_period_ends_before_slurm_kills() {
        let now = clock::wall();
        let end = (now + Duration::from_secs(100)).as_secs().to_string();
        let left = |wait: Option<&str>| {
            let job = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_END_TIME", end.as_str())];
            let vars = job.into_iter().chain(wait.map(|wait| (KILL_WAIT_VAR, wait)));
            let vars = vars.map(|(name, value)| (name.into(), value.into())).collect();
            stop_by(&vars).map(|at| at.saturating_sub(clock::now()).as_secs())
        };
        for (wait, until_kill) in [(None, 28), (Some("60"), 58), (Some("10"), 8)] {
            let left = left(wait);
            assert!(left.is_some_and(|left| (95 + until_kill..=100 + until_kill).contains(&left)), "{left:?}");
        }
    }
}
