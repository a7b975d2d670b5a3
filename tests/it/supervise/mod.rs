//! The invariants of supervision, over random histories in virtual time.

mod aborts;
mod groups;
mod lifecycle;
mod stragglers;
mod user_requests;
mod world;

use proptest::prelude::*;
use rlaunch::model::Exit;
use rlaunch::supervise::{
    AbortReason, ChildId, Effect, FailedRank, KILL_PATIENCE, Lifecycle, MainProcess, NoRestart, NodeOutcome,
    NodeReport, ProgressNote, Recipients, RestartBackoff, RestartPolicy, SupervisionPolicy, Supervisor,
    SupervisorEvent,
};
use std::time::Duration;
use world::{GOOD, Happening, Helpers, Job, Manners, World};

const GRACE: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);

fn an_exit() -> impl Strategy<Value = Exit> {
    let bad = [Exit::Code(1), Exit::Code(3), Exit::Signal(9), Exit::Signal(11), Exit::Lost];
    prop_oneof![Just(Exit::Code(0)), prop::sample::select(bad.to_vec())]
}

/// Up to `most` milliseconds; often whole seconds, so that much comes at the same time.
fn moment(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![0..most, (0..=most / 1000).prop_map(|seconds| seconds * 1000), (0..=most / 5000).prop_map(|n| n * 5000)]
}

fn manners() -> impl Strategy<Value = Manners> {
    let starting = (prop::bool::weighted(0.9), prop_oneof![4 => Just(0), 1 => moment(20_000)]);
    let lives = prop::option::weighted(0.7, moment(20_000));
    let on_term = prop::option::weighted(0.7, (moment(15_000), prop_oneof![Just(Exit::Signal(15)), an_exit()]));
    let on_kill = prop::option::weighted(0.9, prop_oneof![3 => Just(0), 1 => moment(3_000)]);
    let late = prop::option::of(prop::sample::select(vec![Exit::Signal(9), Exit::Signal(9), Exit::Code(0)]));
    let handles = prop::option::of(prop::sample::select(vec![MainProcess::Program, MainProcess::Shell]));
    let helpers =
        prop_oneof![2 => Just(Helpers::None), 2 => moment(9_000).prop_map(Helpers::Leave), 1 => Just(Helpers::Stay)];
    (starting, lives, an_exit(), on_term, on_kill, late, handles, helpers).prop_map(
        |((starts, start_takes), lives, exit, on_term, on_kill, dies_frozen, handles, helpers)| Manners {
            starts,
            start_takes,
            lives,
            exit,
            on_term,
            on_kill,
            handles,
            helpers,
            dies_frozen,
        },
    )
}

fn statuses() -> impl Strategy<Value = std::collections::BTreeSet<i32>> {
    prop::collection::btree_set(prop::sample::select(vec![1, 3, 137, 139, 255]), 0..4)
}

fn policy() -> impl Strategy<Value = SupervisionPolicy> {
    let millis = |most: u64| (0..most).prop_map(Duration::from_millis);
    let lists = (prop::option::weighted(0.3, statuses()), prop_oneof![2 => Just([].into()), 1 => statuses()]);
    let backoff =
        (millis(3_000), millis(9_000), any::<u64>()).prop_map(|(base, max, seed)| RestartBackoff { base, max, seed });
    let limits = (0..6u32, prop::option::weighted(0.3, millis(30_000)), prop::option::weighted(0.4, 1..5u32));
    let timeouts = (prop::option::weighted(0.5, millis(5_000)), prop::option::weighted(0.2, millis(9_000)));
    let ends = (prop::option::weighted(0.3, millis(40_000)), timeouts);
    (ends, lists, backoff, limits, any::<bool>()).prop_map(|(ends, lists, backoff, limits, repeats_signal)| {
        let (stop_by, (server_timeout, straggler_timeout)) = ends;
        let ((restart_on, never_restart_on), (max_restart, window, same_failure_limit)) = (lists, limits);
        let restart = RestartPolicy { max_restart, restart_on, never_restart_on, backoff, window, same_failure_limit };
        let policy = SupervisionPolicy::with_grace(GRACE);
        SupervisionPolicy { stop_by, server_timeout, straggler_timeout, restart, repeats_signal, ..policy }
    })
}

fn happenings() -> impl Strategy<Value = Vec<(u64, Happening)>> {
    use Happening::{Abort, CutOff, HostLost, Notify, OtherStop, Restart, Resume, Stop, Suspend};
    let one =
        vec![Stop, Stop, OtherStop, OtherStop, Notify, Suspend, Suspend, Suspend, Resume, Resume, CutOff, HostLost];
    let restart = prop::option::of(moment(12_000)).prop_map(Restart);
    let one = prop_oneof![6 => prop::sample::select(one), 1 => restart, 2 => any::<u8>().prop_map(Abort)];
    let many = prop::collection::vec((prop_oneof![moment(60_000), moment(20_000)], one), 0..7);
    prop_oneof![2 => many, 1 => Just(Vec::new())]
}

/// Ranks that have nothing to do with each other, or that are struck down together, as by a lost peer.
fn attempt(ranks: usize) -> impl Strategy<Value = Vec<Manners>> {
    let blow = prop::option::of((moment(20_000), prop::collection::vec(prop::bool::weighted(0.7), ranks)));
    (prop::collection::vec(manners(), ranks), blow).prop_map(|(mut all, blow)| {
        let Some((at, hit)) = blow else { return all };
        for (manners, hit) in all.iter_mut().zip(hit) {
            (manners.starts, manners.start_takes) = (true, 0);
            manners.lives = if hit { Some(at) } else { manners.lives };
        }
        all
    })
}

/// Attempts that differ, or two that come again and again.
fn attempts(ranks: usize) -> impl Strategy<Value = Vec<Vec<Manners>>> {
    let one = move || attempt(ranks);
    let two = (one(), one(), prop::collection::vec(prop::bool::weighted(0.7), 6));
    let again =
        two.prop_map(|(a, b, which)| which.iter().map(|is_a| if *is_a { a.clone() } else { b.clone() }).collect());
    prop_oneof![prop::collection::vec(one(), 1..5), again]
}

fn parts() -> impl Strategy<Value = Vec<Lifecycle>> {
    use Lifecycle::{AwaitedServer, First, Main, Server};
    let kinds = vec![First, Main, Main, Server, Server, AwaitedServer];
    let mixed = prop::collection::vec(prop::sample::select(kinds), 0..6);
    let servers =
        (1..4usize, 1..4usize).prop_map(|(mains, servers)| [vec![Main; mains], vec![Server; servers]].concat());
    prop_oneof![(0..6usize).prop_map(|ranks| vec![Main; ranks]), mixed, servers]
}

fn job() -> impl Strategy<Value = Job> {
    let manners = parts().prop_flat_map(|parts| (Just(parts.clone()), attempts(parts.len())));
    let whole = (policy(), manners, prop::bool::weighted(0.2), moment(9_000), happenings());
    // Often something comes with the first end, or soon after, while the others are on their way; or with
    // the end of the work, while servers are on theirs.
    let soon = prop_oneof![1 => Just(0), 2 => 0..3_000u64];
    use Happening::{CutOff, HostLost, Stop, Suspend};
    let what = vec![Suspend, Suspend, Suspend, Stop, CutOff, HostLost];
    let soon = prop::collection::vec((soon, prop::sample::select(what)), 0..3);
    let order = (soon, any::<bool>(), any::<u64>(), prop::bool::weighted(0.5));
    (whole, order).prop_map(
        |((policy, (mut parts, mut manners), adopted, begins, mut happenings), (soon, happens_first, mix, smooth))| {
            let adopted = adopted && !parts.is_empty();
            if adopted {
                parts.fill(Lifecycle::Main);
            }
            let mut end = manners[0].iter().filter_map(|m| m.lives).min();
            if smooth && parts.contains(&Lifecycle::Server) && parts.contains(&Lifecycle::Main) {
                end = manners.iter_mut().map(|ranks| lifecycle::smooth(&parts, ranks)).next();
                happenings.retain(|(at, _)| end.is_some_and(|end| *at > begins + end));
            }
            happenings.extend(
                end.into_iter().flat_map(|end| soon.iter().map(move |&(after, what)| (begins + end + after, what))),
            );
            happenings.sort_by_key(|(at, _)| *at);
            Job { policy, parts, adopted, begins, manners, happenings, happens_first, mix }
        },
    )
}

/// 3000 histories, or as many as PROPTEST_CASES says.
fn config() -> ProptestConfig {
    let set = std::env::var_os("PROPTEST_CASES").is_some();
    let config = ProptestConfig::default();
    if set { config } else { ProptestConfig { cases: 3000, ..config } }
}

proptest! {
    #![proptest_config(config())]

    /// The invariants are in `world/checks.rs`, where each effect is checked as it comes.
    #[test]
    fn every_history_obeys(job in job()) {
        let world = World::live(&job);
        let report = world.report.clone().unwrap();
        let well = |rank: usize| {
            let end = &report.ranks[rank];
            world.serves(rank) || end.exit == Some(Exit::Code(0)) && !end.signalled
        };
        let completed = report.outcome == NodeOutcome::Completed;
        prop_assert_eq!(completed, (0..job.parts.len()).all(well), "completed if, and only if, the work was done");
        let from_outside = matches!(report.outcome, NodeOutcome::Stopped { .. } | NodeOutcome::LauncherKilled);
        prop_assert!(!from_outside || world.stop_signals > 0 || world.host_lost || report.restart_requested);
        if let NodeOutcome::Failed(FailedRank { local_rank: culprit, exit, decisive }) = report.outcome {
            let ignored = |n: &ProgressNote| matches!(n, ProgressNote::AbortIgnored { living } if living.contains(&culprit));
            let is_stuck = exit == Exit::Signal(9) && world.notes.iter().any(ignored);
            prop_assert!(is_stuck || report.ranks[culprit].exit == Some(exit));
            prop_assert!(
                is_stuck || decisive == exit || report.ranks[culprit].signalled,
                "the exit of another rank decides only for a culprit that was signalled"
            );
        }
    }

    /// A stop takes no longer than the grace and the patience, whatever the ranks do.
    #[test]
    fn every_stop_ends_in_time(manners in prop::collection::vec(manners(), 1..6), at in 0..9_000u64, host in any::<bool>()) {
        let manners: Vec<_> = manners.into_iter().map(|m| Manners { starts: true, start_takes: 0, lives: None, ..m }).collect();
        let what = if host { Happening::HostLost } else { Happening::Stop };
        let job = plain(&[&manners], &[(at, what)]);
        let took = run(&job).at - MS * at as u32;
        prop_assert!(took <= KILL_PATIENCE + if host { Duration::ZERO } else { GRACE }, "{took:?}");
    }
}

/// An invariant that no history exercises always holds.
#[test]
fn the_histories_cover_all_cases() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = std::collections::BTreeMap::new();
    let mut note = |what: &'static str, so: bool| *seen.entry(what).or_insert(0) += u32::from(so);
    for _ in 0..5000 {
        let job = job().new_tree(&mut runner).unwrap().current();
        let world = World::live(&job);
        lifecycle::note_cases(&job, &world, &mut note);
        groups::note_cases(&world, &mut note);
        let World { together, notes, report, waits_asleep, cut_off, .. } = world;
        let any = |what: &dyn Fn(&world::Together) -> bool| together.iter().any(what);
        note("several ends", any(&|t| t.ended > 1));
        note("several failures", any(&|t| t.failed > 1));
        note("codes and signals", any(&|t| t.failed > t.by_signal && t.by_signal > 0));
        note("failures and good ends", any(&|t| t.failed > 0 && t.ended > t.failed + t.signalled));
        note("several that were signalled", any(&|t| t.signalled > 1));
        note("failures among old news", any(&|t| t.failed > 1 && t.no_news > 0));
        note("failures among those of older attempts", any(&|t| t.failed > 1 && t.no_news > 0 && t.again));
        let stops = |at| job.happenings.contains(&(at, Happening::Stop));
        let at_a_stop = any(&|t| t.ended > 1 && stops(t.at.as_millis() as u64));
        note("several ends just before a stop", at_a_stop && !job.happens_first);
        note("several ends just after a stop", at_a_stop && job.happens_first);
        note("a wait that begins asleep", waits_asleep);
        let asked = notes.iter().any(|n| matches!(n, ProgressNote::Stopping { living, .. } if !living.is_empty()));
        note("a signal that is passed on", asked && job.policy.repeats_signal);
        note("a node that is cut off", cut_off);
        note("a restart that a user asks for", !report.as_ref().unwrap().attempts.iter().all(|a| a.failure.is_some()));
        let asked = |n: &ProgressNote| matches!(n, ProgressNote::RestartRequested { grace, .. } if *grace < GRACE);
        note("such a restart with a shorter grace", notes.iter().any(asked));
        note("such a restart that does not come", report.as_ref().unwrap().restart_requested);
        let is_straggler = |reason: &AbortReason| matches!(reason, AbortReason::Straggler { .. });
        let aborted = |n: &ProgressNote| matches!(n, ProgressNote::Aborting { reason, .. } if is_straggler(reason));
        note("stragglers", notes.iter().any(aborted));
        let aborted = |n: &ProgressNote| matches!(n, ProgressNote::Aborting { reason, .. } if !is_straggler(reason));
        note("ranks that are aborted", notes.iter().any(aborted));
        let first_abort = notes.iter().position(aborted).unwrap_or(notes.len());
        note("some that are aborted later", notes[first_abort..].iter().filter(|n| aborted(n)).count() > 1);
        note("an abort without an end", notes.iter().any(|n| matches!(n, ProgressNote::AbortIgnored { .. })));
        note("a second signal", notes.iter().any(|n| matches!(n, ProgressNote::Forced { .. })));
        note("a rank that cannot be killed", notes.iter().any(|n| matches!(n, ProgressNote::Unkillable { .. })));
        let report = report.unwrap();
        note("several restarts", report.restarts > 1);
        let ends: Vec<_> = report.attempts.iter().filter_map(|a| a.failure).collect();
        note("a failure again, and then another", ends.windows(3).any(|w| w[0] == w[1] && w[1] != w[2]));
        note("more restarts than count at once", report.restarts > job.policy.restart.max_restart);
        for (what, why) in [
            ("never", NoRestart::Never(1)),
            ("not listed", NoRestart::NotListed(1)),
            ("the same failure", NoRestart::SameFailure(2)),
            ("used up", NoRestart::UsedUp(1)),
            ("not started", NoRestart::StartFailed),
            ("stopped", NoRestart::Stopped),
            ("lost", NoRestart::LauncherKilled),
            ("unkillable", NoRestart::Unkillable),
        ] {
            note(what, report.no_restart.is_some_and(|w| std::mem::discriminant(&w) == std::mem::discriminant(&why)));
        }
    }
    assert!(seen.values().all(|times| *times >= 5), "{seen:#?}");
}

/// A job without restarts whose attempts have these manners.
fn plain(manners: &[&[Manners]], happenings: &[(u64, Happening)]) -> Job {
    Job {
        policy: SupervisionPolicy::with_grace(GRACE),
        parts: vec![Lifecycle::Main; manners[0].len()],
        adopted: false,
        begins: 0,
        manners: manners.iter().map(|ranks| ranks.to_vec()).collect(),
        happenings: happenings.to_vec(),
        happens_first: false,
        mix: 0,
    }
}

fn run(job: &Job) -> NodeReport {
    World::live(job).report.unwrap()
}

/// With up to three restarts, a second apart.
fn restarting(job: Job) -> Job {
    let second = Duration::from_secs(1);
    let backoff = RestartBackoff { base: second, max: second, seed: 1 };
    let restart = RestartPolicy { max_restart: 3, backoff, ..RestartPolicy::default() };
    Job { policy: SupervisionPolicy { restart, ..job.policy }, ..job }
}

const STUBBORN: Manners = Manners { lives: None, on_term: None, ..GOOD };
const UNKILLABLE: Manners = Manners { on_kill: None, ..STUBBORN };
const FAILS: Manners = Manners { lives: Some(5), exit: Exit::Code(3), ..GOOD };

#[test]
fn a_failure_stops_the_others_and_is_the_culprit_even_if_a_signal_follows() {
    let report = run(&plain(&[&[STUBBORN, FAILS]], &[(1_000, Happening::Stop)]));
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(1, Exit::Code(3))));
    assert_eq!(report.victims(), [0]);
    assert!(report.ranks[0].killed && !report.ranks[1].killed);
    assert_eq!(report.at, MS * 5 + GRACE, "the second reason does not lengthen the grace");
}

#[test]
fn a_rank_that_exits_successfully_when_signalled_is_no_victim() {
    let obliging = Manners { lives: None, on_term: Some((1, Exit::Code(0))), ..GOOD };
    let report = run(&plain(&[&[obliging, FAILS, GOOD]], &[]));
    assert_eq!(report.victims(), [2]);
}

#[test]
fn no_ranks_is_done_at_once() {
    let report = run(&plain(&[&[]], &[]));
    assert_eq!((report.outcome, report.at), (NodeOutcome::Completed, Duration::ZERO));
}

#[test]
fn a_failed_job_is_restarted_until_it_succeeds() {
    let report = run(&restarting(plain(&[&[GOOD, FAILS], &[FAILS, GOOD], &[GOOD, GOOD]], &[])));
    assert_eq!((report.outcome, report.restarts, report.no_restart), (NodeOutcome::Completed, 2, None));
    assert_eq!(
        report.attempts.iter().filter_map(|a| a.failure).map(|failed| failed.local_rank).collect::<Vec<_>>(),
        [1, 0]
    );
}

#[test]
fn restarts_are_used_up() {
    let report = run(&restarting(plain(&[&[FAILS][..]; 9], &[])));
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(0, Exit::Code(3))));
    assert_eq!((report.restarts, report.no_restart), (3, Some(NoRestart::UsedUp(3))));
}

#[test]
fn a_stop_while_a_restart_is_waited_for_ends_the_job_at_once() {
    let job = restarting(plain(&[&[FAILS]], &[(100, Happening::Stop)]));
    let world = World::live(&job);
    let report = world.report.unwrap();
    assert_eq!((report.outcome, report.restarts), (NodeOutcome::Stopped { signal: libc::SIGINT }, 0));
    assert_eq!((report.no_restart, report.at), (Some(NoRestart::Stopped), 100 * MS));
}

#[test]
fn a_stop_while_a_failure_is_cleaned_up_or_killed_cancels_the_restart() {
    let late = Manners { on_kill: Some(1_000), ..STUBBORN };
    for at in [1_000, 10_100] {
        let report = run(&restarting(plain(&[&[late.clone(), FAILS]], &[(at, Happening::Stop)])));
        assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(1, Exit::Code(3))));
        assert_eq!((report.no_restart, report.at), (Some(NoRestart::Stopped), GRACE + 1_005 * MS));
    }
}

#[test]
fn a_rank_that_cannot_be_killed_is_named_and_left_and_the_job_is_not_restarted() {
    let job = restarting(plain(&[&[UNKILLABLE, FAILS]], &[]));
    let world = World::live(&job);
    let report = world.report.unwrap();
    assert_eq!(report.at, 5 * MS + GRACE + KILL_PATIENCE);
    assert_eq!(report.no_restart, Some(NoRestart::Unkillable));
    assert!(report.ranks[0].abandoned && report.ranks[0].exit.is_none());
    assert!(world.notes.contains(&ProgressNote::Unkillable { living: vec![0] }));
}

#[test]
fn timers_go_on_with_their_remaining_time() {
    let (suspend, resume) = (Happening::Suspend, Happening::Resume);
    // The grace: 5 s before and after.
    let night = [(1_000, Happening::Stop), (6_000, suspend), (606_000, resume)];
    assert_eq!(run(&plain(&[&[STUBBORN]], &night)).at, 611_000 * MS);
    // The patience: 1.5 s before, 0.5 s after.
    let night = [(0, Happening::HostLost), (1_500, suspend), (90_000, resume)];
    assert_eq!(run(&plain(&[&[UNKILLABLE]], &night)).at, 90_500 * MS);
    // The wait for a restart.
    let calm = run(&restarting(plain(&[&[FAILS]], &[])));
    let night = run(&restarting(plain(&[&[FAILS]], &[(100, suspend), (50_100, resume)])));
    assert_eq!(night.at, calm.at + 50_000 * MS);
    // One that begins while all sleep: the last of the signalled ranks is killed by another process.
    let restless = Manners { dies_frozen: Some(Exit::Signal(9)), ..STUBBORN };
    let job = restarting(plain(&[&[restless, FAILS], &[GOOD, GOOD]], &[(1_000, suspend), (50_000, resume)]));
    let wait = job.policy.restart.backoff.delay(1, 1);
    assert_eq!(run(&job).at, 50_000 * MS + wait + 100 * MS);
}

#[test]
fn the_schedulers_deadline_shortens_the_grace_and_does_not_sleep() {
    let until = |stop_by: u64, happenings: &[_]| {
        let job = plain(&[&[STUBBORN]], happenings);
        run(&Job { policy: SupervisionPolicy { stop_by: Some(MS * stop_by as u32), ..job.policy }, ..job }).at
    };
    let stop = (1_000, Happening::Stop);
    assert_eq!(until(4_000, &[stop]), 4_000 * MS);
    assert_eq!(until(500, &[stop]), 1_000 * MS, "never before now");
    assert_eq!(until(50_000, &[stop]), 11_000 * MS);
    let slept = |resume| [stop, (2_000, Happening::Suspend), (resume, Happening::Resume)];
    assert_eq!(until(9_000, &slept(6_000)), 9_000 * MS);
    assert_eq!(until(9_000, &slept(60_000)), 60_000 * MS);
}

#[test]
fn a_lost_host_is_no_failure_of_a_rank_unless_one_came_first() {
    let lost = [(1_000, Happening::HostLost)];
    let report = run(&restarting(plain(&[&[STUBBORN, GOOD]], &lost)));
    assert_eq!((report.outcome, report.no_restart, report.at), (NodeOutcome::LauncherKilled, None, 1_000 * MS));
    let report = run(&restarting(plain(&[&[STUBBORN, FAILS]], &lost)));
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(1, Exit::Code(3))));
    assert_eq!((report.no_restart, report.at), (Some(NoRestart::LauncherKilled), 1_000 * MS));
}

#[test]
fn ranks_that_a_signal_stops_keep_their_time_when_the_host_is_lost() {
    let lost_after = |before: Happening| [(1_000, before), (1_500, Happening::HostLost)];
    let stop = lost_after(Happening::Stop);
    let report = run(&restarting(plain(&[&[STUBBORN, STUBBORN]], &stop)));
    assert_eq!((report.outcome, report.at), (NodeOutcome::Stopped { signal: libc::SIGINT }, 11_000 * MS));
    let again = [stop[0], stop[1], (2_000, Happening::HostLost), (3_000, Happening::Stop)];
    assert_eq!(run(&plain(&[&[STUBBORN]], &again)).at, 3_000 * MS, "the second signal");
    let slept = [stop[0], (1_200, Happening::Suspend), (601_200, Happening::HostLost)];
    assert_eq!(run(&plain(&[&[STUBBORN]], &slept)).at, 611_000 * MS, "no rank that sleeps can save");
    // A stop for another reason, in which a signal came.
    let after_failure = [(2_000, Happening::Stop), (3_000, Happening::HostLost)];
    let report = run(&restarting(plain(&[&[STUBBORN, FAILS]], &after_failure)));
    assert_eq!((report.at, report.no_restart), (5 * MS + GRACE, Some(NoRestart::LauncherKilled)));
    let report = run(&restarting(plain(&[&[STUBBORN]], &lost_after(Happening::Restart(None)))));
    assert_eq!((report.outcome, report.at), (NodeOutcome::LauncherKilled, 1_500 * MS), "no signal");
}

#[test]
fn a_node_that_the_others_do_not_wait_for_has_no_grace_period() {
    let cut_off = |at| (at, Happening::CutOff);
    let report = run(&plain(&[&[STUBBORN, GOOD]], &[cut_off(1_000)]));
    assert_eq!((report.outcome, report.at), (NodeOutcome::Regrouped, 1_000 * MS));
    let report = run(&plain(&[&[STUBBORN, STUBBORN]], &[(1_000, Happening::Stop), cut_off(2_000)]));
    assert_eq!((report.outcome, report.at), (NodeOutcome::Stopped { signal: libc::SIGINT }, 2_000 * MS));
    let report = run(&restarting(plain(&[&[STUBBORN, FAILS]], &[cut_off(1_000)])));
    assert_eq!(
        (report.outcome, report.no_restart),
        (NodeOutcome::Failed(FailedRank::ended_first(1, Exit::Code(3))), None)
    );
    let suspended = [(500, Happening::Suspend), cut_off(1_000)];
    assert_eq!(run(&plain(&[&[STUBBORN]], &suspended)).at, 1_000 * MS);
}

#[test]
fn of_ranks_that_ended_together_the_driver_names_the_culprit_and_none_is_signalled() {
    let id = |local_rank| ChildId { attempt: 0, local_rank };
    let mut machine = Supervisor::adopting(4, SupervisionPolicy::with_grace(Duration::from_secs(1)), Duration::ZERO);
    let mut effects = Vec::new();
    let ended = vec![(id(0), Exit::Code(0)), (id(2), Exit::Signal(9)), (id(1), Exit::Code(1))];
    machine.handle(Duration::from_secs(1), SupervisorEvent::Exited(ended), &mut effects);
    // Only the rank that lives is signalled.
    assert_eq!(effects, [Effect::Kill { child: id(3), signal: libc::SIGTERM, to: Recipients::MainProcessFirst }]);
    effects.clear();
    machine.handle(Duration::from_secs(2), SupervisorEvent::Exited(vec![(id(3), Exit::Signal(15))]), &mut effects);
    assert_eq!(effects, [Effect::Judge(2, Exit::Signal(9))]);
    let culprit = FailedRank { local_rank: 1, exit: Exit::Code(1), decisive: Exit::Code(1) };
    machine.handle(Duration::from_secs(2), SupervisorEvent::Judged(culprit), &mut effects);
    let Some(Effect::Finish(report)) = effects.last() else { panic!("{effects:?}") };
    assert_eq!(report.outcome, NodeOutcome::Failed(culprit));
    assert_eq!(report.victims(), [3]);
    effects.clear();
    machine.handle(Duration::from_secs(3), SupervisorEvent::Exited(Vec::new()), &mut effects);
    machine.handle(Duration::from_secs(3), SupervisorEvent::Exited(vec![(id(0), Exit::Code(1))]), &mut effects);
    assert_eq!(effects, [], "no news is none");
}

#[test]
fn outdated_events_during_a_restart_delay_change_nothing() {
    let restart = RestartPolicy { max_restart: 5, ..RestartPolicy::default() };
    let backoff = RestartBackoff { base: Duration::from_secs(9), max: Duration::from_secs(9), seed: 0 };
    let policy = SupervisionPolicy {
        restart: RestartPolicy { backoff, ..restart },
        ..SupervisionPolicy::with_grace(Duration::ZERO)
    };
    let mut machine = Supervisor::adopting(1, policy, Duration::ZERO);
    let (id, mut effects) = (ChildId { attempt: 0, local_rank: 0 }, Vec::new());
    machine.handle(Duration::ZERO, SupervisorEvent::Exited(vec![(id, Exit::Code(1))]), &mut effects);
    let judged = || SupervisorEvent::Judged(FailedRank::ended_first(0, Exit::Code(1)));
    machine.handle(Duration::ZERO, judged(), &mut effects);
    let due = machine.next_deadline();
    assert!(due.is_some());
    effects.clear();
    machine.handle(Duration::from_secs(1), SupervisorEvent::Exited(vec![(id, Exit::Code(1))]), &mut effects);
    machine.handle(Duration::from_secs(1), SupervisorEvent::Exited(Vec::new()), &mut effects);
    machine.handle(Duration::from_secs(1), judged(), &mut effects);
    assert_eq!((effects, machine.next_deadline()), (vec![], due));
}
