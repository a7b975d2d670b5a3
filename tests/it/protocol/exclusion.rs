//! Nodes that harm the job, and nodes that join one after another.

use super::cases::level_1;
use super::states::state;
use super::world::time;
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{
    Coordinator, Departure, JobEnd, JobPhase, JobRules, NodeInfo, NodeRecord, NodeStatus, OnFailure, OnNodeLoss,
    RankFailure, RankHang, RoundMember, RoundStopCause,
};

const RUNS: NodeStatus = NodeStatus::runs(2);

fn record(rules: &JobRules, id: &str, status: NodeStatus) -> NodeRecord {
    let info = NodeInfo { host: format!("host-{id}"), rules: rules.clone(), ..NodeInfo::default() };
    NodeRecord { format: FORMAT, info, status }
}

/// In round 2 since 0 s, whose members run.
fn running(rules: &JobRules, ids: &[&str]) -> Coordinator {
    let member = |id: &&str| RoundMember { id: (*id).to_owned(), info: record(rules, id, RUNS).info };
    let members = ids.iter().map(member).collect();
    let mut machine = Coordinator::resume(state(5, 2, JobPhase::Running), members, time(0));
    for id in ids {
        machine.record(id, record(rules, id, RUNS), time(0));
    }
    machine.turn(time(0));
    assert_eq!(machine.state().phase, JobPhase::Running);
    machine
}

fn member_ids(machine: &Coordinator) -> Vec<&str> {
    machine.members().iter().map(|member| member.id.as_str()).collect()
}

/// The member fails in the present round, the others stop, and the next round begins if one does.
fn fails(machine: &mut Coordinator, rules: &JobRules, id: &str, failure: &RankFailure) {
    let round = machine.state().round;
    let at = time(10_000 * round);
    let ids: Vec<String> = machine.members().iter().map(|member| member.id.clone()).collect();
    let node = ids.iter().position(|member| member == id).unwrap();
    let failure = RankFailure { node, ..failure.clone() };
    machine.record(id, record(rules, id, NodeStatus::Failed { round, failure }), at);
    machine.turn(at);
    for other in ids.iter().filter(|other| *other != id) {
        machine.record(other, record(rules, other, NodeStatus::Ready { seen: round }), at);
    }
    machine.turn(at);
    machine.record(id, record(rules, id, NodeStatus::Ready { seen: round }), at);
    machine.turn(at);
    // After the last call.
    machine.turn(at + time(rules.last_call_ms));
}

fn exit_code_7() -> RankFailure {
    RankFailure { process: "rank 2".into(), outcome: "exit code 7".into(), ..RankFailure::default() }
}

#[test]
fn nodes_that_join_one_after_another_stop_a_round_once() {
    let rules = JobRules { min_round_ms: 60_000, ..level_1(1, 5, 5) };
    let mut machine = running(&rules, &["a"]);
    for (number, id) in ["b", "c", "d"].into_iter().enumerate() {
        let at = time(8_000 * (number as u64 + 1));
        machine.record(id, record(&rules, id, NodeStatus::Ready { seen: 2 }), at);
        machine.turn(at);
        assert_eq!(machine.state().phase, JobPhase::Running, "{id}");
        assert_eq!(machine.next_deadline(), Some(time(60_000)));
    }
    machine.turn(time(60_000));
    let JobPhase::Stopping { why: RoundStopCause::More { hosts }, end: None } = &machine.state().phase else {
        panic!("{:?}", machine.state().phase)
    };
    assert_eq!(*hosts, ["host-b", "host-c", "host-d"]);
}

/// The ranks are about to save, and to stop at a common step.
#[test]
fn a_node_that_joins_stops_no_round_whose_ranks_stop_soon() {
    let rules = level_1(1, 3, 5);
    let mut machine = running(&rules, &["a", "b"]);
    let noticed = NodeStatus::Runs { round: 2, hang: None, is_noticed: true };
    machine.record("b", record(&rules, "b", noticed), time(1_000));
    machine.record("c", record(&rules, "c", NodeStatus::Ready { seen: 2 }), time(2_000));
    machine.turn(time(2_000));
    assert_eq!(machine.state().phase, JobPhase::Running);
    machine.record("b", record(&rules, "b", RUNS), time(3_000));
    machine.turn(time(3_000));
    assert!(matches!(machine.state().phase, JobPhase::Stopping { why: RoundStopCause::More { .. }, .. }));
}

/// A node that waits learns of it: it exits as the others do.
#[test]
fn the_state_says_at_which_step_the_ranks_were_asked_to_stop() {
    let rules = level_1(1, 2, 5);
    for stopped_at in [None, Some(7)] {
        let mut machine = running(&rules, &["a", "b"]);
        machine.record("a", record(&rules, "a", NodeStatus::done(2)), time(1_000));
        machine.record("b", record(&rules, "b", NodeStatus::Done { round: 2, stopped_at }), time(1_000));
        machine.turn(time(1_000));
        let state = machine.state();
        assert_eq!((&state.phase, state.stopped_at), (&JobPhase::Ended { end: JobEnd::Completed }, stopped_at));
    }
}

#[test]
fn a_spare_stops_no_round_and_takes_the_place_of_a_lost_node_at_once() {
    let rules = JobRules { spares: Some(1), on_loss: OnNodeLoss::Regroup, last_call_ms: 30_000, ..level_1(2, 2, 5) };
    let mut machine = running(&rules, &["a", "b"]);
    for id in ["c", "d"] {
        machine.record(id, record(&rules, id, NodeStatus::Ready { seen: 2 }), time(1_000));
        machine.turn(time(1_000));
    }
    assert_eq!(machine.state().phase, JobPhase::Running, "no round stops for a spare");
    assert_eq!(machine.state().refused.keys().collect::<Vec<_>>(), ["d"], "one spare too many");
    machine.gone("d", Departure::Left, time(1_000));
    machine.gone("b", Departure::Lapsed { age: time(10_000) }, time(20_000));
    machine.turn(time(20_000));
    assert!(matches!(machine.state().phase, JobPhase::Stopping { .. }));
    machine.record("a", record(&rules, "a", NodeStatus::Ready { seen: 2 }), time(21_000));
    machine.turn(time(21_000));
    assert_eq!((&machine.state().phase, machine.state().round), (&JobPhase::Running, 3), "nothing else is waited for");
    assert_eq!(member_ids(&machine), ["a", "c"]);
    // There is room for another.
    machine.record("e", record(&rules, "e", NodeStatus::Ready { seen: 0 }), time(22_000));
    machine.turn(time(22_000));
    assert!(machine.state().refused.is_empty());
}

#[test]
fn a_spare_replaces_a_node_that_harms_a_job_of_a_fixed_number() {
    let rules = JobRules { spares: Some(1), node_failure_limit: 1, ..level_1(2, 2, 5) };
    let mut machine = running(&rules, &["a", "b"]);
    machine.record("c", record(&rules, "c", NodeStatus::Ready { seen: 2 }), time(0));
    machine.turn(time(0));
    fails(&mut machine, &rules, "b", &exit_code_7());
    assert_eq!(member_ids(&machine), ["a", "c"]);
    assert_eq!((&machine.state().phase, machine.state().round), (&JobPhase::Running, 3));
}

#[test]
fn a_node_that_cannot_begin_is_excluded_where_enough_others_are_left() {
    let failure = RankFailure {
        message: "no such interpreter".into(),
        no_restart: Some("this node cannot begin".into()),
        cannot_begin: true,
        ..RankFailure::default()
    };
    for restarts in [0, 3] {
        let rules = level_1(2, 3, restarts);
        let mut machine = running(&rules, &["a", "b", "c"]);
        fails(&mut machine, &rules, "c", &failure);
        let state = machine.state();
        assert_eq!(state.refused["c"], "it is excluded from the job: it cannot begin: no such interpreter");
        assert_eq!((state.failures, state.phase.clone(), member_ids(&machine)), (0, JobPhase::Running, vec!["a", "b"]));
        let warning = "host-c () is excluded from the job: it cannot begin: no such interpreter";
        assert_eq!(state.warnings, [warning]);
    }
    for (min, max) in [(3, 4), (3, 3)] {
        let rules = level_1(min, max, 3);
        let mut machine = running(&rules, &["a", "b", "c"]);
        fails(&mut machine, &rules, "c", &failure);
        let ended = matches!(machine.state().phase, JobPhase::Ended { end: JobEnd::Failed { .. } });
        assert!(ended && machine.state().excluded.is_empty(), "too few would be left: {:?}", machine.state());
    }
}

#[test]
fn a_node_whose_ranks_fail_again_and_again_is_excluded_and_its_failures_count_no_more() {
    let rules = JobRules { node_failure_limit: 3, ..level_1(2, 3, 3) };
    let mut machine = running(&rules, &["a", "b", "c"]);
    fails(&mut machine, &rules, "a", &exit_code_7());
    for failures in [2, 3] {
        fails(&mut machine, &rules, "c", &exit_code_7());
        assert_eq!((machine.state().failures, member_ids(&machine).len()), (failures, 3));
    }
    let used_up = RankFailure { no_restart: Some("3 of 3 restarts used".into()), ..exit_code_7() };
    fails(&mut machine, &rules, "c", &used_up);
    let state = machine.state();
    let why = "it is excluded from the job: its ranks failed 3 times in a row, last rank 2: exit code 7";
    assert_eq!(state.refused["c"], why);
    assert_eq!((state.failures, state.phase.clone(), member_ids(&machine)), (1, JobPhase::Running, vec!["a", "b"]));
}

#[test]
fn failures_of_several_nodes_exclude_none() {
    let rules = JobRules { node_failure_limit: 2, ..level_1(1, 3, 9) };
    let mut machine = running(&rules, &["a", "b", "c"]);
    for id in ["c", "a", "c", "b"] {
        fails(&mut machine, &rules, id, &exit_code_7());
    }
    let felt = RankFailure { lost_peer: true, ..exit_code_7() };
    fails(&mut machine, &rules, "b", &felt);
    assert_eq!((machine.state().failures, machine.state().excluded.len()), (5, 0));
    fails(&mut machine, &rules, "b", &exit_code_7());
    assert_eq!(
        machine.state().excluded.keys().collect::<Vec<_>>(),
        ["b"],
        "a failure that another caused is none between"
    );
}

#[test]
fn without_a_limit_and_by_rules_of_its_own_no_failing_node_is_excluded() {
    for (limit, no_restart) in [(0, None), (1, Some("exit code 7 is never restarted"))] {
        let rules = JobRules { node_failure_limit: limit, ..level_1(1, 2, 9) };
        let mut machine = running(&rules, &["a", "b"]);
        let failure = RankFailure { no_restart: no_restart.map(str::to_owned), ..exit_code_7() };
        fails(&mut machine, &rules, "b", &failure);
        assert!(machine.state().excluded.is_empty(), "{:?}", machine.state());
    }
}

/// Without it there is no master.
#[test]
fn the_node_that_serves_the_master_is_not_excluded() {
    let rules = level_1(1, 3, 3);
    let mut machine = running(&rules, &["a", "b", "c"]);
    let failure = RankFailure { cannot_begin: true, no_restart: Some("it says so".into()), ..exit_code_7() };
    let mut record = record(&rules, "a", NodeStatus::Failed { round: 2, failure: failure.clone() });
    record.info.serves_master = true;
    machine.record("a", record, time(1));
    machine.turn(time(1));
    let ends = matches!(&machine.state().phase, JobPhase::Stopping { end: Some(JobEnd::Failed { .. }), .. });
    assert!(ends, "{:?}", machine.state());
}

#[test]
fn a_failure_that_nodes_share_excludes_none() {
    let own = |node: usize, cannot_begin: bool| {
        let no_restart = cannot_begin.then(|| "it says so".to_owned());
        RankFailure { node, cannot_begin, no_restart, ..exit_code_7() }
    };
    for cannot_begin in [true, false] {
        let rules = JobRules { node_failure_limit: 1, ..level_1(1, 3, 3) };
        let mut machine = running(&rules, &["a", "b", "c"]);
        for (node, id) in ["a", "b", "c"].into_iter().enumerate() {
            let status = NodeStatus::Failed { round: 2, failure: own(node, cannot_begin) };
            machine.record(id, record(&rules, id, status), time(1));
        }
        machine.turn(time(1));
        machine.turn(time(1));
        assert!(machine.state().excluded.is_empty(), "{:?}", machine.state());
        let ended = matches!(machine.state().phase, JobPhase::Ended { end: JobEnd::Failed { .. } });
        assert_eq!((ended, machine.state().failures), (cannot_begin, u32::from(!cannot_begin)));
    }
}

/// In round 3 since 1 s, which began with `new` beside the members `old` of round 2.
fn joined(rules: &JobRules, old: &[&str], new: &[&str]) -> Coordinator {
    let mut machine = running(rules, old);
    for id in new {
        machine.record(id, record(rules, id, NodeStatus::Ready { seen: 2 }), time(0));
    }
    machine.turn(time(0));
    for id in old {
        machine.record(id, record(rules, id, NodeStatus::Ready { seen: 2 }), time(1_000));
    }
    machine.turn(time(1_000));
    machine.turn(time(1_000) + time(rules.last_call_ms));
    assert_eq!((machine.state().round, member_ids(&machine)), (3, [old, new].concat()));
    machine
}

fn waits(round: u64) -> NodeStatus {
    NodeStatus::Runs { round, hang: Some(RankHang::Waits), is_noticed: false }
}

fn stuck(round: u64) -> NodeStatus {
    let place = "rank 2 is in <module> (hangs.py:2)".to_owned();
    NodeStatus::Runs { round, hang: Some(RankHang::Stuck { place, looks: 1 }), is_noticed: false }
}

/// As a further look has found it.
fn still_stuck(round: u64) -> NodeStatus {
    let mut status = stuck(round);
    if let NodeStatus::Runs { hang: Some(RankHang::Stuck { looks, .. }), .. } = &mut status {
        *looks += 1;
    }
    status
}

fn report(machine: &mut Coordinator, rules: &JobRules, statuses: &[(&str, NodeStatus)]) {
    for (id, status) in statuses {
        machine.record(id, record(rules, id, status.clone()), time(700_000));
    }
    machine.turn(time(700_000));
}

/// The same, as further looks have found it.
fn report_again(machine: &mut Coordinator, rules: &JobRules, statuses: &[(&str, NodeStatus)]) {
    let again = |status: &NodeStatus| match status {
        NodeStatus::Runs { round, hang: Some(RankHang::Stuck { .. }), .. } => still_stuck(*round),
        other => other.clone(),
    };
    let statuses: Vec<_> = statuses.iter().map(|(id, status)| (*id, again(status))).collect();
    report(machine, rules, &statuses);
}

/// More than are excluded one after another.
#[test]
fn many_newcomers_that_hang_are_excluded_at_once() {
    let new = ["c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let rules = level_1(2, 12, 3);
    let mut machine = joined(&rules, &["a", "b"], &new);
    let statuses = [("a", waits(3)), ("b", waits(3))].into_iter().chain(new.map(|id| (id, stuck(3))));
    let statuses: Vec<_> = statuses.collect();
    report(&mut machine, &rules, &statuses);
    report_again(&mut machine, &rules, &statuses);
    assert_eq!(machine.state().excluded.keys().collect::<Vec<_>>(), new, "{:?}", machine.state());
}

#[test]
fn a_newcomer_whose_ranks_hang_at_their_start_is_excluded_without_a_restart() {
    for rules in [level_1(2, 3, 0), level_1(2, 4, 3)] {
        let mut machine = joined(&rules, &["a", "b"], &["c"]);
        report(&mut machine, &rules, &[("a", waits(3)), ("c", stuck(3))]);
        assert_eq!(machine.state().phase, JobPhase::Running, "b has not said what its ranks do");
        report(&mut machine, &rules, &[("c", still_stuck(3))]);
        assert_eq!(machine.state().phase, JobPhase::Running);
        report(&mut machine, &rules, &[("b", waits(3))]);
        assert_eq!(machine.state().phase, JobPhase::Running, "c may have gone on since its look");
        report(&mut machine, &rules, &[("c", stuck(3))]);
        assert_eq!(machine.state().phase, JobPhase::Running, "no further look");
        // It is found idle for the first time again, as all others wait for it.
        report(&mut machine, &rules, &[("c", NodeStatus::runs(3))]);
        report(&mut machine, &rules, &[("c", stuck(3))]);
        assert_eq!(machine.state().phase, JobPhase::Running, "c may have gone on since its look");
        report(&mut machine, &rules, &[("c", still_stuck(3))]);
        let JobPhase::Stopping { why: RoundStopCause::Failed { failure }, end: None } = &machine.state().phase else {
            panic!("{:?}", machine.state())
        };
        assert_eq!((failure.node, failure.host.as_str(), failure.hangs), (2, "host-c", true));
        assert!(machine.state().refused.is_empty(), "its end would be a loss: {:?}", machine.state());
        // Another coordinator may end the stop.
        let mut next = Coordinator::resume(machine.state().clone(), machine.members().to_vec(), time(700_000));
        for (id, status) in [("a", waits(3)), ("b", waits(3)), ("c", stuck(3))] {
            next.record(id, record(&rules, id, status), time(700_000));
        }
        next.turn(time(700_000));
        for machine in [&mut machine, &mut next] {
            for id in ["c", "a", "b"] {
                machine.record(id, record(&rules, id, NodeStatus::Ready { seen: 3 }), time(701_000));
                machine.turn(time(701_000));
            }
            machine.turn(time(701_000) + time(rules.last_call_ms));
            let state = machine.state();
            let why = "its ranks hang at their start: rank 2 is in <module> (hangs.py:2)";
            assert_eq!(state.refused["c"], format!("it is excluded from the job: {why}"));
            assert_eq!((state.round, state.failures, member_ids(machine)), (4, 0, vec!["a", "b"]));
        }
        let warning =
            "host-c () is excluded from the job: its ranks hang at their start: rank 2 is in <module> (hangs.py:2)";
        assert_eq!(machine.state().warnings, [warning]);
    }
}

#[test]
fn all_newcomers_that_hang_are_excluded_at_once_also_after_rounds_that_others_ended() {
    let rules = level_1(2, 5, 3);
    let mut machine = joined(&rules, &["a", "b"], &["c"]);
    // Another node joins before the hang is found.
    machine.record("d", record(&rules, "d", NodeStatus::Ready { seen: 3 }), time(2_000));
    machine.turn(time(2_000));
    for id in ["a", "b", "c"] {
        machine.record(id, record(&rules, id, NodeStatus::Ready { seen: 3 }), time(3_000));
    }
    machine.turn(time(3_000));
    machine.turn(time(3_000) + time(rules.last_call_ms));
    assert_eq!(member_ids(&machine), ["a", "b", "c", "d"]);
    report(&mut machine, &rules, &[("a", waits(4)), ("b", waits(4)), ("c", stuck(4)), ("d", stuck(4))]);
    report(&mut machine, &rules, &[("c", still_stuck(4))]);
    assert_eq!(machine.state().phase, JobPhase::Running, "d may have gone on since its look");
    report(&mut machine, &rules, &[("d", still_stuck(4))]);
    let state = machine.state();
    assert_eq!(state.excluded.keys().collect::<Vec<_>>(), ["c", "d"], "{state:?}");
}

#[test]
fn no_hang_excludes_a_node_unless_it_is_clear_that_newcomers_hold_up_the_others() {
    let rules = level_1(1, 4, 3);
    let case = |what, rules: &JobRules, statuses: [NodeStatus; 3]| {
        let mut machine = joined(rules, &["a", "b"], &["c"]);
        let statuses: Vec<_> = ["a", "b", "c"].into_iter().zip(statuses).collect();
        report(&mut machine, rules, &statuses);
        report_again(&mut machine, rules, &statuses);
        assert_eq!((&machine.state().phase, machine.state().excluded.len()), (&JobPhase::Running, 0), "{what}");
    };
    case("a member hangs", &rules, [stuck(3), waits(3), waits(3)]);
    case("a member hangs too", &rules, [waits(3), stuck(3), stuck(3)]);
    case("all hang", &rules, [stuck(3), stuck(3), stuck(3)]);
    case("all wait", &rules, [waits(3), waits(3), waits(3)]);
    case("one has not reported", &rules, [waits(3), NodeStatus::runs(3), stuck(3)]);
    case("a report of an older round", &rules, [waits(3), waits(2), stuck(3)]);
    case("the newcomer's is of an older round", &rules, [waits(3), waits(3), stuck(2)]);
    case("one has finished", &rules, [waits(3), NodeStatus::done(3), stuck(3)]);
    case("too few would be left", &level_1(3, 4, 3), [waits(3), waits(3), stuck(3)]);
    let held = JobRules { on_failure: OnFailure::Hold, ..rules.clone() };
    case("the others would wait for another node", &held, [waits(3), waits(3), stuck(3)]);
    // From the first round on.
    let mut machine = running(&rules, &["a", "b", "c"]);
    let statuses = [("a", waits(2)), ("b", waits(2)), ("c", stuck(2))];
    report(&mut machine, &rules, &statuses);
    report_again(&mut machine, &rules, &statuses);
    assert_eq!((&machine.state().phase, machine.state().excluded.len()), (&JobPhase::Running, 0));
}

#[test]
fn the_newcomer_that_serves_the_master_is_not_excluded_and_a_node_is_no_newcomer_for_ever() {
    let rules = level_1(1, 3, 3);
    let mut machine = joined(&rules, &["a"], &["b"]);
    report(&mut machine, &rules, &[("a", waits(3))]);
    for status in [stuck(3), still_stuck(3)] {
        let mut serves = record(&rules, "b", status);
        serves.info.serves_master = true;
        machine.record("b", serves, time(700_000));
        machine.turn(time(700_000));
    }
    assert!(machine.state().excluded.is_empty());

    for (lasts, excluded) in [(1_000_000, 1), (2_000_000, 0)] {
        let mut machine = joined(&rules, &["a"], &["b"]);
        machine.record("c", record(&rules, "c", NodeStatus::Ready { seen: 3 }), time(lasts));
        machine.turn(time(lasts));
        for id in ["a", "b"] {
            machine.record(id, record(&rules, id, NodeStatus::Ready { seen: 3 }), time(lasts));
        }
        machine.turn(time(lasts));
        machine.turn(time(lasts) + time(rules.last_call_ms));
        assert_eq!(member_ids(&machine), ["a", "b", "c"]);
        for (id, status) in [("a", waits(4)), ("b", stuck(4)), ("c", waits(4)), ("b", still_stuck(4))] {
            machine.record(id, record(&rules, id, status), time(lasts + 700_000));
            machine.turn(time(lasts + 700_000));
        }
        assert_eq!(machine.state().excluded.len(), excluded, "round 3 lasted {lasts} ms");
    }
}
