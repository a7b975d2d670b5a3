//! `rlaunch stop` and `rlaunch preempt`: stop a job, at once or at a step of its ranks, wait for its end, and say how it has ended.

use super::client::{Client, read_result};
use super::error::ControlError;
use crate::cli::common::message::print_notice;
use crate::cli::common::startup::print_output;
use crate::model::ProcessLabel;
use crate::report::job_status::JobStatus;
use crate::report::wording::{lasted, named};
use crate::run::control::message::{ControlAnswer, ControlRequest};
use crate::run::control::rank_facts;
use crate::sys::clock;
use crate::sys::process::pidfd;
use std::os::fd::AsFd;
use std::time::Duration;

/// After which time it is said what is waited for.
const SLOW: Duration = Duration::from_secs(1);

/// `request`: a stop, or a notice of one.
pub(super) fn stop(mut client: Client, request: ControlRequest, wait: bool) -> Result<(), ControlError> {
    let status = client.status()?;
    if !wait {
        return client.ask(request).map(drop);
    }
    let launcher = pidfd::open(status.launcher).ok().filter(|_| is_launcher(status.launcher));
    let launcher = launcher.ok_or(ControlError::OtherNamespace(status.launcher))?;
    // It outlives a launcher that is killed, and ends the ranks.
    let supervisor = pidfd::open(status.supervisor).ok();
    let began = clock::now();
    client.ask(request)?;
    let mut patience = SLOW;
    for process in [Some(launcher), supervisor].iter().flatten() {
        while !pidfd::await_any(&[process.as_fd()], patience) {
            if patience == SLOW {
                print_notice(&describe_wait(&mut client, &status));
            }
            patience = Duration::from_secs(30);
        }
    }
    let what = living(&status).map_or("stopped".to_owned(), |ranks| format!("{ranks} stopped"));
    let exit_status = read_result(&status.log_dir)["exit_status"].as_i64();
    let exit_status =
        exit_status.ok_or_else(|| ControlError::NoResult { job: job(&status), log_dir: status.log_dir.clone() })?;
    let after = lasted(clock::now() - began);
    print_output(&format!("{}: {what} after {after}, exit status {exit_status}\n", job(&status)));
    Ok(())
}

fn job(status: &JobStatus) -> String {
    format!("job {} (pid {})", status.job_id, status.launcher)
}

/// The ranks that run, if any do.
fn living(status: &JobStatus) -> Option<String> {
    let alive = status.ranks.iter().filter(|rank| rank.is_alive());
    let labels: Vec<_> = alive.map(|rank| ProcessLabel { role: rank.role, number: rank.rank }).collect();
    (!labels.is_empty()).then(|| named(&labels))
}

fn describe_wait(client: &mut Client, status: &JobStatus) -> String {
    let now = match client.ask_within(ControlRequest::Status, SLOW) {
        Ok(ControlAnswer::Status(now)) => living(&now),
        _ => None,
    };
    match now {
        Some(ranks) => format!("waiting for {ranks} of {} to stop", job(status)),
        None => format!("waiting for the end of {}", job(status)),
    }
}

/// Whether a process of this number runs here: the launcher may be in another PID namespace.
fn is_launcher(pid: i32) -> bool {
    rank_facts::start_ticks(pid).is_some()
}
