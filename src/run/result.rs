//! The end of a job, for programs: `LOG_DIR/rlaunch/result.json`. Schema: `docs/result.schema.json`.

use super::journal::{Ending, VERSION};
use super::launch::{Launch, Launched};
use super::sweep::Leftover;
use super::together::Parting;
use crate::log::secret;
use crate::model::Role;
use crate::plan::RankPlan;
use crate::supervise::{Outcome, RankReport};
use serde::Serialize;
use std::collections::BTreeMap;

/// The whole file.
#[derive(Debug, Serialize)]
pub struct JobResult<'a> {
    version: u32,
    job_id: &'a str,
    host: &'a str,
    outcome: &'static str,
    /// The global number of the rank that failed first, or could not be started.
    culprit: Option<usize>,
    /// What that one is for.
    culprit_role: Option<Role>,
    exit_status: i32,
    log_dir: String,
    /// `None`: not known.
    restarts: Option<u32>,
    attempts: Vec<Attempt>,
    ranks: Vec<Rank<'a>>,
    /// Processes of no rank in particular that were ended.
    swept: usize,
    /// The verdict block, without colours; none for a job that ended well.
    verdict: Option<&'a str>,
    /// How the whole job ended, where nodes found each other.
    job_end: Option<&'a str>,
    /// What the launcher sets for all ranks alike; secrets are masked.
    environment: BTreeMap<&'a str, String>,
}

#[derive(Debug, Serialize)]
struct Attempt {
    attempt: u32,
    culprit: usize,
    culprit_role: Role,
    exit: Ending,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Rank<'a> {
    role: Role,
    rank: usize,
    local_rank: usize,
    status: &'static str,
    exit: Option<Ending>,
    why: Option<&'a str>,
    pid: Option<i32>,
    attempt: u32,
    seconds: Option<f64>,
    /// The launcher had signalled it before it ended.
    told: bool,
    killed: bool,
    peak_memory_bytes: Option<u64>,
    swept: usize,
    log: String,
    /// What the launcher sets for this rank and not alike for all.
    environment: BTreeMap<&'a str, String>,
}

/// The one word for how a job ended.
pub fn outcome(launched: &Launched) -> &'static str {
    if let Some((word, _)) = &launched.job_end {
        return word;
    }
    match (&launched.parting, &launched.report.outcome) {
        (Parting::StoreGone, Outcome::Stopped { .. }) => "store_lost",
        (Parting::Stopped(_), _) => "stopped",
        (Parting::FrontLost, _) => "front_lost",
        (_, outcome) => of(outcome),
    }
}

fn of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Failed { .. } => "failed",
        Outcome::NotStarted { .. } => "not_started",
        Outcome::Stopped { .. } => "stopped",
        Outcome::Regrouped => "regrouped",
        Outcome::HostLost => "front_lost",
    }
}

/// Sums up a job that has ended with this exit status; `verdict` is the text that people read.
pub fn sum_up<'a>(
    launch: &'a Launch<'_>,
    launched: &'a Launched,
    host: &'a str,
    exit_status: i32,
    verdict: Option<&'a str>,
) -> JobResult<'a> {
    let ranks = &launch.plan.ranks;
    let report = &launched.report;
    let common: BTreeMap<&str, &str> = ranks.first().map_or_else(BTreeMap::new, |first| {
        let alike = |name: &str, value: &str| ranks.iter().all(|r| r.env.get(name) == Some(value));
        let vars = first.env.vars().iter().map(|(n, v)| (&**n, &**v));
        vars.filter(|(name, value)| is_told(name) && alike(name, value)).collect()
    });
    let attempts = report.attempts.iter().zip(0..).map(|(one, attempt)| Attempt {
        attempt,
        culprit: ranks[one.culprit].rank,
        culprit_role: ranks[one.culprit].role,
        exit: one.exit.into(),
        seconds: one.ended.saturating_sub(one.began).as_secs_f64(),
    });
    let rank = |(local, plan): (usize, &'a RankPlan)| {
        let (end, process) = (&report.ranks[local], &launched.processes[local]);
        let own = plan.env.vars().iter().filter(|(name, _)| is_told(name) && !common.contains_key(&**name));
        Rank {
            role: plan.role,
            rank: plan.rank,
            local_rank: local,
            status: status(end),
            exit: end.exit.map(Ending::from),
            why: end.not_started.as_deref(),
            pid: process.pid,
            attempt: process.attempt,
            seconds: end.lived.map(|lived| lived.as_secs_f64()),
            told: end.told,
            killed: end.killed,
            peak_memory_bytes: end.exit.map(|_| process.peak_memory),
            swept: launched.swept[local].len(),
            log: launch.last_words(local, process.attempt).map_or(String::new(), |log| log.display().to_string()),
            environment: own.map(|(name, value)| (&**name, secret::value(name, value))).collect(),
        }
    };
    let culprit = match report.outcome {
        Outcome::Failed { culprit, .. } | Outcome::NotStarted { local_rank: culprit } => Some(ranks[culprit].who()),
        _ => None,
    };
    let rest: &[Leftover] = &launched.rest.killed;
    JobResult {
        version: VERSION,
        job_id: &launch.plan.job_id,
        host,
        outcome: outcome(launched),
        culprit: culprit.map(|who| who.number),
        culprit_role: culprit.map(|who| who.role),
        exit_status,
        log_dir: launch.log_dir.display().to_string(),
        restarts: Some(report.restarts),
        attempts: attempts.collect(),
        ranks: ranks.iter().enumerate().map(rank).collect(),
        swept: rest.len(),
        verdict,
        job_end: launched.job_end.as_ref().map(|(_, text)| text.as_str()),
        environment: common.iter().map(|(name, value)| (*name, secret::value(name, value))).collect(),
    }
}

/// What the front knows of a job whose supervisor was killed. `swept`: how many processes it had to end.
pub fn without_supervisor<'a>(launch: &'a Launch<'_>, host: &'a str, exit_status: i32, swept: usize) -> JobResult<'a> {
    JobResult { restarts: None, swept, ..without_ranks(launch, host, exit_status, ("supervisor_lost", None)) }
}

/// What is known of a job that has ended so before it ran anything here.
pub fn without_ranks<'a>(
    launch: &'a Launch<'_>,
    host: &'a str,
    exit_status: i32,
    (outcome, job_end): (&'static str, Option<&'a str>),
) -> JobResult<'a> {
    JobResult {
        version: VERSION,
        job_id: &launch.plan.job_id,
        host,
        outcome,
        culprit: None,
        culprit_role: None,
        exit_status,
        log_dir: launch.log_dir.display().to_string(),
        verdict: None,
        restarts: Some(0),
        attempts: Vec::new(),
        ranks: Vec::new(),
        swept: 0,
        job_end,
        environment: BTreeMap::new(),
    }
}

fn status(rank: &RankReport) -> &'static str {
    match rank {
        RankReport { abandoned: true, .. } => "abandoned",
        RankReport { not_started: Some(_), .. } => "not_started",
        RankReport { exit: Some(exit), .. } if exit.is_success() => "succeeded",
        RankReport { exit: Some(_), told: true, .. } => "stopped",
        RankReport { exit: Some(_), .. } => "failed",
        _ => "never_started",
    }
}

/// Not what the launcher tells itself.
fn is_told(name: &str) -> bool {
    !name.starts_with("RLAUNCH_")
}
