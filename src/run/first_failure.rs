//! Which rank failed first, and with which error, read from the logs of the ranks: while the job is being stopped, and once
//! it has ended.

use crate::model::Exit;
use crate::report::cause::blame::{Blame, blame};
use crate::report::cause::fault::RankFault;
use crate::report::cause::first_failure::{self, Account, RankEnd};
use crate::run::rank_state::RankState;

/// The rank that failed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstFailure {
    /// Its number on this node.
    pub local_rank: usize,
    /// Its exit; `None` if it was still exiting when it was asked to stop.
    pub exit: Option<Exit>,
    /// Whether the launcher sent it the signal that it ended by, while the others ran.
    pub was_aborted: bool,
    /// The error that it printed, in a line; may be empty.
    pub message: String,
    /// The same error.
    pub fault: Option<RankFault>,
    /// Whether it only lost its connection to another rank, and no rank of this node has a better reason.
    pub lost_peer: bool,
}

/// The end of a rank's output before an offset in its log (`u64::MAX`: all of it).
pub type ReadLog<'a> = &'a dyn Fn(usize, u64) -> Vec<u8>;

/// Describes the failure behind that of the rank that `ended_first` with `exit`.
pub fn describe(processes: &[RankState], ended_first: usize, exit: Exit, read: ReadLog<'_>) -> FirstFailure {
    let local_rank = find_earlier_failure(processes, ended_first, read).unwrap_or(ended_first);
    let stopped = local_rank != ended_first && is_stopped(&processes[local_rank]);
    let exit = if local_rank == ended_first { exit } else { processes[local_rank].exit.unwrap_or(exit) };
    let bytes = read(local_rank, end_of_interest(&processes[local_rank]));
    let uncaught = &processes[local_rank].uncaught;
    let shown = if stopped { Exit::Signal(libc::SIGTERM) } else { processes[local_rank].own_exit(exit) };
    let blamed = blame(&bytes, shown, uncaught);
    FirstFailure {
        local_rank,
        exit: (!stopped).then_some(exit),
        was_aborted: processes[local_rank].was_ended_by_launcher(exit),
        message: blamed.as_ref().map(Blame::in_a_line).unwrap_or_default(),
        fault: blamed.map(|blame| blame.fault),
        lost_peer: matches!(first_failure::read_account(&bytes, shown, stopped, uncaught), Account::LostPeer(_)),
    }
}

/// The local rank that failed before the one that ended first, if there is one: that one only lost its connection to another,
/// or another rank's exception was noted before.
pub fn find_earlier_failure(processes: &[RankState], ended_first: usize, read: ReadLog<'_>) -> Option<usize> {
    let first = processes.get(ended_first)?;
    let attempt = first.attempt;
    // Of ranks that were ended together because they hung, the order says nothing.
    if first.exit.is_some_and(|exit| first.was_ended_by_launcher(exit))
        && let Some(silent_since) = first.aborted_together
    {
        let aborted = (0..processes.len()).filter(|local| processes[*local].aborted_together.is_some());
        let threads = aborted.filter_map(|local| Some((processes[local].notes.thread.as_ref()?, local)));
        let errors = threads.filter(|(thread, _)| thread.ended_shortly_before(silent_since));
        let errors = errors.map(|(thread, local)| (thread.at, local));
        return errors.min().map(|(_, local)| local).filter(|local| *local != ended_first);
    }
    let end = |local: usize| {
        let process = &processes[local];
        let ran = process.pid.is_some() && process.attempt == attempt;
        let exit = process.exit.unwrap_or(Exit::Signal(libc::SIGTERM));
        if !ran {
            return None;
        }
        let signalled = is_stopped(process);
        let account =
            first_failure::read_account(&read(local, end_of_interest(process)), exit, signalled, &process.uncaught);
        Some(RankEnd { exit, signalled, account, raised_at: process.uncaught.at() })
    };
    // Most jobs have one rank with an error: then no other log is read.
    let first = end(ended_first)?;
    let raised_before = || {
        let of_attempt = processes.iter().filter(|process| process.attempt == attempt);
        of_attempt.filter_map(|process| process.uncaught.at()).any(|at| Some(at) < first.raised_at)
    };
    if !matches!(first.account, Account::LostPeer(_)) && !raised_before() {
        return None;
    }
    let ends: Vec<_> = (0..processes.len()).map(end).collect();
    first_failure::find_first_failure(ended_first, &ends)
}

/// Whether a rank has been asked to stop, or is about to be.
fn is_stopped(process: &RankState) -> bool {
    process.signalled || process.exit.is_none()
}

/// What a rank printed after it was asked to stop is an answer to that.
fn end_of_interest(process: &RankState) -> u64 {
    if is_stopped(process) { process.log_end_at_failure.unwrap_or(0) } else { u64::MAX }
}
