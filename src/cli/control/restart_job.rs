//! `rlaunch restart`: another attempt of all ranks, and the wait until they run.

use super::client::{Client, read_result};
use super::error::ControlError;
use crate::cli::common::message::print_notice;
use crate::cli::common::startup::print_output;
use crate::model::Role;
use crate::report::job_status::{JobStatus, LaunchPhase, RankStatus};
use crate::run::control::message::{ControlAnswer, ControlRequest};
use crate::sys::clock;
use std::path::Path;
use std::time::Duration;

/// After which time it is said what is waited for.
const SLOW: Duration = Duration::from_secs(1);
/// How long the end of a job is waited for whose ranks have ended.
const LONGEST_END: Duration = Duration::from_secs(60);
/// How often the job is asked whether its ranks run again.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn restart(mut client: Client, grace_period: Option<f64>, wait: bool) -> Result<(), ControlError> {
    let mut status = client.status()?;
    let ControlAnswer::Restarting { attempt } = client.ask(ControlRequest::Restart { grace_period })? else {
        return Err(ControlError::NotUnderstood);
    };
    if !wait {
        return Ok(());
    }
    let (began, mut said) = (clock::now(), false);
    while !runs_again(&status, attempt) {
        if !said && clock::now() - began >= SLOW {
            said = true;
            print_notice(&format!("waiting until job {} (pid {}) runs again", status.job_id, status.launcher));
        }
        client.await_end(&status, INTERVAL);
        status = match client.status() {
            Ok(now) if runs_again(&now, attempt) => now,
            Ok(now) if !matches!(now.phase, LaunchPhase::Stopping | LaunchPhase::Ended) => now,
            Ok(_) | Err(ControlError::Gone) => {
                client.await_end(&status, LONGEST_END);
                return if has_run(&status.log_dir, attempt) {
                    print_output(&format!("job {}: attempt {} has run\n", status.job_id, attempt + 1));
                    Ok(())
                } else {
                    Err(ControlError::EndedInstead(status.log_dir))
                };
            }
            Err(error) => return Err(error),
        };
    }
    let round = status.round.map(|round| format!("round {round}, ")).unwrap_or_default();
    print_output(&format!("job {}: {round}attempt {} runs\n", status.job_id, status.attempt));
    Ok(())
}

/// Whether a job that has ended has had an attempt after this one.
fn has_run(log_dir: &Path, attempt: u32) -> bool {
    let result = read_result(log_dir);
    result["outcome"] != "not_started" && result["restarts"].as_u64() > Some(attempt.into())
}

/// Whether all ranks of an attempt after this one have been started.
fn runs_again(status: &JobStatus, attempt: u32) -> bool {
    // A tuner that has ended is not run again.
    let has_started = |rank: &RankStatus| rank.pid.is_some() && rank.attempt == status.attempt;
    status.attempt > attempt && status.ranks.iter().all(|rank| has_started(rank) || rank.role == Role::Tuner)
}
