//! What a node makes of the job's states: old ones, those of an earlier job, and an end that it did not see coming.

use super::world::time;
use rlaunch::protocol::state::LostNode;
use rlaunch::protocol::{
    Coordinator, JobEnd, JobPhase, JobState, NodeInfo, NodeState, NodeStatus, NodeStep, NodeStop, RankFailure,
    RoundMember, RoundStopCause, next_step,
};

pub(super) fn state(serial: u64, round: u64, phase: JobPhase) -> JobState {
    JobState { serial, round, phase, ..Coordinator::new(time(0)).state().clone() }
}

#[test]
fn outdated_states_are_ignored() {
    let mut node = NodeState::new("a");
    let member = [RoundMember { id: "a".into(), info: NodeInfo::default() }];
    assert!(node.note_state(&state(5, 2, JobPhase::Running), None));
    assert_eq!(
        next_step(&node, &state(5, 2, JobPhase::Running)),
        NodeStep::Wait,
        "it does not know yet whether it takes part"
    );
    assert!(!node.note_state(&state(4, 2, JobPhase::Running), Some(&member)));
    assert_eq!(
        next_step(&node, &state(5, 2, JobPhase::Running)),
        NodeStep::Start { round: 2 },
        "the list is still the round's"
    );
    assert!(!node.note_state(&state(3, 1, JobPhase::Gathering), Some(&[])));
    assert!(node.note_state(&state(6, 3, JobPhase::Running), Some(&[])));
    assert_eq!(
        next_step(&node, &state(6, 3, JobPhase::Running)),
        NodeStep::ReportReady { seen: 3 },
        "it would take part in the next"
    );
}

/// The job ended before it had heard anything of it.
#[test]
fn a_member_receives_the_end_though_it_never_saw_the_job_open() {
    let (mut node, ended) = (NodeState::new("a"), state(5, 1, JobPhase::Ended { end: JobEnd::Completed }));
    node.note_state(&ended, Some(&[]));
    assert_eq!(next_step(&node, &ended), NodeStep::Wait, "that was an earlier job");
    let (mut node, members) = (NodeState::new("a"), [RoundMember { id: "a".into(), info: NodeInfo::default() }]);
    node.note_state(&ended, Some(&members));
    assert_eq!(next_step(&node, &ended), NodeStep::End(JobEnd::Completed));
}

/// The second of two members of round 1, whose ranks run.
fn running() -> NodeState {
    let mut node = NodeState::new("b");
    let members = ["a", "b"].map(|id| RoundMember { id: id.into(), info: NodeInfo::default() });
    node.note_state(&state(1, 1, JobPhase::Running), Some(&members));
    node.status = NodeStatus::runs(1);
    node
}

fn stopping(why: RoundStopCause) -> JobPhase {
    JobPhase::Stopping { why, end: None }
}

fn lost(node: usize, age_ms: u64) -> RoundStopCause {
    RoundStopCause::Lost { lost: LostNode { node, age_ms, ..LostNode::default() } }
}

#[test]
fn ranks_are_killed_where_the_others_do_not_wait_for_them() {
    let ended = JobPhase::Ended { end: JobEnd::Completed };
    let more = stopping(RoundStopCause::More { hosts: Vec::new() });
    let kill = NodeStep::Kill { end: None };
    assert_eq!(next_step(&running(), &state(5, 2, JobPhase::Running)), kill);
    assert_eq!(next_step(&running(), &state(5, 2, more.clone())), kill, "a later round stops");
    assert_eq!(next_step(&running(), &state(5, 2, stopping(lost(1, 9)))), kill, "of a later round");
    assert_eq!(next_step(&running(), &state(5, 1, stopping(lost(1, 9)))), kill, "silent for its lease");
    assert_eq!(next_step(&running(), &state(5, 1, ended)), NodeStep::Kill { end: Some(JobEnd::Completed) });
    let why = NodeStop::Signal { signal: 15 };
    let stops = NodeState { status: NodeStatus::Stops { round: 1, why }, ..running() };
    assert_eq!(next_step(&stops, &state(5, 2, JobPhase::Running)), kill);
    assert_eq!(next_step(&stops, &state(5, 2, more)), kill);
}

#[test]
fn ranks_that_the_others_wait_for_have_their_grace_period() {
    for why in [lost(0, 9), lost(1, 0), RoundStopCause::More { hosts: Vec::new() }] {
        let step = NodeStep::Stop { why: Some(why.clone()), end: None };
        assert_eq!(next_step(&running(), &state(5, 1, stopping(why))), step);
    }
    let back = next_step(&running(), &state(5, 1, JobPhase::Gathering));
    assert_eq!(back, NodeStep::Stop { why: None, end: None }, "it is back before the next round");
}

/// A node that knows the members of round 2, and whether it is one of them.
fn knows_round_2(status: NodeStatus, is_member: bool) -> NodeState {
    let mut node = NodeState::new("b");
    let other = if is_member { "b" } else { "c" };
    let members = ["a", other].map(|id| RoundMember { id: id.into(), info: NodeInfo::default() });
    node.note_state(&state(4, 2, JobPhase::Running), Some(&members));
    NodeState { status, ..node }
}

fn failed(round: u64, process: &str) -> NodeStatus {
    let failure = RankFailure { process: process.into(), ..RankFailure::default() };
    NodeStatus::Failed { round, failure }
}

#[test]
fn a_node_follows_the_phase_of_the_job() {
    let (ready, done) = (|seen| NodeStatus::Ready { seen }, |round| NodeStatus::done(round));
    let leaves = NodeStatus::Leaves { signal: 15 };
    let more = || stopping(RoundStopCause::More { hosts: Vec::new() });
    let report = |seen| NodeStep::ReportReady { seen };
    for (phase, is_member, status, step) in [
        (JobPhase::Running, true, ready(1), NodeStep::Start { round: 2 }),
        (JobPhase::Running, true, ready(2), NodeStep::Wait),
        (JobPhase::Running, true, NodeStatus::runs(2), NodeStep::Wait),
        (JobPhase::Running, false, ready(1), report(2)),
        (JobPhase::Running, false, ready(2), NodeStep::Wait),
        (JobPhase::Running, true, done(1), report(1)),
        (JobPhase::Running, true, done(2), NodeStep::Wait),
        (JobPhase::Running, true, failed(1, "rank 0"), report(1)),
        (JobPhase::Running, true, failed(2, "rank 0"), NodeStep::Wait),
        (JobPhase::Running, true, leaves.clone(), NodeStep::Wait),
        (more(), true, ready(1), report(2)),
        (more(), true, ready(2), NodeStep::Wait),
        (more(), true, done(2), NodeStep::Wait),
        (more(), true, failed(2, "rank 0"), NodeStep::Wait),
        (more(), true, leaves.clone(), NodeStep::Wait),
        (JobPhase::Gathering, false, ready(1), report(2)),
        (JobPhase::Gathering, false, ready(2), NodeStep::Wait),
        (JobPhase::Gathering, true, done(2), report(2)),
        (JobPhase::Gathering, true, failed(2, "rank 0"), report(2)),
        (JobPhase::Gathering, true, leaves, NodeStep::Wait),
    ] {
        let node = knows_round_2(status.clone(), is_member);
        assert_eq!(next_step(&node, &state(5, 2, phase.clone())), step, "{phase:?}, {is_member}, {status:?}");
    }
}

#[test]
fn a_refused_node_kills_its_ranks_before_it_goes() {
    let mut refuses = state(5, 2, JobPhase::Running);
    refuses.refused.insert("b".into(), "its rules are others".into());
    for (status, step) in [
        (NodeStatus::runs(2), NodeStep::Kill { end: None }),
        (NodeStatus::Ready { seen: 2 }, NodeStep::Refused("its rules are others".into())),
    ] {
        assert_eq!(next_step(&knows_round_2(status, true), &refuses), step);
    }
    refuses.refused = [("c".to_owned(), "its rules are others".to_owned())].into();
    assert_eq!(next_step(&knows_round_2(NodeStatus::Ready { seen: 2 }, true), &refuses), NodeStep::Wait);
}

/// The others wait for another node in the place of the one whose failure is held.
#[test]
fn only_the_node_whose_failure_is_held_leaves() {
    let mut holds = state(5, 2, JobPhase::Gathering);
    let NodeStatus::Failed { failure, .. } = failed(2, "rank 0") else { unreachable!() };
    holds.held_failure = Some(failure.clone());
    let end = JobEnd::Failed { failure, no_restart: None };
    assert_eq!(next_step(&knows_round_2(failed(2, "rank 0"), true), &holds), NodeStep::End(end));
    let ready = NodeStep::ReportReady { seen: 2 };
    assert_eq!(next_step(&knows_round_2(failed(2, "rank 1"), true), &holds), ready);
    assert_eq!(next_step(&knows_round_2(NodeStatus::done(2), true), &holds), ready);
}

#[test]
fn an_end_is_for_nodes_that_belong_to_the_job() {
    let ended = state(5, 2, JobPhase::Ended { end: JobEnd::Completed });
    let end = NodeStep::End(JobEnd::Completed);
    let new = || NodeState::new("b");
    let mut awaits_end = ended.clone();
    awaits_end.to_receive_end.insert("b".into());
    assert_eq!(next_step(&new(), &ended), NodeStep::Wait, "that was an earlier job");
    assert_eq!(next_step(&new(), &awaits_end), end);
    assert_eq!(next_step(&NodeState { saw_job_open: true, ..new() }, &ended), end);
    assert_eq!(next_step(&NodeState { round: Some(2), ..new() }, &ended), end);
    assert_eq!(next_step(&NodeState { round: Some(1), ..new() }, &ended), NodeStep::Wait);
    assert_eq!(next_step(&NodeState { status: NodeStatus::done(2), ..new() }, &ended), end);
    let mut node = new();
    node.note_state(&ended, None);
    assert!(!node.saw_job_open);
    node.note_state(&state(6, 2, JobPhase::Gathering), None);
    assert!(node.saw_job_open);
    node.note_state(&JobState { serial: 7, ..ended }, None);
    assert!(node.saw_job_open, "it is not forgotten");
}
