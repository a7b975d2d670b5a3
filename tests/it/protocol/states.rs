//! What a node makes of the job's states: old ones, those of an earlier job, and an end that it did not see coming.

use super::world::time;
use rlaunch::protocol::{
    Coordinator, JobEnd, JobPhase, JobState, NodeInfo, NodeState, NodeStep, RoundMember, next_step,
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
