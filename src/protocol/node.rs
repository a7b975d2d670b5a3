//! What a node does about the job's state: a function of its own state and the job's, so that a state that it has missed changes
//! nothing.

use crate::protocol::record::NodeStatus;
use crate::protocol::state::{JobEnd, JobPhase, JobState, RoundMember, RoundStopCause};

/// What a node does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeStep {
    /// Wait.
    Wait,
    /// Report that it is ready, and that it knows this round.
    ReportReady {
        /// The round.
        seen: u64,
    },
    /// Start the ranks of this round.
    Start {
        /// The round.
        round: u64,
    },
    /// Stop the ranks. The others wait for them.
    Stop {
        /// Why; `None`: the others took this node for lost, and it has come back before their next round.
        why: Option<RoundStopCause>,
        /// The end of the job that follows, if one does.
        end: Option<JobEnd>,
    },
    /// Kill the ranks. The others do not wait for them.
    Kill {
        /// The end of the job, if it has ended or is about to.
        end: Option<JobEnd>,
    },
    /// End: the job is over.
    End(JobEnd),
    /// End: this node cannot take part.
    Refused(String),
}

/// What a node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Its id, which is another for every launcher.
    pub id: String,
    /// Where it stands.
    pub status: NodeStatus,
    /// The last round that it is a member of.
    pub round: Option<u64>,
    /// Its number in that round.
    pub number: usize,
    /// Whether it has received a state of the job before its end. If not, a job that has ended is an earlier one of the same name.
    pub saw_job_open: bool,
    /// The last round whose members it has received.
    pub known_round: u64,
    /// The serial of the newest state that it has received.
    pub serial: u64,
}

impl NodeState {
    /// The state of a new node.
    pub fn new(id: &str) -> Self {
        let status = NodeStatus::Ready { seen: 0 };
        Self { id: id.to_owned(), status, round: None, number: 0, saw_job_open: false, known_round: 0, serial: 0 }
    }

    /// Takes note of a state, and of the members of its round if they came with it. Whether it is the newest: only then does it
    /// replace the state before.
    pub fn note_state(&mut self, state: &JobState, members: Option<&[RoundMember]>) -> bool {
        if let Some(members) = members.filter(|_| state.round > self.known_round) {
            self.known_round = state.round;
            if let Some(number) = members.iter().position(|member| member.id == self.id) {
                (self.round, self.number) = (Some(state.round), number);
            }
        }
        if state.serial <= self.serial {
            return false;
        }
        self.serial = state.serial;
        self.saw_job_open |= !matches!(state.phase, JobPhase::Ended { .. });
        true
    }
}

/// The next step of a node by the newest state.
pub fn next_step(node: &NodeState, state: &JobState) -> NodeStep {
    let (status, is_member) = (&node.status, node.round == Some(state.round));
    if let Some(why) = state.refused.get(&node.id) {
        return match status {
            NodeStatus::Runs { .. } => NodeStep::Kill { end: None },
            _ => NodeStep::Refused(why.clone()),
        };
    }
    let now = state.round;
    if let (Some(failure), NodeStatus::Failed { failure: own, .. }) = (&state.held_failure, status)
        && failure == own
    {
        return NodeStep::End(JobEnd::Failed { failure: own.clone(), no_restart: None });
    }
    match (&state.phase, status) {
        // The state is that of an earlier job of the same name, which is still ending.
        (JobPhase::Ended { .. }, NodeStatus::Ready { .. })
            if !node.saw_job_open && !is_member && !state.to_receive_end.contains(&node.id) =>
        {
            NodeStep::Wait
        }
        (JobPhase::Ended { end }, NodeStatus::Runs { .. }) => NodeStep::Kill { end: Some(end.clone()) },
        (JobPhase::Ended { end }, _) => NodeStep::End(end.clone()),
        // The others have gone on without this node.
        (
            JobPhase::Running | JobPhase::Stopping { .. },
            NodeStatus::Runs { round, .. } | NodeStatus::Stops { round, .. },
        ) if *round < now => NodeStep::Kill { end: None },
        (_, NodeStatus::Leaves { .. } | NodeStatus::Stops { .. }) => NodeStep::Wait,
        (JobPhase::Running, NodeStatus::Ready { seen }) if *seen < now => match is_member {
            true => NodeStep::Start { round: now },
            // It would take part in the next round, but only if it knows that it is not a member of this one.
            false if node.known_round == now => NodeStep::ReportReady { seen: now },
            false => NodeStep::Wait,
        },
        (JobPhase::Running, NodeStatus::Done { round, .. } | NodeStatus::Failed { round, .. }) if *round < now => {
            NodeStep::ReportReady { seen: *round }
        }
        (JobPhase::Running, _) => NodeStep::Wait,
        // Age 0: its connection has broken, and it may have come back before its lease lapsed.
        (JobPhase::Stopping { why: RoundStopCause::Lost { lost }, end }, NodeStatus::Runs { .. })
            if is_member && lost.node == node.number && lost.age_ms > 0 =>
        {
            NodeStep::Kill { end: end.clone() }
        }
        (JobPhase::Stopping { why, end }, NodeStatus::Runs { .. }) => {
            NodeStep::Stop { why: Some(why.clone()), end: end.clone() }
        }
        (JobPhase::Gathering, NodeStatus::Runs { .. }) => NodeStep::Stop { why: None, end: None },
        (JobPhase::Stopping { .. } | JobPhase::Gathering, NodeStatus::Ready { seen }) if *seen < now => {
            NodeStep::ReportReady { seen: now }
        }
        // If the job goes on, the node is needed again.
        (JobPhase::Gathering, NodeStatus::Done { .. } | NodeStatus::Failed { .. }) => {
            NodeStep::ReportReady { seen: now }
        }
        (JobPhase::Stopping { .. } | JobPhase::Gathering, _) => NodeStep::Wait,
    }
}
