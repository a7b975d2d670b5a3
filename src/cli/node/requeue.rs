//! `--requeue`: asks Slurm to queue a job again that was preempted.

use crate::cli::common::message::print_notice;
use crate::run::prepare::pre_hook::{self, HookResult};
use crate::spec::options::EnvVars;
use std::time::Duration;

/// How long scontrol may take. The launcher process waits for this one until 10 s after the grace period, and ranks that stop by agreement
/// have ended before it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What follows a preempted job.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requeue {
    /// Nothing: this launcher is not to ask.
    No,
    /// Slurm is asked to queue the job of this number again.
    Ask(u64),
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
        Some(job) => Requeue::Ask(job),
    }
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
    let why = match pre_hook::run(&format!("exec scontrol requeue {job}"), &[], PATIENCE, &mut || true) {
        Ok(HookResult::Succeeded(_)) => return print_notice(&format!("Slurm queues job {job} again")),
        Ok(HookResult::Failed(why)) => why,
        Ok(HookResult::TimedOut | HookResult::Stopped) => format!("no answer within {} s", PATIENCE.as_secs()),
        Err(error) => error.to_string(),
    };
    print_notice(&format!("job {job} is not queued again: `scontrol requeue {job}` failed: {why}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_0_of_a_slurm_job_asks_until_the_limit() {
        let of = |vars: &[(&str, &str)]| vars.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let decide_as = |most, leads, vars: &[(&str, &str)]| decide(most, leads, &of(vars));
        let decide = |most, vars: &[(&str, &str)]| decide_as(most, None, vars);
        let job = ("SLURM_JOB_ID", "17");
        assert_eq!(decide(0, &[job]), Requeue::No);
        assert_eq!(decide(2, &[]), Requeue::NoJob);
        assert_eq!(decide(2, &[job]), Requeue::Ask(17));
        assert_eq!(decide(2, &[job, ("SLURM_PROCID", "1")]), Requeue::No);
        assert_eq!(decide(2, &[job, ("SLURM_RESTART_COUNT", "1"), ("SLURM_PROCID", "0")]), Requeue::Ask(17));
        assert_eq!(decide(2, &[job, ("SLURM_RESTART_COUNT", "2")]), Requeue::UsedUp(2));
        // The launcher of task 0 may have been a spare, or be lost.
        assert_eq!(decide_as(2, Some(true), &[job, ("SLURM_PROCID", "1")]), Requeue::Ask(17));
        assert_eq!(decide_as(2, Some(false), &[job, ("SLURM_PROCID", "0")]), Requeue::No);
    }
}
