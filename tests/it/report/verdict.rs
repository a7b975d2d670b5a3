//! The verdict on an attempt: one rank raised an exception, and the others lost their connection to it, in any order of the ends,
//! the notes and the error files.

use proptest::prelude::*;
use rlaunch::model::Exit;
use rlaunch::report::cause::fault::RankFault;
use rlaunch::report::cause::uncaught::{NotedException, UncaughtException};
use rlaunch::report::cause::verdict::{Ground, RankEvidence, Verdict, WrittenEvidence, judge};
use std::time::Duration;

const TERM: Exit = Exit::Signal(libc::SIGTERM);

fn traceback(line: &str) -> String {
    format!("Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    f()\n{line}\n")
}

fn lost() -> String {
    traceback("RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer [127.0.0.1]:1")
}

fn raised(what: &str, text: &str, at: u64) -> UncaughtException {
    let fault = RankFault { what: what.into(), text: text.into(), place: None };
    let at = Duration::from_millis(at);
    UncaughtException::Raised(NotedException { fault, raised_in: None, interpreter: None, other_venv: None, at })
}

/// What one rank leaves behind.
#[derive(Clone, Debug)]
struct Rank {
    exit: Option<Exit>,
    signalled: bool,
    uncaught: UncaughtException,
    stderr: String,
    error_file: Option<Duration>,
    ended: Duration,
}

struct Ranks(Vec<Rank>);

impl Ranks {
    fn evidence(&self, local: usize) -> RankEvidence<'_> {
        let rank = &self.0[local];
        RankEvidence {
            exit: rank.exit,
            own_exit: rank.exit.unwrap_or(TERM),
            signalled: rank.signalled,
            was_aborted: false,
            aborted_together: None,
            uncaught: &rank.uncaught,
            thread: None,
            wrote_error_file: rank.error_file,
            ended: Some(rank.ended),
        }
    }
}

impl WrittenEvidence for Ranks {
    fn stderr(&self, local_rank: usize) -> Vec<u8> {
        self.0[local_rank].stderr.clone().into_bytes()
    }
    fn error_file(&self, local_rank: usize) -> Option<String> {
        self.0[local_rank].error_file.map(|_| self.0[local_rank].stderr.clone())
    }
}

#[test]
fn what_a_rank_prints_when_the_launcher_ends_it_is_no_reason_of_its_own() {
    let stderr =
        "Fatal Python error: Aborted\n\nCurrent thread 0x00007f (most recent call first):\n  <no Python frame>\n";
    let (abort, none) = (Exit::Signal(libc::SIGABRT), UncaughtException::None);
    let raised = raised("ValueError", "bad sample 17", 1);
    for (own_exit, uncaught, message) in [
        (Exit::Code(3), &none, ""),
        (Exit::Code(1), &raised, "ValueError: bad sample 17"),
        (abort, &none, "Fatal Python error: Aborted"),
    ] {
        let rank = Rank {
            exit: Some(abort),
            signalled: false,
            uncaught: uncaught.clone(),
            stderr: stderr.into(),
            error_file: None,
            ended: Duration::ZERO,
        };
        let ranks = Ranks(vec![rank]);
        let evidence = RankEvidence { own_exit, was_aborted: true, ..ranks.evidence(0) };
        assert_eq!(judge((0, abort), &[Some(evidence)], &ranks).message(), message, "{own_exit}");
    }
}

fn verdict(ranks: Vec<Rank>, ended_first: usize) -> Verdict {
    let exit = ranks[ended_first].exit.unwrap_or(TERM);
    let ranks = Ranks(ranks);
    let evidence: Vec<_> = (0..ranks.0.len()).map(|local| Some(ranks.evidence(local))).collect();
    judge((ended_first, exit), &evidence, &ranks)
}

/// One that failed because of another: it lost its connection, or was stopped before it noticed. Its exception is noted, or not.
fn victim(noticed: impl Strategy<Value = bool>) -> impl Strategy<Value = Rank> {
    (noticed, any::<bool>(), any::<bool>(), 2_000..4_000_u64).prop_map(|(noticed, is_noted, has_file, at)| {
        let stopped = !noticed;
        let uncaught = match noticed && is_noted {
            true => {
                raised("RuntimeError", "[gloo/transport/tcp/pair.cc:1] Connection closed by peer [127.0.0.1]:1", at)
            }
            false if is_noted => UncaughtException::None,
            false => UncaughtException::Unknown,
        };
        Rank {
            exit: Some(if stopped { TERM } else { Exit::Code(1) }),
            signalled: stopped,
            uncaught,
            stderr: if noticed { lost() } else { String::new() },
            error_file: (noticed && has_file).then(|| Duration::from_millis(at)),
            ended: Duration::from_millis(at + 1),
        }
    })
}

/// The rank that failed first: it has ended by itself, is still exiting, or was stopped while it was.
fn root() -> impl Strategy<Value = Rank> {
    let ends = prop::sample::select(vec![(Some(Exit::Code(1)), false), (None, false), (Some(TERM), true)]);
    (ends, any::<bool>(), 0..1_000_u64, 0..9_000_u64).prop_map(|((exit, signalled), has_file, at, takes)| Rank {
        exit,
        signalled,
        uncaught: raised("ValueError", "bad sample 17", at),
        stderr: traceback("ValueError: bad sample 17"),
        error_file: has_file.then(|| Duration::from_millis(at)),
        ended: Duration::from_millis(at + takes),
    })
}

proptest! {
    #[test]
    fn the_rank_with_the_reason_is_to_blame_in_whatever_order_they_end(
        root in root(),
        noticed in victim(Just(true)),
        others in prop::collection::vec(victim(any::<bool>()), 0..4),
        at in any::<prop::sample::Index>(),
        first in any::<prop::sample::Index>(),
    ) {
        let mut ranks = [others, vec![noticed]].concat();
        let at = at.index(ranks.len() + 1);
        ranks.insert(at, root);
        // The supervisor sees the failure of a rank first that was not stopped.
        let failed: Vec<usize> = (0..ranks.len()).filter(|rank| !ranks[*rank].signalled && ranks[*rank].exit.is_some()).collect();
        let ended_first = failed[first.index(failed.len())];
        let (exit, signalled) = (ranks[at].exit, ranks[at].signalled);
        let found = verdict(ranks, ended_first);
        prop_assert_eq!((found.culprit, found.message()), (at, "ValueError: bad sample 17".to_owned()));
        prop_assert_eq!(found.lost_peer, None);
        prop_assert_eq!(found.exit, exit.filter(|_| !signalled));
        prop_assert_eq!(found.decisive, Exit::Code(1), "its own, or that of the one that ended first");
        prop_assert_eq!(found.ground == Ground::EndedFirst, at == ended_first);
    }
}
