//! `--requeue`: asks Slurm to queue a job again that was preempted.

use crate::cli::common::message::print_notice;
use crate::run::prepare::pre_hook::{self, HookResult};
use crate::spec::options::EnvVars;
use std::time::Duration;

/// How long scontrol may take to show the job, and to requeue it. The launcher process waits for this one until 10 s after the grace
/// period, and ranks that stop by agreement have ended before it.
const SHOW: Duration = Duration::from_secs(3);
/// See `SHOW`.
const REQUEUE: Duration = Duration::from_secs(7);

/// What follows a preempted job.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requeue {
    /// Nothing: this launcher is not to ask.
    No,
    /// Slurm is asked to queue this job again: `17`, or `17_3` for one task of an array.
    Ask(String),
    /// The job was queued again as often as it may.
    UsedUp(u32),
    /// This is no job of Slurm.
    NoJob,
}

/// Decides by `--requeue` and Slurm's variables. One launcher asks for all: `leads`, whether it is this one; `None`: this launcher knows of
/// no other, so the one of task 0 asks.
fn decide(most: u32, leads: Option<bool>, vars: &EnvVars) -> Requeue {
    let number = |name: &str| vars.get(name).and_then(|text| text.trim().parse::<u64>().ok());
    let made = number("SLURM_RESTART_COUNT").unwrap_or(0);
    match number("SLURM_JOB_ID") {
        _ if most == 0 => Requeue::No,
        None => Requeue::NoJob,
        Some(_) if !leads.unwrap_or_else(|| number("SLURM_PROCID").unwrap_or(0) == 0) => Requeue::No,
        Some(_) if made >= u64::from(most) => Requeue::UsedUp(most),
        // The last task of an array has the array's number as its job's, by which Slurm would queue all tasks again.
        Some(job) => Requeue::Ask(match (number("SLURM_ARRAY_JOB_ID"), number("SLURM_ARRAY_TASK_ID")) {
            (Some(array), Some(task)) => format!("{array}_{task}"),
            _ => job.to_string(),
        }),
    }
}

/// Whether a job is being cancelled, by the output of `scontrol --oneliner show job`. Slurm 22.05 calls each job that it ends
/// COMPLETING; the times distinguish the time limit and a preemption.
fn is_cancelled(text: &str) -> bool {
    let field = |name: &str| text.split_whitespace().find_map(|word| word.strip_prefix(name));
    let is_at_limit = match (field("RunTime=").and_then(read_seconds), field("TimeLimit=").and_then(read_seconds)) {
        (Some(run), Some(limit)) => run >= limit,
        _ => false,
    };
    let is_preempted = field("PreemptTime=").is_some_and(|at| at != "None");
    match field("JobState=") {
        Some("CANCELLED") => true,
        Some("COMPLETING") => !is_at_limit && !is_preempted,
        _ => false,
    }
}

/// Reads a time such as `1-00:30:00`.
fn read_seconds(text: &str) -> Option<u64> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut sum = 0_u64;
    for part in clock.split(':') {
        sum = sum.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    days.parse::<u64>().ok()?.checked_mul(24 * 3600)?.checked_add(sum)
}

/// Asks Slurm, if this launcher is to. Slurm ends the job then, so this comes last. `most`: how many times it may; `leads`: whether this
/// node has the job's rank 0, in a job whose nodes meet.
pub fn after_preemption(most: u32, leads: Option<bool>) {
    let vars: EnvVars = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let job = match decide(most, leads, &vars) {
        Requeue::Ask(job) => job,
        Requeue::No => return,
        Requeue::UsedUp(most) => {
            return print_notice(&format!("the job is not queued again: it was {most} time(s), as --requeue allows"));
        }
        Requeue::NoJob => return print_notice("--requeue has no effect: this is no job of Slurm (SLURM_JOB_ID)"),
    };
    // Slurm would queue it again though its user has ended it.
    match scontrol(&format!("--oneliner show job {job}"), SHOW) {
        Ok(text) if is_cancelled(&text) => {
            return print_notice(&format!("job {job} is not queued again: it is being cancelled"));
        }
        Ok(_) => {}
        Err(why) => print_notice(&format!("whether job {job} is cancelled is unknown: {why}")),
    }
    match scontrol(&format!("requeue {job}"), REQUEUE) {
        Ok(_) => print_notice(&format!("Slurm queues job {job} again")),
        Err(why) => print_notice(&format!("job {job} is not queued again: {why}")),
    }
}

/// Runs scontrol, for this time at most. Returns its output, or why it failed.
fn scontrol(arguments: &str, limit: Duration) -> Result<String, String> {
    let why = match pre_hook::run(&format!("exec scontrol {arguments}"), &[], limit, &mut || true) {
        Ok(HookResult::Succeeded(text)) => return Ok(text),
        Ok(HookResult::Failed(why)) => why,
        Ok(HookResult::TimedOut | HookResult::Stopped) => format!("no answer within {} s", limit.as_secs()),
        Err(error) => error.to_string(),
    };
    Err(format!("`scontrol {arguments}` failed: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_its_user_has_cancelled_is_known() {
        let of = |state: &str, run: &str, limit: &str| {
            format!(
                "JobId=17 JobName=job.sh UserId=root(0) JobState={state} Requeue=1 RunTime={run} TimeLimit={limit} EndTime=x"
            )
        };
        for (state, run, limit, expected) in [
            ("RUNNING", "00:00:10", "00:01:00", false),
            ("COMPLETING", "00:00:10", "00:01:00", true),
            ("COMPLETING", "00:01:02", "00:01:00", false),
            ("COMPLETING", "1-00:00:00", "1-00:30:00", true),
            ("COMPLETING", "1-00:30:10", "1-00:30:00", false),
            ("COMPLETING", "00:00:10", "UNLIMITED", true),
            ("COMPLETING", "00:00:10", "Partition_Limit", true),
            ("CANCELLED", "00:02:00", "00:01:00", true),
            ("TIMEOUT", "00:01:00", "00:01:00", false),
        ] {
            assert_eq!(is_cancelled(&of(state, run, limit)), expected, "{state} {run} {limit}");
        }
        let by_user = of("COMPLETING", "00:00:10", "00:01:00");
        assert!(is_cancelled(&format!("{by_user} PreemptEligibleTime=2026-11-27T20:13:48 PreemptTime=None")));
        assert!(!is_cancelled(&format!("{by_user} PreemptTime=2026-11-27T20:13:58")));
        for odd in ["", "JobState=", "JobState=COMPLETINGX", "slurm_load_jobs error"] {
            assert!(!is_cancelled(odd), "{odd}");
        }
        for odd in ["9999999999999999999-00:00:00", "9999999999999999999:00", "", "x"] {
            assert_eq!(read_seconds(odd), None, "{odd}");
        }
    }

    #[test]
    fn task_0_of_a_slurm_job_asks_until_the_limit() {
        let of = |vars: &[(&str, &str)]| vars.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let decide_as = |most, leads, vars: &[(&str, &str)]| decide(most, leads, &of(vars));
        let decide = |most, vars: &[(&str, &str)]| decide_as(most, None, vars);
        let job = ("SLURM_JOB_ID", "17");
        assert_eq!(decide(0, &[job]), Requeue::No);
        assert_eq!(decide(2, &[]), Requeue::NoJob);
        assert_eq!(decide(2, &[job]), Requeue::Ask("17".into()));
        assert_eq!(decide(2, &[job, ("SLURM_PROCID", "1")]), Requeue::No);
        assert_eq!(decide(2, &[job, ("SLURM_RESTART_COUNT", "1"), ("SLURM_PROCID", "0")]), Requeue::Ask("17".into()));
        assert_eq!(decide(2, &[job, ("SLURM_RESTART_COUNT", "2")]), Requeue::UsedUp(2));
        let array = [job, ("SLURM_ARRAY_JOB_ID", "17"), ("SLURM_ARRAY_TASK_ID", "3")];
        assert_eq!(decide(2, &array), Requeue::Ask("17_3".into()));
        // The launcher of task 0 may have been a spare, or be lost.
        assert_eq!(decide_as(2, Some(true), &[job, ("SLURM_PROCID", "1")]), Requeue::Ask("17".into()));
        assert_eq!(decide_as(2, Some(false), &[job, ("SLURM_PROCID", "0")]), Requeue::No);
    }
}
