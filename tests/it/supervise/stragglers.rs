//! Ranks that still run long after another one has exited successfully.

use super::world::{GOOD, Happening, Job, Manners, World};
use super::{GRACE, MS, STUBBORN, plain, restarting, run};
use rlaunch::model::Exit;
use rlaunch::supervise::{AbortReason, FailedRank, Lifecycle, NodeOutcome, ProgressNote, SupervisionPolicy};

fn with_straggler_timeout(job: Job, millis: u32) -> Job {
    Job { policy: SupervisionPolicy { straggler_timeout: Some(millis * MS), ..job.policy }, ..job }
}

#[test]
fn stragglers_fail_by_themselves_after_their_time() {
    let slow = Manners { lives: Some(9_000), ..GOOD };
    let job = with_straggler_timeout(plain(&[&[slow.clone(), GOOD, slow.clone()]], &[]), 1_000);
    let World { notes, report, .. } = World::live(&job);
    let (report, limit) = (report.unwrap(), 1_000 * MS);
    let reason = AbortReason::Straggler { first: 1, limit };
    assert!(notes.contains(&ProgressNote::Aborting { ranks: vec![0, 2], reason }));
    let NodeOutcome::Failed(FailedRank { exit, .. }) = report.outcome else { panic!("{:?}", report.outcome) };
    assert_eq!((exit, report.at), (Exit::Signal(libc::SIGABRT), 1_105 * MS));
    let soon = Manners { lives: Some(1_099), ..GOOD };
    assert_eq!(run(&with_straggler_timeout(plain(&[&[soon, GOOD]], &[]), 1_000)).outcome, NodeOutcome::Completed);
    let report = run(&with_straggler_timeout(plain(&[&[STUBBORN, GOOD]], &[]), 1_000));
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(0, Exit::Signal(libc::SIGKILL))));
    assert_eq!(report.at, 1_100 * MS + GRACE);
    let job = restarting(plain(&[&[slow, GOOD], &[GOOD, GOOD]], &[]));
    let report = run(&with_straggler_timeout(job, 1_000));
    assert_eq!((report.outcome, report.restarts), (NodeOutcome::Completed, 1));
}

#[test]
fn all_of_them_have_one_grace_period() {
    let slow = Manners { lives: Some(90_000), on_term: Some((4_000, Exit::Signal(15))), ..GOOD };
    let job = with_straggler_timeout(plain(&[&[slow.clone(), GOOD, STUBBORN]], &[]), 1_000);
    assert_eq!(run(&job).at, 1_100 * MS + GRACE, "the end of the first one gives the other no more time");
    // A server has its own.
    let parts = vec![Lifecycle::Main, Lifecycle::Main, Lifecycle::Server];
    assert_eq!(run(&Job { parts, ..job }).at, 5_100 * MS + GRACE);
    let stop = [(3_100, Happening::Stop)];
    assert_eq!(run(&with_straggler_timeout(plain(&[&[GOOD, STUBBORN]], &stop), 1_000)).at, 1_100 * MS + GRACE);
}

#[test]
fn their_time_begins_when_all_have_been_started() {
    let late = Manners { start_takes: 5_000, lives: None, ..GOOD };
    let job = with_straggler_timeout(plain(&[&[GOOD, late]], &[]), 1_000);
    let report = run(&job);
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(1, Exit::Signal(libc::SIGABRT))));
    assert_eq!(report.at, 6_005 * MS);
}
