//! Single cases: each rule for failures and losses, growing and shrinking, and the ends of leaders.

use super::lease::Way;
use super::node::Exit;
use super::scenario::{Happening, Life, Story};
use super::states::state;
use super::world::{World, time};
use Life::{Fails, Well};
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{
    Coordinator, Departure, JobEnd, JobPhase, JobRules, NodeInfo, NodeRecord, NodeStatus, NodeStop, OnFailure,
    OnNodeLoss, RankFailure, RoundMember, RoundStopCause,
};

const LONG: &[Life] = &[Well(100_000)];

fn rules(min: usize, max: usize, on_failure: OnFailure, on_loss: OnNodeLoss) -> JobRules {
    JobRules {
        frontend: "paddle".to_owned(),
        min,
        max,
        last_call_ms: 2_000,
        join_ms: 20_000,
        on_failure,
        on_loss,
        ..JobRules::default()
    }
}

pub(super) fn level_1(min: usize, max: usize, restarts: u32) -> JobRules {
    JobRules { restarts, ..rules(min, max, OnFailure::Restart, OnNodeLoss::Regroup) }
}

/// The members of each round, by their nodes' numbers.
fn rounds(world: &World) -> Vec<Vec<usize>> {
    let number = |member: &RoundMember| member.id[2..].parse().unwrap();
    world.judge.lists.values().map(|list| list.iter().map(number).collect()).collect()
}

fn ends(world: &World) -> Vec<JobEnd> {
    let end = |exit: &Exit| match exit {
        Exit::End(end) => Some(end.clone()),
        _ => None,
    };
    world.exits().into_iter().filter_map(end).collect()
}

fn kill(node: usize) -> Happening {
    Happening::Kill { node, seen: false }
}

#[test]
fn a_job_begins_once_enough_are_there_and_ends_when_all_are_done() {
    let story =
        Story::calm(rules(2, 2, OnFailure::End, OnNodeLoss::End), &[&[Well(10)], &[Well(5_000)]]).comes(1, 3_000);
    let world = World::live(&story);
    assert_eq!(rounds(&world), [[0, 1]]);
    assert_eq!(ends(&world), [JobEnd::Completed, JobEnd::Completed]);
    assert_eq!(world.over, 8_000);
}

#[test]
fn level_minus_1_ends_all_by_the_first_failure_or_loss() {
    let story = Story::calm(rules(2, 2, OnFailure::End, OnNodeLoss::End), &[&[Fails(1_000)], LONG]);
    let ended = ends(&World::live(&story));
    assert!(matches!(&ended[..], [JobEnd::Failed { failure, no_restart: None }, other]
        if failure.node == 0 && !failure.lost_peer && *other == ended[0]));

    let story = Story::calm(rules(2, 2, OnFailure::End, OnNodeLoss::End), &[LONG, LONG]).with(1_000, kill(1));
    let world = World::live(&story);
    // Its peer failed long before the lease ran out; it is not to blame.
    assert!(matches!(&ends(&world)[..], [JobEnd::Lost { lost }] if lost.node == 1 && lost.age_ms == 5_000));
    assert!(world.over <= 10_000, "{}", world.over);
}

#[test]
fn level_0_holds_until_another_is_there_in_its_place() {
    let rules = rules(2, 2, OnFailure::Hold, OnNodeLoss::Regroup);
    let story = Story::calm(rules.clone(), &[&[Well(9_000)], &[Fails(1_000)], &[Well(9_000)]]).comes(2, 10_000);
    let world = World::live(&story);
    assert_eq!(rounds(&world), [[0, 1], [0, 2]]);
    assert!(matches!(&world.nodes[1].exit, Some(Exit::End(JobEnd::Failed { failure, .. })) if failure.node == 1));
    assert_eq!([&world.nodes[0].exit, &world.nodes[2].exit], [&Some(Exit::End(JobEnd::Completed)); 2]);

    let story = Story::calm(rules, &[LONG, &[Fails(1_000)]]);
    let world = World::live(&story);
    // The peer's ranks felt it and failed too; it stays and waits, for so long.
    assert!(matches!(&world.nodes[0].exit, Some(Exit::End(JobEnd::TooFew { waited_ms: 20_000, .. }))));
}

#[test]
fn level_1_starts_again_while_there_are_restarts_left() {
    let failing = Story::calm(level_1(2, 2, 2), &[LONG, &[Fails(1_000)]]);
    let world = World::live(&failing);
    assert_eq!(rounds(&world).len(), 3);
    let used_up = "2 of 2 restarts used".to_owned();
    assert!(matches!(&ends(&world)[0], JobEnd::Failed { failure, no_restart }
        if !failure.lost_peer && *no_restart == Some(used_up)));

    let story = Story::calm(level_1(2, 2, 1), &[&[Well(5_000)], &[Fails(1_000), Well(5_000)]]);
    assert_eq!(ends(&World::live(&story)), [JobEnd::Completed, JobEnd::Completed]);
}

#[test]
fn a_lost_node_uses_up_no_restart_though_its_peers_fail_before_it_is_missed() {
    let story = Story::calm(level_1(1, 2, 0), &[&[Well(9_000)], LONG]).with(1_000, kill(1));
    let world = World::live(&story);
    assert_eq!(rounds(&world), [vec![0, 1], vec![0]]);
    assert_eq!(ends(&world), [JobEnd::Completed]);
    assert!(world.judge.states.iter().all(|state| state.failures == 0));
}

#[test]
fn a_job_grows_from_2_to_4_and_shrinks_again() {
    let story = Story::calm(level_1(2, 4, 0), &[&[Well(60_000)][..]; 4]).comes(2, 10_000).comes(3, 10_500);
    let story = story.with(30_000, kill(0)).with(30_000, kill(3));
    let world = World::live(&story);
    assert_eq!(rounds(&world), [vec![0, 1], vec![0, 1, 2, 3], vec![2, 1]], "1 keeps its number");
    assert_eq!(ends(&world), [JobEnd::Completed, JobEnd::Completed]);
    assert_eq!(world.phases(|phase| matches!(phase, JobPhase::Stopping { why: RoundStopCause::More { .. }, .. })), 1);
}

#[test]
fn a_surplus_node_waits_and_receives_the_end_or_replaces_a_lost_node() {
    let story = Story::calm(level_1(2, 2, 0), &[&[Well(9_000)][..]; 3]).comes(2, 1_000);
    let world = World::live(&story);
    assert_eq!(rounds(&world), [[0, 1]]);
    assert_eq!(ends(&world), [JobEnd::Completed, JobEnd::Completed, JobEnd::Completed]);

    let story = story.clone().with(3_000, kill(0));
    let world = World::live(&story);
    assert_eq!(rounds(&world), [[0, 1], [2, 1]]);
    assert_eq!(ends(&world), [JobEnd::Completed, JobEnd::Completed]);
}

#[test]
fn a_node_that_comes_after_the_end_begins_another_job() {
    let rules = rules(1, 1, OnFailure::End, OnNodeLoss::End);
    let story = Story::calm(rules, &[&[Fails(1_000)], &[Well(10)]]).comes(1, 9_000);
    let world = World::live(&story);
    assert!(matches!(world.nodes[0].exit, Some(Exit::End(JobEnd::Failed { .. }))));
    assert_eq!(world.nodes[1].exit, Some(Exit::End(JobEnd::Completed)));
    assert_eq!(rounds(&world), [[0], [1]]);
}

/// As an earlier job of the name left it that was killed with all its nodes, or that ended and was not tidied up.
#[test]
fn new_launchers_that_find_an_earlier_job_begin_anew() {
    let offer = NodeInfo { host: "old".into(), ..NodeInfo::default() };
    let members = vec![RoundMember { id: "id99".into(), info: offer }];
    let why = RoundStopCause::More { hosts: Vec::new() };
    let failure = RankFailure::default();
    let phases = [
        JobPhase::Gathering,
        JobPhase::Running,
        JobPhase::Stopping { why, end: None },
        JobPhase::Stopping { why: RoundStopCause::Failed { failure }, end: Some(JobEnd::Completed) },
        JobPhase::Ended { end: JobEnd::Completed },
    ];
    for phase in phases {
        let mut state = Coordinator::new(time(0)).state().clone();
        (state.serial, state.round, state.failures, state.phase) = (9, 3, 2, phase);
        let mut story = Story::calm(level_1(2, 2, 2), &[&[Well(1_000)], &[Fails(10), Fails(10), Well(1_000)]]);
        story.left = Some((state.clone(), members.clone()));
        for late in [0, 3_000] {
            let story = story.clone().comes(1, late);
            let world = World::live(&story);
            assert_eq!(ends(&world), [JobEnd::Completed, JobEnd::Completed], "{state:?}");
            assert_eq!(rounds(&world), [[0, 1]; 3], "both restarts are theirs: {state:?}");
        }
    }
}

#[test]
fn a_launcher_of_paddle_s_takes_part_in_a_fixed_job() {
    let rules = rules(2, 2, OnFailure::End, OnNodeLoss::End);
    let offer = |name: &str, is_paddle_launcher| NodeInfo {
        name: name.into(),
        rules: rules.clone(),
        is_paddle_launcher,
        ..NodeInfo::default()
    };
    let record = |offer: &NodeInfo, standing| NodeRecord { format: FORMAT, info: offer.clone(), status: standing };
    let (own, theirs) = (offer("aaaaaa", false), NodeInfo { rules: JobRules::default(), ..offer("b", true) });
    let begun = || {
        let mut machine = Coordinator::new(time(0));
        machine.record("own", record(&own, NodeStatus::Ready { seen: 0 }), time(0));
        machine.record("theirs", record(&theirs, NodeStatus::Ready { seen: 0 }), time(0));
        let (state, members) = machine.turn(time(0)).unwrap();
        assert_eq!((state.phase, members.unwrap().len()), (JobPhase::Running, 2));
        machine.record("own", record(&own, NodeStatus::runs(1)), time(1));
        assert_eq!(machine.turn(time(1)), None);
        machine
    };
    let mut machine = begun();
    machine.record("own", record(&own, NodeStatus::done(1)), time(2));
    assert_eq!(machine.turn(time(2)).unwrap().0.phase, JobPhase::Ended { end: JobEnd::Completed });

    let mut machine = begun();
    machine.gone("theirs", Departure::Lapsed { age: time(3_000) }, time(2));
    let state = machine.turn(time(2)).unwrap().0;
    assert!(matches!(&state.phase, JobPhase::Stopping { end: Some(JobEnd::Lost { lost }), .. } if lost.node == 1));
}

#[test]
fn nothing_is_kept_of_strangers_that_have_gone() {
    let offer = |min| NodeInfo { rules: rules(min, min, OnFailure::End, OnNodeLoss::End), ..NodeInfo::default() };
    let record = |min, standing| NodeRecord { format: FORMAT, info: offer(min), status: standing };
    let mut machine = Coordinator::new(time(0));
    machine.record("own", record(1, NodeStatus::Ready { seen: 0 }), time(0));
    assert_eq!(machine.turn(time(0)).unwrap().0.phase, JobPhase::Running);
    machine.record("own", record(1, NodeStatus::runs(1)), time(1));
    machine.turn(time(1));
    let before = format!("{machine:?}").len();
    for at in 0..100 {
        let id = format!("stranger{at}");
        machine.record(&id, record(9, NodeStatus::Leaves { signal: 15 }), time(2));
        machine.turn(time(2));
        machine.gone(&id, Departure::Lapsed { age: time(5) }, time(3));
        machine.turn(time(3));
    }
    let after = format!("{machine:?}");
    assert!(!after.contains("stranger") && after.len() < before + 50, "{after}");
}

/// Another coordinator takes over in each phase, from one that knows it and from one that does not.
#[test]
fn a_leader_s_end_changes_nothing_but_the_leader() {
    let lives: &[&[Life]] = &[&[Well(4_000)], &[Fails(2_000), Well(4_000)]];
    let calm = Story::calm(level_1(2, 2, 1), lives).comes(1, 1_000);
    let plain = World::live(&calm);
    assert_eq!(ends(&plain), [JobEnd::Completed, JobEnd::Completed]);
    for at in (0..plain.over).step_by(250) {
        for (after, late) in [(0, true), (0, false), (300, true), (300, false)] {
            let story = calm.clone().with(at, Happening::NewLeader { after, late });
            let world = World::live(&story);
            assert_eq!(ends(&world), ends(&plain), "at {at}");
            assert_eq!(rounds(&world), rounds(&plain), "at {at}");
            assert!(world.over <= plain.over + 400, "at {at}: {}", world.over);
        }
    }
}

#[test]
fn a_node_that_renews_its_lease_within_four_fifths_of_it_is_not_lost() {
    let mut calm = Story::calm(level_1(1, 2, 0), &[&[Well(20_000)][..]; 2]);
    calm.plans.iter_mut().for_each(|plan| plan.feels = false);
    // It has renewed its lease after 1.25 s, so its ranks end after 5.25 s.
    let cut = |lasts| calm.clone().with(2_000, Happening::Cut { node: 1, lasts, way: Way::Both });
    let (short, longer, long, for_good) = (cut(Some(2_900)), cut(Some(3_700)), cut(Some(10_000)), cut(None));
    let world = World::live(&short);
    assert_eq!(rounds(&world), [[0, 1]]);
    // It is back before it is lost, and its ranks have ended.
    let world = World::live(&longer);
    assert_eq!(rounds(&world), [[0, 1], [0, 1]]);
    // For longer: the others go on without it, until it is back.
    let world = World::live(&long);
    assert_eq!(rounds(&world), [vec![0, 1], vec![0], vec![0, 1]]);
    assert_eq!(ends(&world), [JobEnd::Completed, JobEnd::Completed]);
    let world = World::live(&for_good);
    assert_eq!(rounds(&world), [vec![0, 1], vec![0]]);
    assert_eq!(world.nodes[1].exit, Some(Exit::Alone));
}

#[test]
fn one_that_is_stopped_stops_all_but_where_nodes_may_come_and_go() {
    for early in [true, false] {
        let calm = Story::calm(level_1(1, 2, 5), &[&[Well(20_000)], LONG]);
        let story = calm.with(2_000, Happening::Signal { node: 1, early });
        let world = World::live(&story);
        assert_eq!(world.nodes[0].exit, Some(Exit::End(JobEnd::Completed)));
        assert_eq!(rounds(&world), [vec![0, 1], vec![0]]);

        let calm = Story::calm(level_1(2, 2, 5), &[LONG, LONG]);
        let story = calm.with(2_000, Happening::Signal { node: 1, early });
        let world = World::live(&story);
        let end = JobEnd::Stopped { host: "host1".into(), signal: 15 };
        assert_eq!(ends(&world), [end.clone(), end.clone()], "and not for its peer's failure");

        // The job was just about to be started again.
        let story = Story::calm(level_1(2, 2, 5), &[&[Fails(1_000)], LONG]);
        let story = story.with(2_000, Happening::Signal { node: 1, early });
        assert_eq!(ends(&World::live(&story)), [end.clone(), end]);
    }
}

#[test]
fn the_end_of_a_join_timeout_counts_the_participants() {
    let story = Story::calm(level_1(3, 3, 0), &[LONG, LONG]);
    let ended = ends(&World::live(&story));
    assert!(matches!(&ended[0], JobEnd::TooFew { participants, waited_ms: 20_000 }
        if participants.ready == 2 && participants.min == 3));
    assert_eq!(ended.len(), 2);
    // A node that comes when no other is here is waited for as long.
    let mut machine = Coordinator::new(time(0));
    machine.turn(time(0));
    let offer = story.plans[0].offer.clone();
    machine.record(
        "a",
        NodeRecord { format: FORMAT, info: offer, status: NodeStatus::Ready { seen: 0 } },
        time(50_000),
    );
    machine.turn(time(50_000));
    assert_eq!(machine.state().phase, JobPhase::Gathering);
}

#[test]
fn the_list_of_refused_nodes_is_bounded() {
    let rules = rules(2, 99, OnFailure::End, OnNodeLoss::End);
    let mut machine = Coordinator::new(time(0));
    for number in 0..80 {
        let rules = JobRules { restarts: u32::from(number > 0), ..rules.clone() };
        let record = NodeRecord {
            format: FORMAT,
            info: NodeInfo { rules, ..NodeInfo::default() },
            status: NodeStatus::Ready { seen: 0 },
        };
        machine.record(&format!("id{number}"), record, time(0));
    }
    machine.turn(time(60_000));
    machine.turn(time(90_000));
    assert_eq!(machine.state().refused.len(), 64);
    assert!(
        matches!(machine.state().phase, JobPhase::Ended { end: JobEnd::TooFew { .. } }),
        "{:?}",
        machine.state().phase
    );
}

/// Of two nodes with one number the admitted one stays, also if a new coordinator hears of them in the other order.
#[test]
fn a_new_leader_refuses_no_admitted_node() {
    let rules = rules(1, 2, OnFailure::End, OnNodeLoss::End);
    let record = |standing| {
        let offer = NodeInfo { rank: Some(0), rules: rules.clone(), ..NodeInfo::default() };
        NodeRecord { format: FORMAT, info: offer, status: standing }
    };
    let mut first = Coordinator::new(time(0));
    first.record("a", record(NodeStatus::Ready { seen: 0 }), time(0));
    first.record("b", record(NodeStatus::Ready { seen: 0 }), time(0));
    let (state, members) = (first.turn(time(0)).unwrap().0, first.members().to_vec());
    let mut second = Coordinator::resume(state, members, time(1));
    second.record("b", record(NodeStatus::Ready { seen: 0 }), time(1));
    second.record("a", record(NodeStatus::Ready { seen: 0 }), time(1));
    second.turn(time(1));
    assert_eq!(second.state().refused.keys().collect::<Vec<_>>(), ["b"]);
}

/// The decision for the failure that was heard first is made again for the failure that came first.
#[test]
fn the_culprits_failure_decides_about_a_restart() {
    let rules = level_1(2, 2, 5);
    let record = |standing| NodeRecord {
        format: FORMAT,
        info: NodeInfo { rules: rules.clone(), ..NodeInfo::default() },
        status: standing,
    };
    let failed = |failure| record(NodeStatus::Failed { round: 1, failure });
    let mut machine = Coordinator::new(time(0));
    machine.record("a", record(NodeStatus::Ready { seen: 0 }), time(0));
    machine.record("b", record(NodeStatus::Ready { seen: 0 }), time(0));
    machine.turn(time(0));
    machine.record("b", record(NodeStatus::runs(1)), time(1));
    machine.record("a", failed(RankFailure { lost_peer: true, ..RankFailure::default() }), time(1));
    let state = machine.turn(time(1)).unwrap().0;
    assert!(matches!(state.phase, JobPhase::Stopping { end: None, .. }));
    let failure =
        RankFailure { node: 1, no_restart: Some("it says so".into()), delay_ms: 500, ..RankFailure::default() };
    let mut again = machine.clone();
    machine.record("b", failed(failure.clone()), time(2));
    let end = JobEnd::Failed { no_restart: failure.no_restart.clone(), failure: failure.clone() };
    assert_eq!(machine.turn(time(2)).unwrap().0.phase, JobPhase::Ended { end });

    // The same that may be started again, after a pause.
    again.record("b", failed(RankFailure { no_restart: None, ..failure }), time(2));
    assert_eq!(again.turn(time(2)).unwrap().0.failures, 1);
    again.record("a", record(NodeStatus::Ready { seen: 1 }), time(3));
    again.record("b", record(NodeStatus::Ready { seen: 1 }), time(3));
    assert_eq!(again.turn(time(3)), None);
    assert_eq!(again.next_deadline(), Some(time(502)));
    let state = again.turn(time(502)).unwrap().0;
    assert_eq!((state.round, state.phase), (2, JobPhase::Running));
}

/// The order of the reports counts, not the order in which ranks end: ranks may take their time to go.
#[test]
fn the_first_reported_stop_counts_though_its_ranks_still_run() {
    let rules = rules(2, 2, OnFailure::End, OnNodeLoss::End);
    let record = |standing| NodeRecord {
        format: FORMAT,
        info: NodeInfo { rules: rules.clone(), ..NodeInfo::default() },
        status: standing,
    };
    let mut begun = Coordinator::new(time(0));
    for id in ["a", "b"] {
        begun.record(id, record(NodeStatus::Ready { seen: 0 }), time(0));
    }
    begun.turn(time(0));
    for id in ["a", "b"] {
        begun.record(id, record(NodeStatus::runs(1)), time(1));
    }
    let first = RankFailure { node: 0, process: "rank 1".into(), status: 3, ..RankFailure::default() };
    let later = RankFailure { node: 1, process: "rank 2".into(), status: 5, ..RankFailure::default() };
    let mut machine = begun.clone();
    let stops = NodeStop::Failure { failure: first.clone() };
    machine.record("a", record(NodeStatus::Stops { round: 1, why: stops }), time(2));
    assert!(matches!(machine.turn(time(2)).unwrap().0.phase, JobPhase::Stopping { .. }));
    machine.record("b", record(NodeStatus::Failed { round: 1, failure: later.clone() }), time(3));
    machine.turn(time(3));
    assert!(matches!(machine.state().phase, JobPhase::Stopping { .. }), "a still stops its ranks");
    let known = RankFailure { message: "ValueError: no".into(), ..first };
    machine.record("a", record(NodeStatus::Failed { round: 1, failure: known.clone() }), time(4));
    machine.turn(time(4));
    assert_eq!(machine.state().phase, JobPhase::Ended { end: JobEnd::Failed { failure: known, no_restart: None } });

    let mut machine = begun;
    machine.record("a", record(NodeStatus::Stops { round: 1, why: NodeStop::Signal { signal: 15 } }), time(2));
    machine.turn(time(2));
    machine.record("b", record(NodeStatus::Failed { round: 1, failure: later }), time(3));
    machine.record("a", record(NodeStatus::Leaves { signal: 15 }), time(4));
    machine.turn(time(4));
    assert!(matches!(machine.state().phase, JobPhase::Ended { end: JobEnd::Stopped { signal: 15, .. } }));
}

/// It was a member of a round that it may still begin, if it has not heard of a newer one.
#[test]
fn a_node_that_has_not_seen_the_round_is_not_ready_for_the_next() {
    let rules = level_1(1, 2, 0);
    let record = |standing| NodeRecord {
        format: FORMAT,
        info: NodeInfo { rules: rules.clone(), ..NodeInfo::default() },
        status: standing,
    };
    let members = vec![RoundMember { id: "b".into(), info: NodeInfo::default() }];
    let mut machine = Coordinator::resume(state(5, 2, JobPhase::Running), members, time(0));
    machine.record("b", record(NodeStatus::runs(2)), time(0));
    machine.record("a", record(NodeStatus::Ready { seen: 0 }), time(0));
    machine.turn(time(0));
    assert_eq!(machine.state().phase, JobPhase::Running);
    machine.record("a", record(NodeStatus::Ready { seen: 2 }), time(1));
    machine.turn(time(1));
    assert!(matches!(machine.state().phase, JobPhase::Stopping { why: RoundStopCause::More { .. }, end: None }));
}

/// The others wait for one that they had given up, and that is back.
#[test]
fn a_node_that_is_back_and_still_runs_stops_before_the_next_round() {
    let mut story = Story::calm(level_1(1, 2, 0), &[&[Well(20_000)][..]; 2]);
    story.plans.iter_mut().for_each(|plan| plan.feels = false);
    // It is given up at 6.25 s, its peer has stopped at 14.25 s and would go on alone at 16.25 s; it is back at 15 s.
    (story.grace, story.plans[1].patience) = (8_000, 60_000);
    let story = story.with(2_000, Happening::Cut { node: 1, lasts: Some(13_000), way: Way::Both });
    let world = World::live(&story);
    assert_eq!(rounds(&world), [[0, 1], [0, 1]]);
    assert_eq!(ends(&world), [JobEnd::Completed, JobEnd::Completed]);
}
