//! Children of different roles: the cases of them that random histories cover, and single histories.

use super::world::{GOOD, Happening, Job, Manners, World};
use super::{FAILS, GRACE, MS, STUBBORN, UNKILLABLE, plain, restarting, run};
use rlaunch::model::Exit;
use rlaunch::supervise::Lifecycle::{AwaitedServer, First, Main, Server};
use rlaunch::supervise::{FailedRank, KILL_PATIENCE, Lifecycle, NoRestart, NodeOutcome, ProgressNote};
use std::time::Duration;

/// All but the servers exit successfully; the servers live on, and children that cannot start are slow to fail.
/// Returns how long the work takes.
pub fn smooth(parts: &[Lifecycle], ranks: &mut [Manners]) -> u64 {
    let (mut first, mut main, mut starts) = (0, 0, 0);
    for (part, manners) in parts.iter().zip(ranks) {
        if *part == Server {
            manners.lives = None;
            if !manners.starts {
                manners.start_takes = 15_000;
            }
            starts += manners.start_takes;
            continue;
        }
        (manners.starts, manners.start_takes, manners.exit) = (true, 0, Exit::Code(0));
        manners.dies_frozen = manners.dies_frozen.map(|_| Exit::Code(0));
        let lives = *manners.lives.get_or_insert(1_000);
        if *part == First {
            first += lives;
        } else {
            main = main.max(starts + lives);
        }
    }
    first + main
}

/// Notes which cases a history covers.
pub fn note_cases(job: &Job, world: &World<'_>, note: &mut dyn FnMut(&'static str, bool)) {
    let report = world.report.as_ref().unwrap();
    let (completed, alone) = (report.outcome == NodeOutcome::Completed, !job.parts.contains(&Main));
    let any = |part: Lifecycle, what: &dyn Fn(usize) -> bool| {
        (0..job.parts.len()).any(|rank| job.parts[rank] == part && what(rank) && !(part == Server && alone))
    };
    let blamed = |rank| matches!(report.outcome, NodeOutcome::Failed(failed) if failed.local_rank == rank);
    let said = |what: &dyn Fn(&ProgressNote) -> bool| world.notes.iter().any(what);
    let ends = |what: &dyn Fn(&super::world::Together) -> bool| world.together.iter().any(what);
    let ranks = &report.ranks;
    note("a First to blame", any(First, &|rank| blamed(rank)));
    note("a First before others that end well", completed && job.parts.contains(&First) && !alone);
    let before = |rank: usize| report.attempts.last().is_some_and(|a| ranks[rank].started_at < Some(a.ended));
    note("a First that is not run again", any(First, &|rank| ranks[rank].exit.is_some() && before(rank)));
    note("a First that is run again", any(First, &|rank| report.restarts > 0 && !before(rank)));
    note("a Server to blame", any(Server, &|rank| blamed(rank)));
    note("Servers alone", completed && alone && job.parts.contains(&Server));
    note(
        "a Server that ends well before",
        completed && any(Server, &|rank| ranks[rank].exit.is_some() && !ranks[rank].signalled),
    );
    note(
        "a Server that ends badly when signalled",
        completed && any(Server, &|rank| ranks[rank].signalled && !ranks[rank].killed),
    );
    note("a Server that is killed", completed && any(Server, &|rank| ranks[rank].killed));
    note("a Server that is left behind", completed && any(Server, &|rank| ranks[rank].abandoned));
    note("a Server that is not needed", completed && any(Server, &|rank| ranks[rank].started_at.is_none()));
    note("a Server that cannot start then", completed && any(Server, &|rank| ranks[rank].start_error.is_some()));
    note("AwaitedServers have their time", said(&|n| matches!(n, ProgressNote::AwaitingServers { .. })));
    note("an AwaitedServer whose time is over", any(AwaitedServer, &|rank| completed && ranks[rank].signalled));
    note("a stop while Servers end", completed && said(&|n| matches!(n, ProgressNote::Stopping { .. })));
    note("a second one", completed && said(&|n| matches!(n, ProgressNote::Forced { .. })));
    note("a lost host while Servers end", completed && world.host_lost);
    note("a Server that fails with the last Main", ends(&|t| t.done && t.failed > 0));
    note(
        "the work done while all sleep",
        said(&|n| matches!(n, ProgressNote::Finishing { .. })) && ends(&|t| t.done && t.asleep),
    );
    note("the work done while a Server starts", ends(&|t| t.done && t.starting));
}

fn with(parts: &[Lifecycle], job: Job) -> Job {
    Job { parts: parts.to_vec(), ..job }
}

const OBLIGING: Manners = Manners { lives: None, ..GOOD };

#[test]
fn servers_are_signalled_when_the_work_is_done_and_their_end_is_no_failure() {
    let job = with(&[Server, Main, Server, Main], plain(&[&[OBLIGING, GOOD, STUBBORN, GOOD]], &[]));
    let world = World::live(&job);
    let report = world.report.unwrap();
    assert_eq!((report.outcome, report.at), (NodeOutcome::Completed, MS * 100 + GRACE));
    assert_eq!(
        report.ranks.iter().map(|rank| rank.exit.unwrap()).collect::<Vec<_>>(),
        [15, 0, 9, 0].map(|n| if n == 0 { Exit::Code(0) } else { Exit::Signal(n) })
    );
    assert_eq!(
        world.notes,
        [ProgressNote::Finishing { living: vec![0, 2] }, ProgressNote::Killing { living: vec![2] }]
    );
}

#[test]
fn a_server_may_end_well_before_the_others_and_not_badly() {
    let ends = |exit| Manners { lives: Some(5), exit, ..GOOD };
    let server_and_two = |exit| with(&[Server, Main, Main], plain(&[&[ends(exit), GOOD, GOOD]], &[]));
    let report = run(&server_and_two(Exit::Code(0)));
    assert_eq!((report.outcome, report.at), (NodeOutcome::Completed, 100 * MS));
    let report = run(&server_and_two(Exit::Code(3)));
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(0, Exit::Code(3))));
    assert_eq!(report.victims(), [1, 2]);
}

#[test]
fn a_server_that_fails_with_the_last_of_the_work_fails_nothing() {
    let falls = Manners { lives: Some(100), exit: Exit::Signal(11), ..GOOD };
    let job = with(&[Server, Main, Main], plain(&[&[falls.clone(), GOOD, GOOD]], &[]));
    assert_eq!(run(&restarting(job)).outcome, NodeOutcome::Completed);
    let job = with(&[Server, Main, Main], plain(&[&[falls, GOOD, OBLIGING]], &[]));
    assert_eq!(run(&job).outcome, NodeOutcome::Failed(FailedRank::ended_first(0, Exit::Signal(11))));
}

#[test]
fn servers_alone_are_waited_for() {
    let report = run(&with(&[Server, Server], plain(&[&[GOOD, Manners { lives: Some(7_000), ..GOOD }]], &[])));
    assert_eq!((report.outcome, report.at), (NodeOutcome::Completed, 7_000 * MS));
    assert!(report.ranks.iter().all(|rank| !rank.signalled));
}

#[test]
fn awaited_servers_have_their_time_after_the_work() {
    let saves = Manners { lives: Some(7_000), ..GOOD };
    let job = with(&[AwaitedServer, Main], plain(&[&[saves.clone(), GOOD]], &[]));
    let world = World::live(&job);
    let report = world.report.unwrap();
    assert_eq!((report.outcome, report.at, report.ranks[0].signalled), (NodeOutcome::Completed, 7_000 * MS, false));
    assert_eq!(world.notes, [ProgressNote::AwaitingServers { living: vec![0], limit: None }]);
    // One that cannot save fails the job.
    let fails = Manners { exit: Exit::Code(3), ..saves.clone() };
    let report = run(&with(&[AwaitedServer, Main], plain(&[&[fails, GOOD]], &[])));
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(0, Exit::Code(3))));
}

#[test]
fn awaited_servers_are_signalled_when_their_time_is_over() {
    let mut job = with(&[AwaitedServer, AwaitedServer, Main], plain(&[&[OBLIGING, GOOD, GOOD]], &[]));
    job.policy.server_timeout = Some(3_000 * MS);
    let world = World::live(&job);
    let report = world.report.unwrap();
    assert_eq!(report.outcome, NodeOutcome::Completed);
    assert_eq!((report.ranks[0].signalled, report.ranks[1].signalled), (true, false));
    let notes = [
        ProgressNote::AwaitingServers { living: vec![0], limit: Some(3_000 * MS) },
        ProgressNote::Finishing { living: vec![0] },
    ];
    assert_eq!(world.notes, notes);
    // A stop signal in that time is a stop.
    let mut job = with(&[AwaitedServer, Main], plain(&[&[OBLIGING, GOOD]], &[(1_000, Happening::Stop)]));
    job.policy.server_timeout = Some(3_000 * MS);
    assert!(matches!(run(&job).outcome, NodeOutcome::Stopped { .. }));
}

#[test]
fn a_done_job_stays_done_on_any_event_while_its_servers_end() {
    let twice = [(1_000, Happening::Stop), (2_000, Happening::Stop)];
    let lost = [(1_000, Happening::HostLost)];
    for (comes, at, said) in [
        (&[][..], GRACE + 100 * MS, 2),
        (&twice[..1], GRACE + 100 * MS, 3),
        (&twice, 2_000 * MS, 4),
        (&lost, 1_000 * MS, 2),
    ] {
        let job = restarting(with(&[Main, Server], plain(&[&[GOOD, STUBBORN]], comes)));
        let world = World::live(&job);
        let report = world.report.unwrap();
        assert_eq!((report.outcome, report.no_restart, report.at), (NodeOutcome::Completed, None, at));
        assert_eq!(world.notes.len(), said, "{:?}", world.notes);
    }
}

#[test]
fn a_server_that_cannot_be_killed_is_left_behind_by_a_done_job() {
    let report = run(&restarting(with(&[Server, Main], plain(&[&[UNKILLABLE, GOOD]], &[]))));
    assert_eq!((report.outcome, report.no_restart), (NodeOutcome::Completed, None));
    assert_eq!((report.ranks[0].abandoned, report.at), (true, 100 * MS + GRACE + KILL_PATIENCE));
}

#[test]
fn the_first_run_alone_and_in_order() {
    let takes = |lives| Manners { lives: Some(lives), ..GOOD };
    let manners = [takes(30), takes(1_000), takes(10_000), takes(200)];
    let report = run(&with(&[Main, First, Server, First], plain(&[&manners], &[])));
    let started: Vec<_> = report.ranks.iter().map(|rank| rank.started_at.unwrap().as_millis()).collect();
    assert_eq!(started, [1_200, 0, 1_200, 1_000]);
    assert_eq!((report.outcome, report.at), (NodeOutcome::Completed, (1_230 + 5) * MS));
}

#[test]
fn a_first_process_that_fails_is_to_blame_and_no_rank_was_started() {
    let report = run(&with(&[First, First, Main], plain(&[&[GOOD, FAILS, GOOD]], &[])));
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(1, Exit::Code(3))));
    assert_eq!((report.ranks[2].started_at, report.victims()), (None, vec![]));
}

#[test]
fn a_restart_skips_a_first_process_that_has_exited_successfully() {
    let attempts = [&[GOOD, FAILS, GOOD][..], &[FAILS, GOOD, FAILS], &[FAILS, FAILS, GOOD]];
    let report = run(&restarting(with(&[First, First, Main], plain(&attempts, &[]))));
    assert_eq!((report.outcome, report.restarts), (NodeOutcome::Completed, 2));
    let culprits = report.attempts.iter().filter_map(|a| a.failure).map(|failed| failed.local_rank);
    assert_eq!(culprits.collect::<Vec<_>>(), [1, 2]);
    assert_eq!(report.ranks[0].started_at, Some(Duration::ZERO));
    assert!(report.ranks[1].started_at.unwrap() < report.attempts[1].ended);
}

#[test]
fn a_stop_while_a_first_runs_is_no_end_of_it() {
    let well = Manners { lives: None, on_term: Some((1, Exit::Code(0))), ..GOOD };
    let job = with(&[First, Main], plain(&[&[well, GOOD]], &[(500, Happening::Stop)]));
    let report = run(&restarting(job));
    assert_eq!((report.outcome, report.at), (NodeOutcome::Stopped { signal: libc::SIGINT }, 501 * MS));
    assert_eq!((report.no_restart, report.ranks[1].started_at), (None::<NoRestart>, None));
}
