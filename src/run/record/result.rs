//! The result record of a job for programs: `LOG_DIR/rlaunch/result.json`. Schema: `docs/result.schema.json`.

use crate::model::{Exit, Role};
use crate::plan::RankPlan;
use crate::report::cause::uncaught::ThreadError;
use crate::report::failure_report::{Culprit, FailureCause, FailureReport};
use crate::report::secrets;
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::record::job_culprit::JobCulprit;
use crate::run::record::journal::VERSION;
use crate::run::sweep::SweepResult;
use crate::supervise::{FailedRank, NodeOutcome, RankReport};
use crate::sys::clock;
use serde::Serialize;
use std::collections::BTreeMap;

/// The content of the file.
#[derive(Debug, Serialize)]
pub struct JobResult<'a> {
    version: u32,
    job_id: &'a str,
    host: &'a str,
    outcome: &'static str,
    /// The number in the job of the rank that failed first or could not be started.
    culprit: Option<usize>,
    /// The role of that rank.
    culprit_role: Option<Role>,
    job_culprit: Option<JobCulprit>,
    exit_status: i32,
    log_dir: String,
    /// `None`: unknown.
    restarts: Option<u32>,
    /// How many times users have asked this launcher for another attempt (`rlaunch restart`).
    requested_restarts: Option<u32>,
    attempts: Vec<AttemptRecord>,
    ranks: Vec<RankRecord<'a>>,
    /// The number of killed leftovers that belong to no rank in particular.
    swept: usize,
    /// Bytes of the ranks' output that the console has not shown and the logs have.
    unshown_bytes: u64,
    /// Bytes of the ranks' output that neither the console nor the logs have.
    lost_bytes: u64,
    /// Processes that still run because the user wants them to.
    left_running: Vec<LeftRunning<'a>>,
    /// The failure report without colours; `None` for a job that exited successfully.
    #[serde(rename = "verdict")]
    failure_report: Option<&'a str>,
    /// Why the culprit failed, in one line.
    reason: Option<String>,
    /// The last lines of the culprit's log.
    last_lines: Option<String>,
    /// The outcome of the whole job as text, for jobs with a rendezvous.
    job_end: Option<&'a str>,
    /// Variables that the launcher sets to the same value for all ranks; secrets are masked.
    environment: BTreeMap<&'a str, String>,
}

#[derive(Debug, Serialize)]
struct LeftRunning<'a> {
    pid: i32,
    name: &'a str,
}

fn left_running(swept: &SweepResult) -> Vec<LeftRunning<'_>> {
    swept.left.iter().map(|process| LeftRunning { pid: process.pid, name: &process.name }).collect()
}

#[derive(Debug, Serialize)]
struct AttemptRecord {
    attempt: u32,
    /// These are `None` if a user asked for another attempt.
    culprit: Option<usize>,
    culprit_role: Option<Role>,
    exit: Option<Exit>,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct RankRecord<'a> {
    role: Role,
    rank: usize,
    local_rank: usize,
    status: &'static str,
    exit: Option<Exit>,
    why: Option<&'a str>,
    pid: Option<i32>,
    attempt: u32,
    seconds: Option<f64>,
    /// When it ended, in seconds since 1970.
    ended: Option<f64>,
    /// Whether the launcher had signalled it before it ended.
    #[serde(rename = "told")]
    signalled: bool,
    killed: bool,
    peak_memory_bytes: Option<u64>,
    cpu_seconds: Option<f64>,
    major_faults: Option<u64>,
    disk_read_bytes: Option<u64>,
    disk_written_bytes: Option<u64>,
    swept: usize,
    log: String,
    thread_error: Option<ThreadErrorRecord<'a>>,
    /// Variables that the launcher sets for this rank with a value of its own.
    environment: BTreeMap<&'a str, String>,
}

/// The first exception that ended a thread of a rank.
#[derive(Debug, Serialize)]
struct ThreadErrorRecord<'a> {
    thread: &'a str,
    exception: &'a str,
    text: &'a str,
    /// In seconds since 1970.
    ended: f64,
}

fn thread_error(error: &ThreadError) -> ThreadErrorRecord<'_> {
    let ended = clock::wall().saturating_sub(clock::now().saturating_sub(error.at)).as_secs_f64();
    ThreadErrorRecord { thread: &error.name, exception: &error.fault.what, text: &error.fault.text, ended }
}

/// Builds the record of a job. `failure`: the failure report and its text; `job_end`: the outcome of the whole job as text, for
/// jobs with a rendezvous.
pub fn build_result<'a>(
    launch: &'a Launch<'_>,
    launched: &'a LaunchResult,
    host: &'a str,
    exit_status: i32,
    failure: Option<(&FailureReport, &'a str)>,
    job_end: Option<&'a str>,
) -> JobResult<'a> {
    let ranks = &launch.plan.ranks;
    let report = &launched.report;
    let common: BTreeMap<&str, &str> = ranks.first().map_or_else(BTreeMap::new, |first| {
        let alike = |name: &str, value: &str| ranks.iter().all(|r| r.env.get(name) == Some(value));
        let vars = first.env.vars().iter().map(|(n, v)| (&**n, &**v));
        vars.filter(|(name, value)| is_for_ranks(name) && alike(name, value)).collect()
    });
    let attempts = report.attempts.iter().zip(0..).map(|(one, attempt)| AttemptRecord {
        attempt,
        culprit: one.failure.map(|failed| ranks[failed.local_rank].rank),
        culprit_role: one.failure.map(|failed| ranks[failed.local_rank].role),
        exit: one.failure.map(|failed| failed.exit),
        seconds: one.ended.saturating_sub(one.began).as_secs_f64(),
    });
    let rank = |(local, plan): (usize, &'a RankPlan)| {
        let (end, process) = (&report.ranks[local], &launched.processes[local]);
        let usage = end.exit.and(process.usage);
        let own = plan.env.vars().iter().filter(|(name, _)| is_for_ranks(name) && !common.contains_key(&**name));
        RankRecord {
            role: plan.role,
            rank: plan.rank,
            local_rank: local,
            status: status(end),
            exit: end.exit,
            why: end.start_error.as_deref(),
            pid: process.pid,
            attempt: process.attempt,
            seconds: end.lived.map(|lived| lived.as_secs_f64()),
            ended: end.lived.map(|_| launched.ended(local).as_secs_f64()),
            signalled: end.signalled,
            killed: end.killed,
            peak_memory_bytes: end.exit.map(|_| process.usage.unwrap_or_default().peak_memory),
            cpu_seconds: usage.map(|usage| usage.cpu_seconds),
            major_faults: usage.map(|usage| usage.major_faults),
            disk_read_bytes: usage.map(|usage| usage.disk_read),
            disk_written_bytes: usage.map(|usage| usage.disk_written),
            swept: launched.swept[local].len(),
            log: launch.tail_file(local, process.attempt).map_or(String::new(), |log| log.display().to_string()),
            thread_error: process.notes.thread.as_ref().map(thread_error),
            environment: own.map(|(name, value)| (&**name, secrets::value(name, value))).collect(),
        }
    };
    let culprit = match report.outcome {
        NodeOutcome::Failed(FailedRank { local_rank, .. }) | NodeOutcome::NotStarted { local_rank } => {
            Some(ranks[local_rank].label())
        }
        _ => None,
    };
    let failed = failure.and_then(|(report, _)| match &report.outcome {
        FailureCause::Failed(culprit) => Some(&**culprit),
        FailureCause::Stopped { .. } => None,
    });
    JobResult {
        version: VERSION,
        job_id: &launch.plan.job_id,
        host,
        outcome: launched.outcome.word(report),
        culprit: culprit.map(|label| label.number),
        culprit_role: culprit.map(|label| label.role),
        job_culprit: JobCulprit::of_launch(launch, launched, host),
        exit_status,
        log_dir: launch.log_dir.display().to_string(),
        restarts: Some(report.restarts),
        requested_restarts: Some(launch.status.requested_restarts()),
        attempts: attempts.collect(),
        ranks: ranks.iter().enumerate().map(rank).collect(),
        swept: launched.rest.killed.len(),
        unshown_bytes: launched.unshown.logged,
        lost_bytes: launched.lost.values().sum(),
        left_running: left_running(&launched.rest),
        failure_report: failure.map(|(_, text)| text),
        reason: failed.map(Culprit::reason),
        last_lines: failed.map(|culprit| culprit.tail.lines.join("\n")),
        job_end,
        environment: common.iter().map(|(name, value)| (*name, secrets::value(name, value))).collect(),
    }
}

/// The record of a job whose supervisor process was killed.
pub fn without_supervisor<'a>(
    launch: &'a Launch<'_>,
    host: &'a str,
    exit_status: i32,
    swept: &'a SweepResult,
) -> JobResult<'a> {
    JobResult {
        restarts: None,
        requested_restarts: None,
        swept: swept.killed.len(),
        left_running: left_running(swept),
        ..without_ranks(launch, host, exit_status, &JobOutcome::SupervisorLost, None)
    }
}

/// The record of a job that ended in this way before a rank ran on this node.
pub fn without_ranks<'a>(
    launch: &'a Launch<'_>,
    host: &'a str,
    exit_status: i32,
    outcome: &JobOutcome,
    job_end: Option<&'a str>,
) -> JobResult<'a> {
    JobResult {
        version: VERSION,
        job_id: &launch.plan.job_id,
        host,
        outcome: outcome.own_word(),
        culprit: None,
        culprit_role: None,
        job_culprit: JobCulprit::of_outcome(outcome),
        exit_status,
        log_dir: launch.log_dir.display().to_string(),
        failure_report: None,
        reason: None,
        last_lines: None,
        restarts: Some(0),
        requested_restarts: Some(launch.status.requested_restarts()),
        attempts: Vec::new(),
        ranks: Vec::new(),
        swept: 0,
        unshown_bytes: 0,
        lost_bytes: 0,
        left_running: Vec::new(),
        job_end,
        environment: BTreeMap::new(),
    }
}

fn status(rank: &RankReport) -> &'static str {
    match rank {
        RankReport { abandoned: true, .. } => "abandoned",
        RankReport { start_error: Some(_), .. } => "not_started",
        RankReport { exit: Some(exit), .. } if exit.is_success() => "succeeded",
        RankReport { exit: Some(_), signalled: true, .. } => "stopped",
        RankReport { exit: Some(_), .. } => "failed",
        _ => "never_started",
    }
}

/// Whether a variable is meant for ranks, not for the launcher itself.
fn is_for_ranks(name: &str) -> bool {
    !name.starts_with("RLAUNCH_")
}
