//! What a user asks for: the end of the job, or another attempt.

use super::world::{GOOD, Happening, Job};
use super::{FAILS, GRACE, MS, STUBBORN, UNKILLABLE, plain, restarting, run};
use rlaunch::model::Exit;
use rlaunch::supervise::{
    ChildId, Effect, FailedRank, Lifecycle, NoRestart, NodeOutcome, ProgressNote, RankStop, SupervisionPolicy,
    Supervisor, SupervisorEvent,
};
use std::time::Duration;

#[test]
fn a_restart_that_a_user_asks_for_counts_as_none() {
    let ask = |at, grace| (at, Happening::Restart(grace));
    let report = run(&plain(&[&[STUBBORN, GOOD], &[GOOD, GOOD]], &[ask(50, None)]));
    assert_eq!((report.outcome, report.restarts, report.at), (NodeOutcome::Completed, 1, GRACE + 150 * MS));
    assert_eq!(report.attempts.iter().map(|a| a.failure).collect::<Vec<_>>(), [None]);
    let failing = [&[FAILS][..], &[STUBBORN], &[FAILS], &[FAILS], &[FAILS]];
    let report = run(&restarting(plain(&failing, &[ask(6_000, Some(0))])));
    assert_eq!((report.restarts, report.no_restart), (4, Some(NoRestart::UsedUp(3))), "three failures and a request");
}

#[test]
fn a_later_request_shortens_the_grace_period_or_the_delay() {
    let ask = |at, grace| (at, Happening::Restart(grace));
    let asks = [ask(1_000, None), ask(2_000, Some(3_000)), ask(3_000, None)];
    assert_eq!(run(&plain(&[&[STUBBORN], &[GOOD]], &asks)).at, 5_100 * MS);
    let report = run(&restarting(plain(&[&[FAILS], &[GOOD]], &[ask(100, None)])));
    assert_eq!((report.at, report.attempts.len()), (200 * MS, 1));
    assert_eq!(report.attempts[0].failure, Some(FailedRank::ended_first(0, Exit::Code(3))));
}

#[test]
fn what_comes_during_a_requested_restart_prevents_it() {
    let ask = (1_000, Happening::Restart(None));
    let report = run(&plain(&[&[STUBBORN]], &[ask, (2_000, Happening::Stop)]));
    assert_eq!((report.outcome, report.restarts), (NodeOutcome::Stopped { signal: libc::SIGINT }, 0));
    assert_eq!(report.at, 1_000 * MS + GRACE);
    let report = run(&plain(&[&[UNKILLABLE]], &[ask]));
    assert_eq!((report.restarts, report.no_restart), (0, Some(NoRestart::Unkillable)));
    let job = plain(&[&[STUBBORN]], &[ask]);
    let report = run(&Job { policy: SupervisionPolicy { in_rounds: true, ..job.policy }, ..job });
    let seen = (report.outcome, report.restart_requested, report.at);
    assert_eq!(seen, (NodeOutcome::Regrouped, true, 1_000 * MS + GRACE), "the rendezvous decides");
}

#[test]
fn no_restart_follows_where_restarts_are_forbidden() {
    let failed = |local_rank| SupervisorEvent::Exited(vec![(ChildId { attempt: 0, local_rank }, Exit::Code(3))]);
    let plain_policy = plain(&[&[GOOD]], &[]).policy;
    let restarts = restarting(plain(&[&[GOOD]], &[])).policy;
    for (policy, first, may_restart, no_restart) in [
        (&plain_policy, None, false, Some(None)),
        (&restarts, None, true, None),
        (&restarts, Some(SupervisorEvent::ForbidRestarts), true, Some(Some(NoRestart::Stopped))),
    ] {
        let mut machine = Supervisor::adopting(2, policy.clone(), Duration::ZERO);
        let mut effects = Vec::new();
        first.into_iter().for_each(|event| machine.handle(Duration::ZERO, event, &mut effects));
        assert!(!machine.may_restart());
        machine.handle(Duration::ZERO, failed(0), &mut effects);
        assert_eq!(machine.may_restart(), may_restart);
        machine.handle(Duration::ZERO, failed(1), &mut effects);
        let culprit = FailedRank::ended_first(0, Exit::Code(1));
        machine.handle(Duration::ZERO, SupervisorEvent::Judged(culprit), &mut effects);
        let end = effects.into_iter().find_map(|effect| match effect {
            Effect::Finish(report) => Some(report.no_restart),
            _ => None,
        });
        assert_eq!(end, no_restart);
    }
    let mut machine = Supervisor::adopting(1, restarts, Duration::ZERO);
    machine.handle(Duration::ZERO, SupervisorEvent::Stop(libc::SIGTERM), &mut Vec::new());
    assert!(!machine.may_restart());
}

/// Two ranks that run.
fn two_ranks() -> Supervisor {
    Supervisor::adopting(2, SupervisionPolicy::with_grace(GRACE), Duration::ZERO)
}

#[test]
fn a_stop_shortens_the_grace_period_of_what_stops_already() {
    let failed = SupervisorEvent::Exited(vec![(ChildId { attempt: 0, local_rank: 0 }, Exit::Code(3))]);
    for first in [SupervisorEvent::Restart { grace: None }, failed] {
        for (at, limit, left) in [(1_000 * MS, GRACE, GRACE - 1_000 * MS), (2_000 * MS, Duration::ZERO, Duration::ZERO)]
        {
            let (mut machine, mut effects) = (two_ranks(), Vec::new());
            machine.handle(Duration::ZERO, first.clone(), &mut effects);
            assert_eq!(machine.next_deadline(), Some(GRACE));
            effects.clear();
            machine.handle(at, SupervisorEvent::LimitGrace(limit), &mut effects);
            machine.handle(at, SupervisorEvent::Stop(libc::SIGTERM), &mut effects);
            let said = ProgressNote::Stopping { signal: libc::SIGTERM, living: machine.living(), grace: left };
            assert_eq!((&effects[..], machine.next_deadline()), (&[Effect::Note(said)][..], Some(at + left)));
        }
    }
}

#[test]
fn only_a_second_request_of_a_user_ends_the_grace_period_of_a_stop() {
    let stop = SupervisorEvent::Stop(libc::SIGTERM);
    for others in [vec![stop.clone()], vec![SupervisorEvent::Stop(libc::SIGINT), stop.clone()]] {
        let (mut machine, mut effects) = (two_ranks(), Vec::new());
        // Such as the launcher's own stop, after a notice of preemption.
        machine.handle(Duration::ZERO, stop.clone(), &mut effects);
        others.into_iter().for_each(|event| machine.handle(1_000 * MS, event, &mut effects));
        assert_eq!(machine.next_deadline(), Some(GRACE));
        machine.handle(2_000 * MS, SupervisorEvent::StopAgain(libc::SIGTERM), &mut effects);
        assert!(effects.contains(&Effect::Note(ProgressNote::Forced { living: vec![0, 1] })), "{effects:?}");
    }
    let (mut machine, mut effects) = (two_ranks(), Vec::new());
    machine.handle(Duration::ZERO, SupervisorEvent::StopAgain(libc::SIGTERM), &mut effects);
    assert_eq!(machine.next_deadline(), Some(GRACE), "nothing has asked the ranks before");
}

#[test]
fn a_limit_of_the_grace_period_is_that_of_a_stop_that_runs_too() {
    let regroup = SupervisorEvent::Regroup(RankStop::WithGrace);
    let limit = SupervisorEvent::LimitGrace(2_000 * MS);
    for (events, due) in [
        (vec![limit.clone()], None),
        (vec![limit.clone(), regroup.clone()], Some(2_000 * MS)),
        (vec![regroup.clone(), limit.clone()], Some(2_000 * MS)),
        (vec![limit, regroup, SupervisorEvent::LimitGrace(GRACE)], Some(2_000 * MS)),
    ] {
        let (mut machine, mut effects) = (two_ranks(), Vec::new());
        events.iter().for_each(|event| machine.handle(Duration::ZERO, event.clone(), &mut effects));
        assert_eq!(machine.next_deadline(), due, "{events:?}");
    }
    let (mut machine, mut effects) = (two_ranks(), Vec::new());
    machine.handle(Duration::ZERO, SupervisorEvent::Stop(libc::SIGTERM), &mut effects);
    machine.handle(1_000 * MS, SupervisorEvent::Suspend, &mut effects);
    machine.handle(5_000 * MS, SupervisorEvent::LimitGrace(2_000 * MS), &mut effects);
    machine.handle(60_000 * MS, SupervisorEvent::Resume, &mut effects);
    assert_eq!(machine.next_deadline(), Some(62_000 * MS), "the time stands still while the job is suspended");
}

#[test]
fn an_attempt_that_ends_takes_no_request_for_another() {
    let mut effects = Vec::new();
    let fails = SupervisorEvent::Exited(vec![(ChildId { attempt: 0, local_rank: 0 }, Exit::Code(3))]);
    let ask = SupervisorEvent::Restart { grace: None };
    for (events, takes) in [
        (vec![], true),
        (vec![fails.clone()], false),
        (vec![SupervisorEvent::Stop(libc::SIGTERM)], false),
        (vec![ask.clone()], true),
        (vec![ask.clone(), SupervisorEvent::Stop(libc::SIGTERM)], false),
    ] {
        let mut machine = two_ranks();
        events.iter().for_each(|event| machine.handle(Duration::ZERO, event.clone(), &mut effects));
        assert_eq!(machine.takes_restart(), takes, "{events:?}");
        effects.clear();
        machine.handle(MS, ask.clone(), &mut effects);
        assert!(takes || effects.is_empty(), "{effects:?}");
    }
    assert!(!Supervisor::new(&[Lifecycle::Main], SupervisionPolicy::default()).takes_restart(), "nothing runs yet");
}
