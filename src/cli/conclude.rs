//! The last words of `python -m rlaunch`: the milestones that scripts match on, then the verdict.

use super::message;
use super::refusal::{complain, tell};
use crate::log::verdict::{Culprit, Outcome as Verdictum, Style, Swept, Verdict, Victim, render, sweep};
use crate::log::{blame, github_annotation, lost_peer, tail};
use crate::model::{Exit, Role};
use crate::probe::memory::Memory;
use crate::run::console::Shown;
use crate::run::launch::{Launch, Launched};
use crate::run::logs;
use crate::run::start::TAIL_BYTES;
use crate::run::sweep::Leftover;
use crate::run::together::Parting;
use crate::supervise::{Outcome, RankReport};
use crate::sys::tree;
use std::path::Path;
use tracing::{error, info, warn};

/// What the end is explained with, beside the report.
pub struct Circumstances {
    /// This node's name.
    pub host: String,
    /// The memory counters before the ranks were started.
    pub memory: Memory,
    /// Whether stderr takes colours.
    pub colour: bool,
    /// Whether GitHub's runner reads what is printed.
    pub github: bool,
    /// Whether people asked for silence (`--log_level CRITICAL`).
    pub quiet: bool,
    /// Whether the older launcher's words are used.
    pub older: bool,
}

/// Who is stopped once all workers have ended well, in words that scripts of Paddle's users look for.
const STOPPED_LAST: [(Role, &str); 3] =
    [(Role::HeterWorker, "heter_worker"), (Role::Server, "parameter server"), (Role::Coordinator, "coordinators")];

/// Says how it ended.
pub fn conclude(
    launch: &Launch<'_>,
    launched: &Launched,
    status: i32,
    circumstances: &Circumstances,
    verdict: Option<&Verdict>,
) {
    troubles(launch, launched);
    match &launched.report.outcome {
        Outcome::Completed => {
            tell_swept(launch, launched);
            for (role, what) in STOPPED_LAST {
                let ranks = launch.plan.ranks.iter().zip(&launched.report.ranks);
                if ranks.into_iter().any(|(plan, end)| plan.role == role && end.told) {
                    info!("all {what} are killed");
                }
            }
            info!("{}", if circumstances.older { "Local processes completed." } else { "Pod completed" });
        }
        Outcome::Stopped { signal } => info!("Terminating with signal {signal}"),
        Outcome::Regrouped => {}
        Outcome::HostLost => error!("the launcher's front was killed; all ranks were killed with it"),
        Outcome::NotStarted { local_rank } => {
            error!("Pod failed");
            let why = launched.report.ranks[*local_rank].not_started.as_deref();
            complain(&format!("cannot start {}", why.unwrap_or_default()));
        }
        Outcome::Failed { culprit, exit } => {
            let rank = &launch.plan.ranks[*culprit];
            if circumstances.older {
                error!(
                    "ABORT!!! Out of all {} trainers, the trainer process with rank={:?} was aborted. Please check its log.",
                    launch.plan.world_size,
                    failed(launch, launched)
                );
            } else {
                error!("Pod failed");
            }
            error!(
                "Container failed !!!\nContainer rank {} status failed cmd {:?} code {} log {}",
                // Among parameter servers numbers are those of roles; this is the place on the node.
                if launch.plan.mode == "ps" { *culprit } else { rank.rank },
                rank.argv,
                exit.returncode(),
                launch.last_words(*culprit, 0).unwrap_or_default().display()
            );
        }
    }
    info!("Exit code {status}");
    if let Some(verdict) = verdict {
        if matches!(verdict.outcome, Verdictum::Failed(_)) {
            info!("------------------------- ERROR LOG DETAIL -------------------------");
        }
        if circumstances.github {
            message::to_stdout(format!("{}\n", github_annotation(verdict)).as_bytes());
        }
        if !circumstances.quiet {
            let style = Style { colour: circumstances.colour };
            message::to_stderr(render(verdict, style).as_bytes());
        }
    }
}

/// What went wrong beside the job: who cannot be killed, and what is not where people look for it.
pub(super) fn troubles(launch: &Launch<'_>, launched: &Launched) {
    complain_about_stuck(&launched.rest.stuck);
    if let Shown::AllBut(bytes) = launched.shown {
        warn!("the console took no more; {bytes} bytes are only in the logs in {}", launch.log_dir.display());
    }
    if logs::is_full(&launch.log_dir) {
        warn!("the disk of {} is full: the ranks' logs may lack what came last", launch.log_dir.display());
    }
}

/// What ranks left running, where no verdict says it.
pub(super) fn tell_swept(launch: &Launch<'_>, launched: &Launched) {
    for swept in swept(launch, launched) {
        tell(&sweep(swept.count, swept.owner.as_slice(), &swept.names));
    }
}

/// The numbers of those that failed of themselves.
fn failed(launch: &Launch<'_>, launched: &Launched) -> Vec<usize> {
    let ends = launched.report.ranks.iter().zip(&launch.plan.ranks);
    let of_itself = |end: &RankReport| !end.told && end.exit.is_some_and(|exit| !exit.is_success());
    ends.filter(|(end, _)| of_itself(end)).map(|(_, rank)| rank.rank).collect()
}

/// Names processes that the kernel will not let go.
pub fn complain_about_stuck(stuck: &[Leftover]) {
    for process in stuck {
        let place = tree::wait_channel(process.pid).map_or(String::new(), |at| format!(", waiting in {at}"));
        complain(&format!("process {} ({}) cannot be killed{place}; it is left behind", process.pid, process.name));
    }
}

fn swept(launch: &Launch<'_>, launched: &Launched) -> Vec<Swept> {
    let names = |list: &[Leftover]| list.iter().map(|l| l.name.clone()).collect();
    let of_ranks = launched.swept.iter().enumerate().map(|(local, list)| Swept {
        owner: Some(launch.plan.ranks[local].who()),
        count: list.len(),
        names: names(list),
    });
    let rest = &launched.rest.killed;
    let of_job = Swept { owner: None, count: rest.len(), names: names(rest) };
    of_ranks.chain([of_job]).filter(|swept| swept.count > 0).collect()
}

/// What is said at the end of a job that failed or was stopped.
pub fn verdict(
    launch: &Launch<'_>,
    launched: &Launched,
    status: i32,
    circumstances: &Circumstances,
) -> Option<Verdict> {
    let report = &launched.report;
    if launched.parting == Parting::StoreGone && matches!(report.outcome, Outcome::Stopped { .. }) {
        return None;
    }
    let outcome = match &report.outcome {
        // One line has said it.
        Outcome::Completed | Outcome::Regrouped | Outcome::HostLost | Outcome::NotStarted { .. } => return None,
        Outcome::Stopped { signal } => Verdictum::Stopped { signal: *signal },
        Outcome::Failed { culprit, exit } => {
            Verdictum::Failed(Box::new(culprit_of(launch, launched, *culprit, *exit, circumstances)))
        }
    };
    let culprit = match report.outcome {
        Outcome::Failed { culprit, .. } => Some(culprit),
        _ => None,
    };
    let victims = report.ranks.iter().enumerate().filter_map(|(local, end)| {
        let exit = end.exit.filter(|exit| !exit.is_success() && culprit != Some(local))?;
        let told = end.told;
        Some(Victim {
            who: launch.plan.ranks[local].who(),
            pid: launched.processes[local].pid.unwrap_or(0).unsigned_abs(),
            exit,
            lived: end.lived.unwrap_or_default(),
            told,
            // One that was told may say so too, but that is not why it went.
            lost_peer: !told && lost_peer(&last_bytes(launch, launched, local)).is_some(),
            killed_after_grace: end.killed,
        })
    });
    let victims = victims.collect();
    let (swept, restarts) = (swept(launch, launched), report.restarts);
    Some(Verdict { outcome, victims, swept, restarts, status })
}

fn culprit_of(
    launch: &Launch<'_>,
    launched: &Launched,
    local: usize,
    exit: Exit,
    circumstances: &Circumstances,
) -> Culprit {
    let rank = &launch.plan.ranks[local];
    let process = &launched.processes[local];
    let bytes = last_bytes(launch, launched, local);
    let mut tail = tail::tail(&bytes, tail::Limits::default());
    tail.cut |= bytes.len() as u64 >= TAIL_BYTES;
    // Only who had said what it fails of is to blame though it was told to stop.
    let explanation = if launched.report.ranks[local].told {
        Some(
            "it had failed, and said so in its error file, before any other ended; it was still ending then".to_owned(),
        )
    } else if exit == Exit::Signal(libc::SIGKILL) {
        Some(Memory::now(Path::new("/")).explain(&circumstances.memory))
    } else {
        None
    };
    Culprit {
        who: rank.who(),
        local_rank: launch.plan.ranks.iter().all(|r| r.role == Role::Trainer).then_some(local),
        host: circumstances.host.clone(),
        pid: process.pid.unwrap_or(0).unsigned_abs(),
        exit,
        lived: launched.report.ranks[local].lived.unwrap_or_default(),
        attempt: process.attempt,
        log: launch.last_words(local, process.attempt).map(|log| log.display().to_string()),
        blame: blame(&bytes, exit),
        lost_peer: lost_peer(&bytes),
        explanation,
        tail,
    }
}

fn last_bytes(launch: &Launch<'_>, launched: &Launched, local: usize) -> Vec<u8> {
    let process = &launched.processes[local];
    let log = launch.last_words(local, process.attempt);
    log.map(|log| logs::tail(&log, process.log_start, TAIL_BYTES)).unwrap_or_default()
}
