//! Ranks that are aborted while the others run.

use super::world::{GOOD, Happening, Manners, World};
use super::{GRACE, MS, STUBBORN, UNKILLABLE, plain, restarting, run};
use rlaunch::model::Exit;
use rlaunch::supervise::{FailedRank, KILL_PATIENCE, NoRestart, NodeOutcome, ProgressNote};

const HANGS: Manners = Manners { lives: None, ..GOOD };
const KILLED: Exit = Exit::Signal(libc::SIGKILL);

fn abort(at: u64, bits: u8) -> (u64, Happening) {
    (at, Happening::Abort(bits))
}

#[test]
fn an_aborted_rank_has_failed_and_a_restart_may_follow() {
    let report = run(&plain(&[&[HANGS, HANGS]], &[abort(1_000, 2)]));
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(1, Exit::Signal(libc::SIGABRT))));
    assert!(!report.ranks[1].signalled && report.ranks[0].signalled);
    let report = run(&restarting(plain(&[&[HANGS, HANGS], &[GOOD, GOOD]], &[abort(1_000, 2)])));
    assert_eq!((report.outcome, report.restarts), (NodeOutcome::Completed, 1));
}

#[test]
fn one_that_ignores_it_is_killed_after_the_grace_period_and_the_others_have_theirs_then() {
    let World { notes, report, .. } = World::live(&plain(&[&[STUBBORN, STUBBORN]], &[abort(1_000, 2)]));
    let report = report.unwrap();
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(1, KILLED)));
    assert_eq!(report.at, 1_000 * MS + 2 * GRACE);
    assert!(notes.contains(&ProgressNote::AbortIgnored { living: vec![1] }), "{notes:?}");
}

#[test]
fn each_has_its_own_grace_period_and_none_gets_a_second_one() {
    let aborts = [abort(1_000, 2), abort(4_000, 3), abort(9_000, 3)];
    let report = run(&plain(&[&[STUBBORN, STUBBORN]], &aborts));
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(1, KILLED)));
    assert_eq!(report.at, 4_000 * MS + GRACE, "the stop gives rank 0 the time that it had");
}

#[test]
fn their_time_stands_still_while_the_job_is_suspended() {
    let night = [abort(1_000, 1), (2_000, Happening::Suspend), abort(3_000, 1), (62_000, Happening::Resume)];
    assert_eq!(run(&plain(&[&[STUBBORN]], &night)).at, 61_000 * MS + GRACE);
}

#[test]
fn one_that_the_kernel_does_not_release_is_left_and_has_failed() {
    let job = restarting(plain(&[&[UNKILLABLE, HANGS]], &[abort(1_000, 1)]));
    let World { notes, report, .. } = World::live(&job);
    let report = report.unwrap();
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(0, KILLED)));
    assert!(report.ranks[0].abandoned);
    // The patience, and a stop like any other.
    let stopped_at = 1_000 * MS + GRACE + KILL_PATIENCE;
    assert_eq!((report.no_restart, report.at), (Some(NoRestart::Unkillable), stopped_at + GRACE + KILL_PATIENCE));
    let said = [ProgressNote::AbortIgnored { living: vec![0] }, ProgressNote::Unkillable { living: vec![0] }];
    assert!(said.iter().all(|note| notes.contains(note)), "{notes:?}");
    // Where it is alone, its grace period is over.
    assert_eq!(run(&plain(&[&[UNKILLABLE]], &[abort(1_000, 1)])).at, stopped_at + KILL_PATIENCE);
}
