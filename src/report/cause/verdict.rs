//! The verdict on an attempt in which a rank failed: the rank that is to blame, and its error. Whatever names a culprit has it from
//! here: the restart line and rules, the other nodes, the records, the reports, the exceptions.
//!
//! The rank that ended first need not be the one that failed first. It may have only lost its connection to another: a victim. The
//! rank that caused it may still be exiting (`atexit`, a core dump) when the victim has exited and all ranks are stopped.

use crate::model::Exit;
use crate::report::cause::blame::{Blame, blame};
use crate::report::cause::lost_peer::{LostPeer, lost_peer};
use crate::report::cause::uncaught::{ThreadError, UncaughtException};
use std::time::Duration;

/// The evidence of one rank.
#[derive(Clone, Copy, Debug)]
pub struct RankEvidence<'a> {
    /// Its exit; `None` while it lives.
    pub exit: Option<Exit>,
    /// The exit by which its error is looked for: that of its program, where rlaunch had to end its process.
    pub own_exit: Exit,
    /// It was asked to stop before it ended.
    pub signalled: bool,
    /// The launcher sent it the signal that it ended by, while the others ran.
    pub was_aborted: bool,
    /// If that was because of a hang in which no rank stood out: since when all had been silent (monotonic clock).
    pub aborted_together: Option<Duration>,
    /// The exception that ended its main program.
    pub uncaught: &'a UncaughtException,
    /// The first exception that ended a thread.
    pub thread: Option<&'a ThreadError>,
    /// When it wrote its error file, if it has one (monotonic clock).
    pub wrote_error_file: Option<Duration>,
    /// When it ended (monotonic clock).
    pub ended: Option<Duration>,
}

impl RankEvidence<'_> {
    /// Returns true if it has been asked to stop, or is about to be.
    fn is_stopped(&self) -> bool {
        self.signalled || self.exit.is_none()
    }

    /// The exit by which its error is looked for. What ends a rank that is stopped says nothing about its error.
    fn shown_exit(&self) -> Exit {
        if self.is_stopped() { Exit::Signal(libc::SIGTERM) } else { self.own_exit }
    }
}

/// The texts that the ranks have written.
pub trait WrittenEvidence {
    /// The end of a rank's stderr; of one that has been asked to stop, what it had written before.
    fn stderr(&self, local_rank: usize) -> Vec<u8>;
    /// The text of a rank's error file, if it is one.
    fn error_file(&self, local_rank: usize) -> Option<String>;
}

/// Why a rank is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// It ended first.
    EndedFirst,
    /// It wrote its error file first.
    ErrorFile,
    /// The rank that ended first, a local rank, failed after it.
    FailedLater(usize),
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The rank that failed first, by its number on this node.
    pub culprit: usize,
    /// Its exit; `None` if it was still exiting when it was asked to stop.
    pub exit: Option<Exit>,
    /// Its exit, or that of the rank that ended first if it has none of its own: restarts and the exit status go by it.
    pub decisive: Exit,
    /// Why it is this rank.
    pub ground: Ground,
    /// The launcher sent it the signal that it ended by, while the others ran.
    pub was_aborted: bool,
    /// Its error; `None`: none is known.
    pub blame: Option<Blame>,
    /// It ended by itself because it lost its connection to another rank, and no rank of this node has a better reason.
    pub lost_peer: Option<LostPeer>,
}

impl Verdict {
    /// Its error in a line; may be empty.
    pub fn message(&self) -> String {
        self.blame.as_ref().map(Blame::in_a_line).unwrap_or_default()
    }
}

/// Finds the rank to blame for an attempt. `ended_first`: the rank that failed first as far as the order of the ends says, and its
/// exit; `ranks`: those of the attempt, by local rank.
pub fn judge(
    (ended_first, exit): (usize, Exit),
    ranks: &[Option<RankEvidence<'_>>],
    written: &dyn WrittenEvidence,
) -> Verdict {
    let by_file = |says| Some((first_with_error_file(ended_first, ranks, (written, says))?, Ground::ErrorFile));
    let by_error = || Some((find_earlier_failure(ended_first, ranks, written)?, Ground::FailedLater(ended_first)));
    let found = by_file(FileSays::OwnError).or_else(by_error).or_else(|| by_file(FileSays::LostPeer));
    let (culprit, ground) = found.unwrap_or((ended_first, Ground::EndedFirst));
    let evidence = ranks.get(culprit).copied().flatten();
    let is_stopped = culprit != ended_first && evidence.is_none_or(|rank| rank.is_stopped());
    let own = evidence.and_then(|rank| rank.exit).filter(|_| culprit != ended_first).unwrap_or(exit);
    let stderr = written.stderr(culprit);
    let (shown, uncaught) = evidence.map_or((own, &UncaughtException::Unknown), |rank| match is_stopped {
        true => (Exit::Signal(libc::SIGTERM), rank.uncaught),
        false => (rank.own_exit, rank.uncaught),
    });
    // Its program had left with a status of its own, and what it printed then is of the signal that the launcher sent.
    let has_left = evidence.is_some_and(|rank| {
        let has_raised = matches!(rank.uncaught, UncaughtException::Raised(_));
        rank.was_aborted && rank.own_exit != own && !has_raised
    });
    // It may be stopped after it wrote its error file and before it printed the traceback.
    let of_file = || blame(written.error_file(culprit)?.as_bytes(), own, &UncaughtException::Unknown);
    Verdict {
        culprit,
        exit: (!is_stopped).then_some(own),
        decisive: if is_stopped { exit } else { own },
        ground,
        was_aborted: evidence.is_some_and(|rank| rank.was_aborted),
        blame: blame(&stderr, shown, uncaught).filter(|_| !has_left).or_else(of_file),
        lost_peer: match read_account(&stderr, shown, is_stopped, uncaught) {
            Account::LostPeer(library) if !is_stopped => Some(library),
            Account::LostPeer(_) | Account::Nothing | Account::OwnError => None,
        },
    }
}

/// An error file may seem this much older than it is: the kernel stamps files by its timer ticks.
const TICK: Duration = Duration::from_millis(20);

/// The kind of an error file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileSays {
    OwnError,
    /// The rank lost its connection to another. Of ranks that say nothing else the earliest counts, as for torchrun.
    LostPeer,
}

/// The rank that wrote its error file before the one that ended first had failed. After that it may take seconds to exit, and ranks that
/// lose their connection to it may exit before it.
fn first_with_error_file(
    ended_first: usize,
    ranks: &[Option<RankEvidence<'_>>],
    (written, says): (&dyn WrittenEvidence, FileSays),
) -> Option<usize> {
    let first = ranks.get(ended_first).copied().flatten()?;
    let early = |at: Duration| at.saturating_sub(TICK);
    let before = first.wrote_error_file.or(first.ended.map(early)).into_iter();
    let before = before.chain(first.uncaught.at().map(early)).min()?;
    let failed = |rank: &RankEvidence<'_>| rank.exit.is_none_or(|exit| !exit.is_success());
    let others = ranks.iter().enumerate().filter(|(local, _)| *local != ended_first);
    let files = others.filter_map(|(local, rank)| Some((rank.filter(failed)?.wrote_error_file?, local)));
    let mut files: Vec<_> = files.filter(|(at, _)| *at < before).collect();
    files.sort_unstable();
    let has_lost = |text: &[u8]| if lost_peer(text).is_some() { FileSays::LostPeer } else { FileSays::OwnError };
    // One that says nothing else does not make a rank with an error of its own a victim.
    let is_possible = says == FileSays::OwnError || has_lost(&written.stderr(ended_first)) == says;
    let files = files.into_iter().map(|(_, local)| local).filter(|_| is_possible);
    files.into_iter().find(|local| written.error_file(*local).is_some_and(|text| has_lost(text.as_bytes()) == says))
}

/// The rank that failed before the one that ended first, if there is one: that one only lost its connection to another, or another
/// rank's exception was noted before.
fn find_earlier_failure(
    ended_first: usize,
    ranks: &[Option<RankEvidence<'_>>],
    written: &dyn WrittenEvidence,
) -> Option<usize> {
    let first = ranks.get(ended_first).copied().flatten()?;
    let all = || ranks.iter().enumerate().filter_map(|(local, rank)| Some((local, (*rank)?)));
    // Of ranks that were ended together because they hung, the order says nothing.
    if let Some(silent_since) = first.aborted_together.filter(|_| first.was_aborted) {
        let threads = all().filter(|(_, rank)| rank.aborted_together.is_some());
        let threads = threads.filter_map(|(local, rank)| Some((rank.thread?, local)));
        let errors = threads.filter(|(thread, _)| thread.ended_shortly_before(silent_since));
        let first = errors.map(|(thread, local)| (thread.at, local)).min();
        return first.map(|(_, local)| local).filter(|local| *local != ended_first);
    }
    let end = |(local, rank): (usize, RankEvidence<'_>)| RankEnd {
        exit: rank.exit.unwrap_or(Exit::Signal(libc::SIGTERM)),
        signalled: rank.is_stopped(),
        account: read_account(&written.stderr(local), rank.shown_exit(), rank.is_stopped(), rank.uncaught),
        raised_at: rank.uncaught.at(),
    };
    // Most jobs have one rank with an error: then no other log is read.
    let own = end((ended_first, first));
    let raised_before = || all().filter_map(|(_, rank)| rank.uncaught.at()).any(|at| Some(at) < own.raised_at);
    if !matches!(own.account, Account::LostPeer(_)) && !raised_before() {
        return None;
    }
    let ends: Vec<_> = (0..ranks.len()).map(|local| Some(end((local, ranks[local]?)))).collect();
    find_first_failure(ended_first, &ends)
}

/// Lines of the message of the exception that ends a rank's output.
const MAX_MESSAGE_LINES: usize = 20;

/// The reason of a failure by the end of the rank's stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Nothing that explains it.
    Nothing,
    /// It lost its connection to another rank.
    LostPeer(LostPeer),
    /// An error of its own.
    OwnError,
}

/// The end of one rank, with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RankEnd {
    exit: Exit,
    /// The launcher had signalled it before.
    signalled: bool,
    account: Account,
    /// When its Python noted the exception that ended it.
    raised_at: Option<Duration>,
}

/// Reads the end of a rank's stderr; of a rank that was stopped, what it had printed before. Of several errors the first one
/// counts: a rank that fails closes its connections, which fails in turn.
pub fn read_account(stderr: &[u8], exit: Exit, signalled: bool, uncaught: &UncaughtException) -> Account {
    // An exception that was printed before a signal counts only as the last output: programs log those that they handle.
    let exit = if signalled { Exit::Signal(libc::SIGTERM) } else { exit };
    let of_text = |text: &[u8]| lost_peer(text).map(Account::LostPeer);
    let Some(blame) = blame(stderr, exit, uncaught) else { return of_text(stderr).unwrap_or(Account::Nothing) };
    // Lines that follow an exception may belong to its message; so many do not.
    let is_certain = matches!(uncaught, UncaughtException::Raised(_));
    if signalled && !is_certain && blame.fault.text.lines().count() > MAX_MESSAGE_LINES {
        return Account::Nothing;
    }
    let error = blame.root.unwrap_or(blame.fault);
    of_text(error.to_string().as_bytes()).unwrap_or(Account::OwnError)
}

/// The rank that failed first, by local rank, where it is not `ended_first`. `None` for ranks that did not run. Of ranks with
/// errors of their own it is the one whose exception was noted first: the others may have failed because of it. A connection
/// may also be lost to a rank that exited successfully: then an exception that a living rank has printed, but that no note
/// says to have ended it, counts as one that it handled.
fn find_first_failure(ended_first: usize, ranks: &[Option<RankEnd>]) -> Option<usize> {
    let first = ranks.get(ended_first).copied().flatten()?;
    let all = || (0..ranks.len()).filter_map(|local| Some((ranks[local]?, local)));
    match (first.account, first.raised_at) {
        (Account::LostPeer(library), _) => {
            let has_one_left = all().any(|(end, _)| end.exit.is_success() && !end.signalled);
            let failed_by_itself = |end: &RankEnd| match end.account {
                Account::LostPeer(_) => false,
                Account::OwnError => !end.signalled || end.raised_at.is_some() || !has_one_left,
                Account::Nothing => !end.signalled && !end.exit.is_success(),
            };
            let others = all().filter(|(end, _)| failed_by_itself(end));
            let key = |(end, local): &(RankEnd, usize)| (end.signalled, end.account != Account::OwnError, *local);
            // One that has waited in vain closed the connections of those that it served.
            let gave_up = |end: &RankEnd| matches!(end.account, Account::LostPeer(other) if other.is_timeout());
            let impatient = all().filter(|(end, _)| gave_up(end) && (!end.signalled || end.raised_at.is_some()));
            let impatient = impatient.filter(|_| !library.is_timeout());
            let earliest = impatient.min_by_key(|(end, local)| (end.raised_at.unwrap_or(Duration::MAX), *local));
            others.min_by_key(key).or(earliest).map(|(_, local)| local)
        }
        (Account::OwnError, Some(at)) => {
            let own = all().filter(|(end, _)| end.account == Account::OwnError);
            let raised = own.filter_map(|(end, local)| Some((end.raised_at?, local)));
            raised.filter(|(earlier, _)| *earlier < at).min().map(|(_, local)| local)
        }
        (Account::OwnError | Account::Nothing, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE_ERROR: &[u8] =
        b"Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    f()\nValueError: out\n";
    const LOST: &[u8] =
        b"Traceback (most recent call last):\n  File \"t.py\", line 4, in <module>\n    g()\nRuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer [127.0.0.1]:1\n";

    fn both(first: &[u8], second: &[u8]) -> Vec<u8> {
        [first, b"\nDuring handling of the above exception, another exception occurred:\n\n", second].concat()
    }

    #[test]
    fn the_first_error_of_a_rank_counts() {
        let stopped = |text: &[u8]| read_account(text, Exit::Signal(libc::SIGTERM), true, &UncaughtException::Unknown);
        assert_eq!(stopped(VALUE_ERROR), Account::OwnError);
        assert_eq!(stopped(LOST), Account::LostPeer(LostPeer::Gloo));
        assert_eq!(stopped(&both(VALUE_ERROR, LOST)), Account::OwnError);
        assert_eq!(stopped(&both(LOST, VALUE_ERROR)), Account::LostPeer(LostPeer::Gloo));
        assert_eq!(stopped(b"epoch 3\n"), Account::Nothing);
        assert_eq!(stopped(&VALUE_ERROR.to_ascii_uppercase()), Account::Nothing);
        let handled = [VALUE_ERROR, &b"epoch 4\n".repeat(MAX_MESSAGE_LINES + 1)].concat();
        assert_eq!(stopped(&handled), Account::Nothing);
        assert_eq!(read_account(&handled, Exit::Code(1), false, &UncaughtException::Unknown), Account::OwnError);
    }

    #[test]
    fn a_rank_with_a_reason_is_preferred_to_a_victim() {
        let end = |exit: Exit, signalled, account| Some(RankEnd { exit, signalled, account, raised_at: None });
        let lost = end(Exit::Code(1), false, Account::LostPeer(LostPeer::Gloo));
        let (stopped, failed) = (Exit::Signal(libc::SIGTERM), Exit::Code(3));
        let own = end(stopped, true, Account::OwnError);
        let crash = end(Exit::Signal(libc::SIGSEGV), true, Account::Nothing);
        let silent = end(failed, false, Account::Nothing);
        let nothing = end(stopped, true, Account::Nothing);
        let left = end(Exit::Code(0), false, Account::Nothing);
        let waited = end(Exit::Code(1), false, Account::LostPeer(LostPeer::TorchStoreTimeout));
        let noted = own.map(|end| RankEnd { raised_at: Some(Duration::ZERO), ..end });
        for (ranks, first) in [
            (vec![lost, own], Some(1)),
            (vec![lost, own, left], None),
            (vec![lost, own, left, noted], Some(3)),
            (vec![left, silent, lost], Some(1)),
            (vec![own, lost], Some(0)),
            (vec![nothing, crash, lost], None),
            (vec![crash, own, lost], Some(1)),
            (vec![own, silent, lost], Some(1)),
            (vec![nothing, None, lost], None),
            (vec![lost, nothing, lost], None),
            (vec![waited, lost], Some(0)),
            (vec![waited, silent, lost], Some(1)),
        ] {
            let ended_first = ranks.iter().rposition(|rank| *rank == lost).unwrap_or(0);
            assert_eq!(find_first_failure(ended_first, &ranks), first, "{ranks:?}");
        }
        assert_eq!(find_first_failure(0, &[own, lost]), None, "its own error is the cause");
        assert_eq!(find_first_failure(5, &[lost]), None);
    }

    #[test]
    fn of_two_ranks_with_errors_of_their_own_the_earlier_exception_counts() {
        let end = |account, ms: Option<u64>| {
            let raised_at = ms.map(Duration::from_millis);
            Some(RankEnd { exit: Exit::Code(1), signalled: false, account, raised_at })
        };
        let own = |ms| end(Account::OwnError, Some(ms));
        let unknown = end(Account::OwnError, None);
        for (ranks, first) in [
            (vec![own(7), own(8)], None),
            (vec![own(7), own(7)], None),
            (vec![own(7), own(6), own(5)], Some(2)),
            (vec![own(7), unknown], None),
            (vec![unknown, own(6)], None),
            (vec![own(7), end(Account::LostPeer(LostPeer::Gloo), Some(6))], None),
            (vec![own(7), end(Account::Nothing, Some(6)), None], None),
        ] {
            assert_eq!(find_first_failure(0, &ranks), first, "{ranks:?}");
        }
    }
}
