//! Builds the failure report of this node's ranks, and prints what else went wrong.

use crate::cli::common::message::{print_error, print_notice, warn_on_either};
use crate::cli::node::explain_failure::{LOGGED_BYTES, explain};
use crate::model::{Exit, Role};
use crate::probe::core_dump::describe_core;
use crate::probe::limits::processes::ProcessCounters;
use crate::probe::memory::OomCounters;
use crate::report::cause::blame::{Blame, blame};
use crate::report::cause::lost_peer::find_absent_rank;
use crate::report::cause::uncaught::UncaughtException;
use crate::report::cause::verdict::{Account, Verdict, read_account};
use crate::report::console::tail;
use crate::report::failure_report::{
    Culprit, FailureCause, FailureReport, PeersOfVictim, SweptProcesses, Victim, left_running, sweep, unkillable,
};
use crate::report::lost_peer;
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::output::console::Unshown;
use crate::run::output::log_files;
use crate::run::output::log_files::TAIL_BYTES;
use crate::run::sweep::Leftover;
use crate::supervise::{NodeOutcome, RankReport};
use crate::sys::clock;
use crate::sys::process::tree;
use std::time::SystemTime;
use tracing::warn;

/// What failure reports need beside the node's report.
pub struct ReportContext {
    /// This node's name.
    pub host: String,
    /// The memory counters before the ranks were started.
    pub memory: OomCounters,
    /// The counters of limits of processes before the ranks were started.
    pub processes: ProcessCounters,
    /// Whether stderr takes colours.
    pub colour: bool,
    /// Whether the output is GitHub's log, which has annotations.
    pub github: bool,
    /// Whether the report is left out (`--log_level CRITICAL`).
    pub quiet: bool,
    /// Whether the program that started the launcher raises an exception with the report of a failure as its text.
    pub raised_by_caller: bool,
    /// Whether messages are those of the legacy launcher.
    pub legacy: bool,
    /// Whether one command has started the launchers of all nodes, and exits with one of their statuses.
    pub has_one_exit_status: bool,
}

/// Names processes that still run, and warns of output that is incomplete.
pub(crate) fn warn_of_losses(launch: &Launch<'_>, launched: &LaunchResult) {
    print_unkillable(&launched.rest.stuck);
    print_left(&launched.rest.left);
    if launched.interrupted > 0 {
        let (ranks, place) = (launched.interrupted, launch.log_dir.display());
        print_notice(&format!("KeyboardInterrupt in {ranks} rank(s); the tracebacks are in the logs in {place}"));
    }
    match (launched.unshown, launch.unshown_place()) {
        (Unshown { logged: 0, .. }, _) => {}
        (Unshown { logged, is_reader_gone: false }, place) => {
            warn_on_either(&format!(
                "the console did not take {logged} bytes of output in time; they are only in {place}"
            ));
        }
        // Where the user does not look for a log.
        (Unshown { logged, is_reader_gone: true }, place) if launch.removed_on_success.is_some() => {
            warn_on_either(&format!("the console's reader has gone; {logged} bytes of output are only in {place}"));
        }
        _ => {}
    }
    for (rank, bytes) in &launched.lost {
        warn_on_either(&format!(
            "{bytes} bytes of the output of {rank} are lost: neither the console nor its log had room for them in time"
        ));
    }
    if log_files::is_full(&launch.log_dir) {
        warn!("the disk of {} is full: the end of the ranks' logs may be missing", launch.log_dir.display());
    }
}

/// Prints which processes were swept, where no failure report does.
pub(crate) fn print_swept(launch: &Launch<'_>, launched: &LaunchResult) {
    for swept in swept(launch, launched) {
        print_notice(&sweep(swept.count, swept.owner.as_slice(), &swept.names));
    }
}

/// Names processes that no sweep ends.
pub fn print_left(left: &[Leftover]) {
    if !left.is_empty() {
        let left: Vec<_> = left.iter().map(|process| (process.pid, process.name.as_str())).collect();
        print_notice(&left_running("--no_sweep", &left));
    }
}

/// Names processes that SIGKILL did not end.
pub fn print_unkillable(stuck: &[Leftover]) {
    for process in stuck {
        let (pid, name) = (process.pid, &process.name);
        print_error(&unkillable(&format!("process {pid} ({name})"), tree::wait_channel(pid).as_deref()));
    }
}

fn swept(launch: &Launch<'_>, launched: &LaunchResult) -> Vec<SweptProcesses> {
    let names = |list: &[Leftover]| list.iter().map(|l| l.name.clone()).collect();
    let of_ranks = launched.swept.iter().enumerate().map(|(local, list)| SweptProcesses {
        owner: Some(launch.plan.ranks[local].label()),
        count: list.len(),
        names: names(list),
    });
    let rest = &launched.rest.killed;
    let of_job = SweptProcesses { owner: None, count: rest.len(), names: names(rest) };
    of_ranks.chain([of_job]).filter(|swept| swept.count > 0).collect()
}

/// The failure report of a job that failed or was stopped; `None` where one line has said it all.
pub fn build_failure_report(
    launch: &Launch<'_>,
    launched: &LaunchResult,
    status: i32,
    context: &ReportContext,
) -> Option<FailureReport> {
    let report = &launched.report;
    if launched.outcome == JobOutcome::StoreLost && matches!(report.outcome, NodeOutcome::Stopped { .. }) {
        return None;
    }
    let outcome = match &report.outcome {
        NodeOutcome::Completed
        | NodeOutcome::Regrouped
        | NodeOutcome::LauncherKilled
        | NodeOutcome::NotStarted { .. } => {
            return None;
        }
        NodeOutcome::Stopped { signal } => FailureCause::Stopped { signal: *signal },
        NodeOutcome::Failed(failed) => {
            let verdict = launched.verdict.as_ref()?;
            FailureCause::Failed(Box::new(culprit_of(launch, launched, (verdict, failed.exit), context)))
        }
    };
    let culprit = match report.outcome {
        NodeOutcome::Failed(failed) => Some(failed.local_rank),
        _ => None,
    };
    // Of a rank that was still exiting it is not known whether the exception was caught.
    let error_of = |blame: &Blame| (blame.fault.clone(), blame.last_line().map(str::to_owned));
    let culprit_error = match &outcome {
        FailureCause::Failed(culprit) => culprit.blame.as_ref().map(error_of),
        FailureCause::Stopped { .. } => None,
    };
    let victims = report.ranks.iter().enumerate().filter_map(|(local, end)| {
        let exit = end.exit.filter(|exit| !exit.is_success() && culprit != Some(local))?;
        let signalled = end.signalled;
        // What it printed after it was asked to stop is an answer to that.
        let until = if signalled { launched.processes[local].log_end_at_failure.unwrap_or(0) } else { u64::MAX };
        let bytes = if culprit.is_some() { bytes_until(launch, launched, local, until) } else { Vec::new() };
        let uncaught = &launched.processes[local].uncaught;
        // A signal of the launcher's own is no part of the failure.
        let own_exit = if signalled { Exit::Code(1) } else { exit };
        let error = blame(&bytes, own_exit, uncaught).as_ref().map(error_of);
        let same_failure = culprit_error.is_some() && error == culprit_error;
        let is_certain = !signalled || matches!(uncaught, UncaughtException::Raised(_));
        let has_own = is_certain && read_account(&bytes, exit, signalled, uncaught) == Account::OwnError;
        Some(Victim {
            label: launch.plan.ranks[local].label(),
            same_failure,
            own_error: error.map(|(fault, _)| fault).filter(|_| has_own && !same_failure),
            pid: launched.processes[local].pid.unwrap_or(0).unsigned_abs(),
            exit,
            lived: end.lived.unwrap_or_default(),
            signalled,
            // A rank that was stopped may log a lost connection too, but did not end because of it.
            // The peer of one that waited in vain need not be dead.
            lost_peer: !signalled && lost_peer(&bytes).is_some_and(|library| !library.is_peer_alive()),
            killed_after_grace: end.killed,
        })
    });
    let victims = victims.collect();
    let (swept, requested_restarts) = (swept(launch, launched), launch.status.requested_restarts());
    let restarts = report.restarts.saturating_sub(requested_restarts);
    Some(FailureReport { outcome, victims, swept, restarts, requested_restarts, status })
}

fn culprit_of(
    launch: &Launch<'_>,
    launched: &LaunchResult,
    (verdict, exit): (&Verdict, Exit),
    context: &ReportContext,
) -> Culprit {
    let local = verdict.culprit;
    let rank = &launch.plan.ranks[local];
    let process = &launched.processes[local];
    let bytes = last_bytes(launch, launched, local);
    let mut tail = tail::tail(&bytes, tail::TailLimits::default());
    tail.cut |= bytes.len() as u64 >= TAIL_BYTES;
    let log = launch.tail_file(local, process.attempt);
    tail.is_missing = log.as_ref().is_some_and(|log| !log.exists());
    let signalled = launched.report.ranks[local].signalled;
    let log_of_rank = || read_log(launch, launched, local, (u64::MAX, LOGGED_BYTES));
    let explanation = explain(
        (launch, launched),
        (local, exit),
        (&context.memory, &context.processes),
        (&bytes, &log_of_rank),
        verdict.blame.as_ref(),
    );
    Culprit {
        label: rank.label(),
        local_rank: launch.plan.ranks.iter().all(|r| r.role == Role::Trainer).then_some(local),
        host: context.host.clone(),
        pid: process.pid.unwrap_or(0).unsigned_abs(),
        exit,
        lived: launched.report.ranks[local].lived.unwrap_or_default(),
        attempt: process.attempt,
        log: log.map(|log| log.display().to_string()),
        core: find_core(launched, local),
        blame: verdict.blame.clone(),
        // A rank that was stopped is the culprit only for an error of its own.
        lost_peer: (verdict.lost_peer.filter(|_| !signalled))
            .map(|library| (library, peers_of(launch, launched, (local, &bytes)))),
        stopped_by_launcher: signalled,
        aborted: process.aborted.clone(),
        ended_by_launcher: verdict.was_aborted,
        explanation,
        tail,
    }
}

/// The core file of a rank whose working directory is the launcher's: no process has that of one that has ended.
fn find_core(launched: &LaunchResult, local: usize) -> Option<String> {
    let process = &launched.processes[local];
    process.usage.filter(|usage| usage.dumped_core)?;
    let lived = clock::now().saturating_sub(launched.report.ranks[local].started_at?);
    let started = SystemTime::UNIX_EPOCH + clock::wall().saturating_sub(lived);
    describe_core(process.pid?.unsigned_abs(), &std::env::current_dir().ok()?, started)
}

/// What is known of the peers of a rank that lost its connection to one.
fn peers_of(launch: &Launch<'_>, launched: &LaunchResult, (local, bytes): (usize, &[u8])) -> PeersOfVictim {
    if let Some(missing) = find_absent_rank(bytes, launch.plan.world_size) {
        return PeersOfVictim::Absent { rank: missing, ranks: launch.plan.world_size };
    }
    let ended = |end: &RankReport| Some(end.started_at? + end.lived?);
    let at = ended(&launched.report.ranks[local]);
    let exited_before = |end: &RankReport| end.exit.is_some_and(|exit| exit.is_success()) && ended(end) <= at;
    let (ranks, plan) = (&launched.report.ranks, launch.plan);
    let is_peer = |other: usize| plan.ranks[other].role == plan.ranks[local].role;
    let exited: Vec<_> = (0..ranks.len()).filter(|other| is_peer(*other) && exited_before(&ranks[*other])).collect();
    match exited.is_empty() {
        _ if plan.nnodes > 1 => PeersOfVictim::OnOtherNodes,
        false => PeersOfVictim::Exited(exited.into_iter().map(|other| plan.ranks[other].label()).collect()),
        true => PeersOfVictim::Silent,
    }
}

/// The end of a rank's stderr, or of what it wrote where both are one.
pub(crate) fn last_bytes(launch: &Launch<'_>, launched: &LaunchResult, local: usize) -> Vec<u8> {
    bytes_until(launch, launched, local, u64::MAX)
}

fn bytes_until(launch: &Launch<'_>, launched: &LaunchResult, local: usize, end: u64) -> Vec<u8> {
    read_log(launch, launched, local, (end, TAIL_BYTES))
}

/// The last `most` bytes of a rank's output before `end`.
fn read_log(launch: &Launch<'_>, launched: &LaunchResult, local: usize, (end, most): (u64, u64)) -> Vec<u8> {
    let process = &launched.processes[local];
    let log = launch.tail_file(local, process.attempt);
    log.map(|log| log_files::tail_until(&log, process.log_start, end, most)).unwrap_or_default()
}
