//! A coordinator's single decisions: which nodes take part, which ones it waits for, and when it has to be called again.

use super::cases::level_1;
use super::states::state;
use super::world::time;
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{
    Coordinator, Departure, JobEnd, JobPhase, JobRules, NodeInfo, NodeRecord, NodeStatus, OnFailure, OnNodeLoss,
    RankFailure, RoundMember, RoundStopCause,
};

const NEW: NodeStatus = NodeStatus::Ready { seen: 0 };

fn info(rules: &JobRules) -> NodeInfo {
    NodeInfo { rules: rules.clone(), ..NodeInfo::default() }
}

fn paddle() -> NodeInfo {
    NodeInfo { host: "paddle".into(), is_paddle_launcher: true, ..NodeInfo::default() }
}

fn record(info: &NodeInfo, status: NodeStatus) -> NodeRecord {
    NodeRecord { format: FORMAT, info: info.clone(), status }
}

fn members(ids: &[&str]) -> Vec<RoundMember> {
    ids.iter().map(|id| RoundMember { id: (*id).into(), info: NodeInfo::default() }).collect()
}

fn member_ids(machine: &Coordinator) -> Vec<&str> {
    machine.members().iter().map(|member| member.id.as_str()).collect()
}

fn refused(machine: &Coordinator) -> Vec<&str> {
    machine.state().refused.keys().map(String::as_str).collect()
}

/// After these nodes have joined at 0 s, in this order.
fn joined(nodes: &[(&str, NodeInfo)]) -> Coordinator {
    let mut machine = Coordinator::new(time(0));
    for (id, info) in nodes {
        machine.record(id, record(info, NEW), time(0));
    }
    machine.turn(time(0));
    machine
}

#[test]
fn the_nodes_that_joined_first_take_part_whatever_their_ids_are() {
    let info = info(&level_1(2, 2, 0));
    let machine = joined(&[("z", info.clone()), ("m", info.clone()), ("a", info)]);
    assert_eq!(member_ids(&machine), ["m", "z"]);
}

#[test]
fn a_record_that_is_repeated_calls_for_no_turn() {
    let info = info(&level_1(2, 2, 0));
    let mut machine = joined(&[("a", info.clone())]);
    let next = machine.next_deadline();
    assert!(next > Some(time(1)), "{next:?}");
    machine.record("a", record(&info, NEW), time(1));
    assert_eq!(machine.next_deadline(), next);
    machine.record("a", record(&info, NodeStatus::Leaves { signal: 15 }), time(1));
    assert_eq!(machine.next_deadline(), Some(time(1)));
}

/// When a node joined that was here before the coordinator, it does not know.
#[test]
fn clocks_of_nodes_that_join_under_this_coordinator_are_compared() {
    let of = |host: &str, clock_ms| NodeInfo { host: host.into(), clock_ms, ..info(&level_1(5, 5, 0)) };
    let mut machine = joined(&[("old", of("old", 900_000_000))]);
    let nodes = [("a", 500_000_000), ("b", 500_000_000), ("fast", 500_100_000), ("none", 0)];
    for (id, clock_ms) in nodes {
        machine.record(id, record(&of(id, clock_ms), NEW), time(1_000));
    }
    machine.turn(time(1_000));
    assert_eq!(machine.state().phase, JobPhase::Running);
    let warnings = &machine.state().warnings;
    assert!(matches!(&warnings[..], [one] if one.contains("the clock of fast is 100 s ahead")), "{warnings:?}");
}

/// How many nodes begin a round, and when at the earliest.
#[test]
fn a_round_begins_with_the_most_nodes_or_the_usual_number_or_after_the_last_call() {
    for (nodes, usual, last_call_ms, begins) in [
        (1, None, 2_000, None),
        (1, Some(1), 2_000, None),
        (2, None, 2_000, Some(2_000)),
        (2, Some(2), 2_000, Some(0)),
        (2, Some(3), 2_000, Some(2_000)),
        (3, Some(2), 2_000, Some(2_000)),
        (4, None, 2_000, Some(0)),
        (4, Some(2), 2_000, Some(0)),
        (5, None, 2_000, Some(0)),
        (2, None, 90_000, Some(20_000)),
    ] {
        let rules = JobRules { last_call_ms, no_last_call_at: usual, ..level_1(2, 4, 0) };
        let mut machine = Coordinator::new(time(0));
        for number in 0..nodes {
            machine.record(&format!("id{number}"), record(&info(&rules), NEW), time(0));
        }
        let mut at = time(0);
        for _ in 0..20 {
            machine.turn(at);
            match machine.next_deadline() {
                Some(next) if machine.state().phase == JobPhase::Gathering => at = next,
                _ => break,
            }
        }
        let began = (machine.state().phase == JobPhase::Running).then_some(at);
        assert_eq!(began, begins.map(time), "{nodes} nodes, {usual:?}, {last_call_ms}");
        assert!(began.is_some() || at == time(20_000), "they are too few at the end of the time to join");
        assert_eq!(machine.members().len(), began.map_or(0, |_| nodes.min(4)));
    }
}

/// Later, the usual number is that of the last round.
#[test]
fn a_round_with_as_many_nodes_as_the_last_needs_no_last_call() {
    for (first, no_last_call_at, begins) in [(2, Some(9), true), (3, Some(2), false), (2, None, false)] {
        let rules = JobRules { no_last_call_at, ..level_1(1, 4, 0) };
        let members = members(&["a", "b", "c"][..first]);
        let mut machine = Coordinator::resume(state(5, 2, JobPhase::Gathering), members, time(0));
        for id in ["a", "b"] {
            machine.record(id, record(&info(&rules), NodeStatus::Ready { seen: 2 }), time(0));
        }
        machine.turn(time(0));
        assert_eq!(machine.state().phase == JobPhase::Running, begins, "{first}, {no_last_call_at:?}");
    }
}

/// A node that is here, but has not reported ready yet, would stop the round again at once.
#[test]
fn the_last_call_waits_for_nodes_that_can_still_become_ready() {
    let rules = level_1(1, 3, 5);
    let other_rules = info(&level_1(1, 3, 6));
    let failed = |process: &str| {
        let failure = RankFailure { process: process.into(), ..RankFailure::default() };
        NodeStatus::Failed { round: 2, failure }
    };
    let held = match failed("held") {
        NodeStatus::Failed { failure, .. } => Some(failure),
        _ => None,
    };
    for (info_of_b, status, waits) in [
        (info(&rules), NodeStatus::Ready { seen: 1 }, true),
        (info(&rules), NodeStatus::runs(2), true),
        (info(&rules), NodeStatus::done(2), true),
        (info(&rules), failed("another"), true),
        (info(&rules), failed("held"), false),
        (info(&rules), NodeStatus::Leaves { signal: 15 }, false),
        (other_rules, NodeStatus::Ready { seen: 1 }, false),
        (paddle(), NEW, false),
    ] {
        let mut state = state(5, 2, JobPhase::Gathering);
        state.held_failure = held.clone();
        let mut machine = Coordinator::resume(state, members(&["a"]), time(0));
        machine.record("a", record(&info(&rules), NodeStatus::Ready { seen: 2 }), time(0));
        machine.record("b", record(&info_of_b, status.clone()), time(0));
        machine.turn(time(0));
        machine.turn(time(1_999));
        assert_eq!(machine.state().phase, JobPhase::Gathering);
        machine.turn(time(2_000));
        assert_eq!(machine.state().phase == JobPhase::Gathering, waits, "{status:?}");
        assert!(!waits || machine.next_deadline() > Some(time(2_000)), "it is to be called again at once, for ever");
    }
}

#[test]
fn waiting_nodes_receive_the_participants_now_and_then() {
    let of = |rank: usize| NodeInfo {
        rank: Some(rank),
        host: format!("host{rank}"),
        address: format!("10.0.0.{rank}"),
        ..info(&level_1(2, 4, 0))
    };
    let mut one = joined(&[("c", of(2))]);
    let mut two = joined(&[("c", of(2)), ("a", of(0))]);
    for (machine, left_ms, next) in [(&mut one, 18_500, 11_500), (&mut two, 500, 2_000)] {
        assert_eq!(machine.state().participants, None);
        assert_eq!(machine.next_deadline(), Some(time(1_500)));
        machine.turn(time(1_500));
        let participants = machine.state().participants.as_ref().unwrap();
        assert_eq!((participants.left_ms, participants.min, participants.max), (left_ms, 2, 4));
        assert_eq!(machine.next_deadline(), Some(time(next)));
    }
    let participants = two.state().participants.clone().unwrap();
    assert_eq!((participants.ready, participants.missing), (2, vec![1, 3]));
    assert_eq!(participants.here, ["0: host0 (10.0.0.0)", "2: host2 (10.0.0.2)"]);
    // The next report would come after the end of the time to join.
    one.turn(time(11_500));
    assert_eq!(one.next_deadline(), Some(time(20_000)));
    let plain = joined(&[("a", NodeInfo { rank: None, ..of(0) })]);
    let mut plain = plain.clone();
    plain.turn(time(1_500));
    let participants = plain.state().participants.clone().unwrap();
    assert_eq!((participants.here, participants.missing), (vec!["host0 (10.0.0.0)".to_owned()], vec![]));
}

#[test]
fn the_rules_are_those_of_the_first_node_that_can_take_part() {
    let mut machine = Coordinator::new(time(0));
    let other_format = NodeRecord { format: FORMAT + 1, ..record(&info(&level_1(3, 3, 0)), NEW) };
    machine.record("a", other_format, time(0));
    machine.record("b", record(&info(&level_1(1, 1, 0)), NEW), time(0));
    machine.turn(time(0));
    assert_eq!((member_ids(&machine), refused(&machine)), (vec!["b"], vec!["a"]));

    // A refusal is kept: another coordinator receives the records in another order.
    let mut state = state(5, 0, JobPhase::Gathering);
    state.refused.insert("b".into(), "its rules are others".into());
    let mut machine = Coordinator::resume(state, Vec::new(), time(0));
    machine.record("b", record(&info(&level_1(1, 1, 0)), NEW), time(0));
    machine.record("a", record(&info(&level_1(2, 2, 0)), NEW), time(0));
    machine.turn(time(0));
    assert_eq!(refused(&machine), ["b"]);
}

#[test]
fn a_member_keeps_its_number_where_a_new_node_has_the_same() {
    let numbered = NodeInfo { rank: Some(0), ..info(&level_1(1, 2, 0)) };
    let mut machine = Coordinator::resume(state(5, 2, JobPhase::Running), members(&["a"]), time(0));
    machine.record("b", record(&numbered, NEW), time(0));
    machine.record("a", record(&numbered, NodeStatus::runs(2)), time(0));
    machine.turn(time(0));
    assert_eq!(refused(&machine), ["b"]);
}

#[test]
fn a_job_is_over_when_all_nodes_but_the_refused_have_left() {
    let rules = level_1(1, 1, 0);
    let (own, other) = (info(&rules), info(&level_1(1, 1, 9)));
    let mut machine = joined(&[("a", own.clone()), ("spare", own.clone()), ("refused", other)]);
    machine.record("a", record(&own, NodeStatus::done(1)), time(1));
    machine.turn(time(1));
    assert_eq!(machine.state().phase, JobPhase::Ended { end: JobEnd::Completed });
    assert!(machine.state().to_receive_end.iter().eq(["spare"]), "it took part in no round");
    for id in ["a", "spare"] {
        assert!(!machine.is_over());
        machine.gone(id, Departure::Left, time(2));
        machine.turn(time(2));
    }
    assert!(machine.is_over());
}

#[test]
fn a_launcher_of_paddle_s_joins_a_running_job_and_takes_part_once() {
    let own = info(&level_1(2, 3, 5));
    let mut machine = joined(&[("a", own.clone()), ("b", own.clone())]);
    machine.turn(time(2_000));
    assert_eq!(member_ids(&machine), ["a", "b"]);
    for id in ["a", "b"] {
        machine.record(id, record(&own, NodeStatus::runs(1)), time(3_000));
    }
    machine.record("paddle", record(&paddle(), NEW), time(3_000));
    machine.turn(time(3_000));
    let more = RoundStopCause::More { hosts: vec!["paddle".into()] };
    assert_eq!(machine.state().phase, JobPhase::Stopping { why: more, end: None });
    for id in ["a", "b"] {
        machine.record(id, record(&own, NodeStatus::Ready { seen: 1 }), time(4_000));
    }
    machine.turn(time(4_000));
    assert_eq!((machine.state().round, machine.members().len()), (2, 3), "it has not reported that it saw round 1");
    // It never receives a request to stop, so it is not ready for another round, also where another coordinator goes on.
    let mut successor = Coordinator::resume(machine.state().clone(), machine.members().to_vec(), time(5_000));
    successor.record("paddle", record(&paddle(), NEW), time(5_000));
    for machine in [&mut machine, &mut successor] {
        let failed = NodeStatus::Failed { round: 2, failure: RankFailure::default() };
        machine.record("a", record(&own, failed), time(5_000));
        machine.record("b", record(&own, NodeStatus::Ready { seen: 2 }), time(5_000));
        machine.turn(time(5_000));
        assert_eq!(machine.state().phase, JobPhase::Gathering);
        machine.record("a", record(&own, NodeStatus::Ready { seen: 2 }), time(5_000));
        machine.turn(time(5_000));
        let without_it = "without it they are too few for a round without a last call";
        assert_eq!(machine.state().phase, JobPhase::Gathering, "{without_it}");
        machine.turn(time(7_000));
        assert_eq!(member_ids(machine), ["a", "b"]);
        for id in ["a", "b"] {
            machine.record(id, record(&own, NodeStatus::runs(3)), time(8_000));
            machine.turn(time(8_000));
        }
        assert_eq!(machine.state().phase, JobPhase::Running, "it is not new after a round without it");
    }
}

/// Only Paddle's launcher is a member. It reports nothing, so its round goes on.
#[test]
fn a_round_of_which_no_member_reports_does_not_end_at_once() {
    let machine = joined(&[("paddle", paddle()), ("own", info(&level_1(1, 1, 0)))]);
    assert_eq!(member_ids(&machine), ["paddle"]);
    assert_eq!(machine.state().phase, JobPhase::Running);
}

#[test]
fn a_round_that_a_node_has_finished_is_not_stopped_for_more_nodes() {
    let own = info(&level_1(2, 3, 5));
    for (status, stops) in [(NodeStatus::runs(2), true), (NodeStatus::done(2), false)] {
        let mut machine = Coordinator::resume(state(5, 2, JobPhase::Running), members(&["a", "b"]), time(0));
        machine.record("a", record(&own, NodeStatus::runs(2)), time(0));
        machine.record("b", record(&own, status.clone()), time(0));
        machine.record("c", record(&own, NodeStatus::Ready { seen: 2 }), time(0));
        machine.turn(time(0));
        assert_eq!(machine.state().phase != JobPhase::Running, stops, "{status:?}");
    }
}

/// The first one has gone by then, and a later coordinator does not know its signal.
#[test]
fn a_second_node_with_a_signal_ends_a_job_of_which_too_few_nodes_stay() {
    let own = info(&level_1(2, 3, 5));
    for (min, ends) in [(1, false), (2, true)] {
        let own = info(&JobRules { min, ..own.rules.clone() });
        let leaves = record(&own, NodeStatus::Leaves { signal: 15 });
        let mut members = members(&["a", "b", "c"]);
        members.iter_mut().for_each(|member| member.info.host = member.id.clone());
        let mut machine = Coordinator::resume(state(5, 2, JobPhase::Running), members, time(0));
        for id in ["a", "b", "c"] {
            machine.record(id, record(&own, NodeStatus::runs(2)), time(0));
        }
        machine.record("a", leaves.clone(), time(0));
        machine.turn(time(0));
        assert!(matches!(machine.state().phase, JobPhase::Stopping { end: None, .. }), "{:?}", machine.state());
        machine.gone("a", Departure::Left, time(1));
        machine.turn(time(1));
        let mut successor = Coordinator::resume(machine.state().clone(), machine.members().to_vec(), time(1));
        successor.record("c", record(&own, NodeStatus::runs(2)), time(1));
        for machine in [&mut machine, &mut successor] {
            machine.record("b", leaves.clone(), time(2));
            machine.turn(time(2));
            let is_end = matches!(machine.state().phase, JobPhase::Stopping { end: Some(JobEnd::Stopped { .. }), .. });
            assert_eq!(is_end, ends, "{:?}", machine.state());
        }
        assert_eq!(machine.state().phase, successor.state().phase);
    }
}

/// What a round that has stopped for a failure leaves to the next: a restart that is used up, or a failure that is held.
#[test]
fn a_failure_that_is_followed_by_a_round_is_counted_or_held_as_the_rules_say() {
    let own = RankFailure { process: "rank 0".into(), ..RankFailure::default() };
    let again = RankFailure { again: true, ..own.clone() };
    for (on_failure, failure, failures, held) in [
        (OnFailure::Restart, &own, 1, None),
        (OnFailure::Restart, &again, 0, None),
        (OnFailure::Hold, &own, 0, Some(own.clone())),
        (OnFailure::Hold, &again, 0, None),
        (OnFailure::End, &again, 0, None),
    ] {
        let info = info(&JobRules { on_failure, ..level_1(1, 2, 5) });
        let mut machine = Coordinator::resume(state(5, 2, JobPhase::Running), members(&["a", "b"]), time(0));
        machine.record("a", record(&info, NodeStatus::Failed { round: 2, failure: failure.clone() }), time(0));
        machine.record("b", record(&info, NodeStatus::Ready { seen: 2 }), time(0));
        machine.turn(time(0));
        let state = machine.state();
        assert_eq!((state.failures, &state.held_failure), (failures, &held), "{on_failure:?}, {failure:?}");
        assert_eq!(state.phase, JobPhase::Gathering);
    }
}

/// Where a lost node ends the job, that holds for the nodes of its round. If none is left, the waiting nodes begin anew.
#[test]
fn a_job_none_of_whose_members_is_left_begins_anew_with_all_restarts() {
    let own = info(&JobRules { on_loss: OnNodeLoss::End, ..level_1(2, 2, 5) });
    let failed = |round| NodeStatus::Failed { round, failure: RankFailure::default() };
    let mut machine = joined(&[("a", own.clone()), ("b", own.clone()), ("spare", own.clone())]);
    machine.record("a", record(&own, failed(1)), time(1));
    for (id, seen) in [("b", 1), ("a", 1), ("spare", 0)] {
        machine.record(id, record(&own, NodeStatus::Ready { seen }), time(2));
        machine.turn(time(2));
    }
    for id in ["a", "b"] {
        machine.record(id, record(&own, NodeStatus::runs(2)), time(3));
    }
    machine.record("spare", record(&own, NodeStatus::Ready { seen: 2 }), time(3));
    machine.turn(time(3));
    assert_eq!((machine.state().round, machine.state().failures), (2, 1), "{:?}", machine.state());
    machine.gone("a", Departure::Lapsed { age: time(10_000) }, time(20_000));
    machine.gone("b", Departure::Lapsed { age: time(10_000) }, time(20_000));
    machine.turn(time(20_000));
    let state = machine.state();
    assert_eq!((&state.phase, state.failures, machine.members().len()), (&JobPhase::Gathering, 0, 0));
}

/// A job whose machines were killed and that is started again at once finds the records of its earlier launchers.
#[test]
fn a_complete_job_refuses_more_nodes_once_all_members_have_outlived_two_leases() {
    let rules = JobRules { lease_ms: 10_000, on_failure: OnFailure::End, on_loss: OnNodeLoss::End, ..level_1(2, 2, 0) };
    let info = |host: &str| NodeInfo { host: host.into(), ..info(&rules) };
    let mut machine = joined(&[("a", info("host-a")), ("b", info("host-b"))]);
    machine.record("c", record(&info("host-c"), NEW), time(3_000));
    machine.turn(time(3_000));
    assert!(refused(&machine).is_empty());
    assert_eq!(machine.next_deadline(), Some(time(25_000)));
    machine.turn(time(24_999));
    assert!(refused(&machine).is_empty());
    machine.turn(time(25_000));
    assert_eq!(refused(&machine), ["c"]);
    let why = &machine.state().refused["c"];
    assert!(why.starts_with("the job has all of its 2 nodes (host-a, host-b), and replaces none"), "{why}");
    assert_eq!(member_ids(&machine), ["a", "b"]);
}

/// The launchers of all nodes are started anew while the leases of the earlier ones are still there.
#[test]
fn a_job_that_loses_a_member_refuses_no_launcher_that_returns() {
    let rules = JobRules { lease_ms: 10_000, on_failure: OnFailure::End, on_loss: OnNodeLoss::End, ..level_1(2, 2, 0) };
    let info = |host: &str| NodeInfo { host: host.into(), ..info(&rules) };
    let mut machine = joined(&[("a", info("host-a")), ("b", info("host-b"))]);
    machine.record("c", record(&info("host-a"), NEW), time(3_000));
    machine.turn(time(3_000));
    // The loss, and the turn in which the other launcher would be refused.
    machine.gone("a", Departure::Lapsed { age: time(10_000) }, time(25_000));
    machine.turn(time(25_000));
    assert!(refused(&machine).is_empty());
    assert!(matches!(machine.state().phase, JobPhase::Stopping { .. }), "{:?}", machine.state().phase);
    // The ranks of the other node save what they have.
    machine.turn(time(60_000));
    assert!(refused(&machine).is_empty());
}

#[test]
fn nodes_wait_beside_a_complete_job_that_can_need_them() {
    for rules in [level_1(2, 2, 3), level_1(1, 2, 0)] {
        let info = info(&JobRules { lease_ms: 10_000, ..rules });
        let mut machine = joined(&[("a", info.clone()), ("b", info.clone())]);
        machine.record("c", record(&info, NEW), time(3_000));
        machine.turn(time(3_000));
        machine.turn(time(100_000));
        assert!(refused(&machine).is_empty());
    }
}

#[test]
fn a_node_that_runs_another_script_is_refused_where_both_say_what_they_run() {
    let of = |script: &str| NodeInfo {
        host: "host".into(),
        ..info(&JobRules { script: script.to_owned(), ..level_1(3, 3, 1) })
    };
    for (first, second, is_refused) in [
        ("train.py", "train.py", false),
        ("train.py", "", false),
        ("", "train.py", false),
        ("train.py", "eval.py", true),
    ] {
        let machine = joined(&[("a", of(first)), ("b", of(second))]);
        let found = machine.state().refused.get("b");
        assert_eq!(found.is_some(), is_refused, "{first} {second}: {found:?}");
        let words = format!("the job runs {first} (on host), this node {second}; if these are two jobs");
        assert!(found.is_none_or(|found| found.starts_with(&words)), "{found:?}");
    }
}
