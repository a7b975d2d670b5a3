//! What a node makes of the job's states: old ones, those of an earlier job, and an end that it did not see coming.

use super::world::time;
use rlaunch::protocol::state::LostNode;
use rlaunch::protocol::{
    Coordinator, JobEnd, JobPhase, JobState, NodeInfo, NodeState, NodeStatus, NodeStep, NodeStop, RoundMember,
    RoundStopCause, next_step,
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
    node.status = NodeStatus::Runs { round: 1 };
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
