//! Which rank failed first, where it is not the one that ended first. That one may have only lost its connection to another:
//! a victim. The rank that caused it may still be exiting (`atexit`, a core dump) when the victim has exited and all ranks are
//! stopped.

use crate::model::Exit;
use crate::report::cause::blame::blame;
use crate::report::cause::lost_peer::{LostPeer, lost_peer};
use crate::report::cause::uncaught::UncaughtException;
use std::time::Duration;

/// Lines of the message of the exception that ends a rank's output.
const LONGEST_MESSAGE: usize = 20;

/// What the end of a rank's stderr says of its failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Nothing that explains it.
    Nothing,
    /// It lost its connection to another rank.
    LostPeer(LostPeer),
    /// An error of its own.
    OwnError,
}

/// How one rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankEnd {
    /// Its exit.
    pub exit: Exit,
    /// Whether the launcher had signalled it before.
    pub signalled: bool,
    /// What it says.
    pub account: Account,
    /// When its Python noted the exception that ended it.
    pub raised_at: Option<Duration>,
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
    if signalled && !is_certain && blame.fault.text.lines().count() > LONGEST_MESSAGE {
        return Account::Nothing;
    }
    let error = blame.root.unwrap_or(blame.fault);
    of_text(error.to_string().as_bytes()).unwrap_or(Account::OwnError)
}

/// The rank that failed first, by local rank, where it is not `ended_first`. `None` for ranks that did not run. Of ranks with
/// errors of their own it is the one whose exception was noted first: the others may have failed because of it. A connection
/// may also be lost to a rank that exited successfully: then an exception that a living rank has printed, but that no note
/// says to have ended it, counts as one that it handled.
pub fn find_first_failure(ended_first: usize, ranks: &[Option<RankEnd>]) -> Option<usize> {
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
        let handled = [VALUE_ERROR, &b"epoch 4\n".repeat(LONGEST_MESSAGE + 1)].concat();
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
