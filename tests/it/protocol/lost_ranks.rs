//! Which ranks of nodes that are gone may still run, and for how long the next round waits for them.

use super::cases::level_1;
use super::states::state;
use super::world::time;
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{
    Coordinator, Departure, JobEnd, JobPhase, JobRules, NodeInfo, NodeRecord, NodeStatus, OnNodeLoss, RoundMember,
    RoundStopCause,
};

/// A coordinator whose node b has lost its connection in round 2, a second after it was last heard from; a has stopped.
fn after_a_broken_connection() -> (Coordinator, impl Fn(NodeStatus) -> NodeRecord) {
    let rules = JobRules { lease_ms: 10_000, ..level_1(1, 2, 0) };
    let record = move |status| NodeRecord {
        format: FORMAT,
        info: NodeInfo { rules: rules.clone(), ..NodeInfo::default() },
        status,
    };
    let members = ["a", "b"].map(|id| RoundMember { id: id.into(), info: NodeInfo::default() });
    let mut machine = Coordinator::resume(state(5, 2, JobPhase::Running), members.to_vec(), time(0));
    machine.record("a", record(NodeStatus::runs(2)), time(0));
    // It has not reported yet that it runs.
    machine.record("b", record(NodeStatus::Ready { seen: 1 }), time(0));
    machine.turn(time(0));
    machine.gone("b", Departure::Disconnected { age: time(1_000) }, time(1_000));
    machine.turn(time(1_000));
    assert!(matches!(machine.state().phase, JobPhase::Stopping { why: RoundStopCause::Lost { .. }, end: None }));
    machine.record("a", record(NodeStatus::Ready { seen: 2 }), time(1_100));
    machine.turn(time(1_100));
    (machine, record)
}

/// A connection may break where the node lives on: cut off, it ends what it runs within its lease.
#[test]
fn a_node_lost_at_once_may_still_run_until_its_lease_ends() {
    let (mut machine, _) = after_a_broken_connection();
    machine.turn(time(9_900));
    assert_eq!(machine.state().phase, JobPhase::Gathering);
    machine.turn(time(10_000));
    assert_eq!((machine.state().round, &machine.state().phase), (3, &JobPhase::Running));
}

#[test]
fn a_node_that_is_back_is_waited_for_until_it_has_stopped_and_no_longer() {
    let (mut machine, record) = after_a_broken_connection();
    for status in [NodeStatus::Ready { seen: 1 }, NodeStatus::runs(2)] {
        machine.record("b", record(status), time(2_000));
        machine.turn(time(20_000));
        assert_eq!(machine.state().phase, JobPhase::Gathering, "it may run, or be about to");
    }
    machine.record("b", record(NodeStatus::Ready { seen: 2 }), time(20_000));
    machine.turn(time(20_000));
    assert_eq!((machine.state().round, &machine.state().phase), (3, &JobPhase::Running));
    let (mut machine, record) = after_a_broken_connection();
    machine.record("b", record(NodeStatus::Ready { seen: 2 }), time(2_000));
    machine.turn(time(2_000));
    assert_eq!(machine.state().phase, JobPhase::Running, "its lease goes on, and its ranks have ended");
}

/// Where the job ends with a lost node, its ranks outlive its lease. If no member is left, other nodes begin anew after that, also
/// under another coordinator.
#[test]
fn nodes_that_begin_anew_wait_for_ranks_of_lost_ones() {
    let rules = JobRules { on_loss: OnNodeLoss::End, loss_ms: 60_000, lease_ms: 10_000, ..level_1(1, 1, 0) };
    let record =
        |status| NodeRecord { format: FORMAT, info: NodeInfo { rules: rules.clone(), ..NodeInfo::default() }, status };
    let members = vec![RoundMember { id: "a".into(), info: NodeInfo::default() }];
    let mut machine = Coordinator::resume(state(5, 2, JobPhase::Running), members, time(0));
    machine.record("spare", record(NodeStatus::Ready { seen: 2 }), time(0));
    machine.turn(time(0));
    machine.turn(time(50_000));
    assert_eq!(machine.state().phase, JobPhase::Gathering);
    let mut next = Coordinator::resume(machine.state().clone(), machine.members().to_vec(), time(50_000));
    next.record("spare", record(NodeStatus::Ready { seen: 2 }), time(50_000));
    next.turn(time(50_000));
    for (machine, end) in [(&mut machine, 60_000), (&mut next, 110_000)] {
        machine.turn(time(end - 1));
        assert_eq!(machine.state().phase, JobPhase::Gathering);
        machine.turn(time(end));
        assert_eq!((machine.state().round, &machine.state().phase), (3, &JobPhase::Running));
    }
}

/// The coordinator before was waiting for ranks of lost nodes, and the job has ended since. The wait does not begin again with
/// every turn.
#[test]
fn a_later_coordinator_waits_once_for_ranks_that_it_has_not_seen() {
    let rules = JobRules { on_loss: OnNodeLoss::End, loss_ms: 60_000, lease_ms: 10_000, ..level_1(1, 1, 0) };
    let record =
        |status| NodeRecord { format: FORMAT, info: NodeInfo { rules: rules.clone(), ..NodeInfo::default() }, status };
    let mut ended = state(5, 2, JobPhase::Ended { end: JobEnd::Completed });
    ended.ranks_may_run = true;
    let members = vec![RoundMember { id: "a".into(), info: NodeInfo::default() }];
    let mut machine = Coordinator::resume(ended, members, time(0));
    machine.record("a", record(NodeStatus::done(2)), time(0));
    machine.turn(time(0));
    machine.record("new", record(NodeStatus::Ready { seen: 0 }), time(10_000));
    machine.turn(time(10_000));
    machine.gone("a", Departure::Left, time(30_000));
    machine.turn(time(30_000));
    machine.record("new", record(NodeStatus::Ready { seen: 2 }), time(30_000));
    machine.turn(time(30_000));
    assert_eq!(machine.state().phase, JobPhase::Gathering);
    machine.turn(time(60_000));
    assert_eq!((machine.state().round, &machine.state().phase), (3, &JobPhase::Running));
}
