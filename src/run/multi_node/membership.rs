//! Membership of this node in an elastic job: its record, the job's state as received, and what follows for its ranks.

use crate::model::Endpoint;
use crate::protocol::record::FORMAT;
use crate::protocol::{
    JobEnd, JobPhase, JobState, NodeInfo, NodeRecord, NodeState, NodeStatus, NodeStep, NodeStop, OnNodeLoss,
    Participants, RoundMember, RoundStopCause, next_step,
};
use crate::rendezvous::backend::{BackendEvent, RendezvousBackend};
use crate::rendezvous::master::MasterServer;
use crate::run::multi_node::connectivity::{BackendKind, Disconnected, PartitionDecision};
use crate::sys::clock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use tracing::{info, warn};

/// Why the other nodes or the rendezvous backend stop the ranks of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundStop {
    /// The other nodes stop it too.
    ByOthers {
        /// Why; `None`: they took this node for lost, and wait for it before their next round.
        cause: Option<RoundStopCause>,
        /// How the job ended, if it did.
        end: Option<JobEnd>,
    },
    /// The other nodes do not wait for this one.
    LeftBehind {
        /// How the job ended, if it did.
        end: Option<JobEnd>,
    },
    /// This node may not take part any more, for this reason.
    Refused(String),
    /// The rendezvous backend has been unreachable for too long, with this error.
    Unreachable(String),
}

/// How long leaving may take before the first round.
const LEAVE_EARLY_PATIENCE: Duration = Duration::from_millis(500);

/// This node as a member of the job.
pub struct Membership {
    backend: Box<dyn RendezvousBackend>,
    /// The embedded master, if this node serves it.
    server: Option<MasterServer>,
    /// The address of the rendezvous backend as text.
    address: String,
    node_state: NodeState,
    info: NodeInfo,
    state: Option<JobState>,
    members: Vec<RoundMember>,
    refused: Option<String>,
    lost: Option<Disconnected>,
    kind: BackendKind,
    /// Time without a heartbeat after which a node is considered lost.
    lease: Duration,
    /// When lost contact has to be checked again.
    due: Option<Duration>,
}

impl Membership {
    /// The record of a node as text.
    pub fn record(info: &NodeInfo, status: &NodeStatus) -> String {
        let record = NodeRecord { format: FORMAT, info: info.clone(), status: status.clone() };
        // Serialization of these types cannot fail.
        serde_json::to_string(&record).unwrap_or_default()
    }

    /// A node that has just published its record through this backend under this id.
    pub fn new(
        (backend, server): (Box<dyn RendezvousBackend>, Option<MasterServer>),
        address: String,
        id: &str,
        info: NodeInfo,
        (kind, lease): (BackendKind, Duration),
    ) -> Self {
        Self {
            backend,
            server,
            address,
            node_state: NodeState::new(id),
            info,
            state: None,
            members: Vec::new(),
            refused: None,
            lost: None,
            kind,
            lease,
            due: None,
        }
    }

    /// The address of the rendezvous backend as text.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What this node offers.
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// Publishes the status of this node.
    pub fn publish(&mut self, status: NodeStatus) {
        self.node_state.status = status;
        self.backend.put(&Self::record(&self.info, &self.node_state.status));
    }

    /// Publishes why its ranks stop, if they run.
    pub fn report_stop(&mut self, why: NodeStop) {
        if let NodeStatus::Runs { round } = self.node_state.status {
            self.publish(NodeStatus::Stops { round, why });
        }
    }

    /// Receives events, once the descriptor is readable. Returns the participants if they have changed.
    pub fn receive(&mut self) -> Option<Participants> {
        let mut participants = None;
        for event in self.backend.take_events() {
            match event {
                BackendEvent::State { state, members } => {
                    participants = self.apply_state(&state, members.as_deref()).or(participants)
                }
                BackendEvent::Lost { why } if self.lost.is_none() => {
                    if matches!(self.node_state.status, NodeStatus::Runs { .. }) {
                        let limit = match &self.kind {
                            BackendKind::Master => self.lease * 3 / 10,
                            BackendKind::Etcd(_, patience) => *patience,
                        };
                        warn!(
                            "no contact with {}: {why}; the ranks keep running for up to {} s",
                            self.address,
                            limit.as_secs_f64()
                        );
                    }
                    let now = clock::now();
                    self.lost = Some(Disconnected::new(now, why));
                    self.due = Some(now);
                }
                BackendEvent::Lost { why } => {
                    if let Some(lost) = &mut self.lost {
                        lost.why = why;
                    }
                }
                BackendEvent::Back => {
                    self.due = None;
                    if let Some(lost) = self.lost.take() {
                        let gone = (clock::now() - lost.since).as_secs_f64();
                        info!("contact with {} restored after {gone:.1} s", self.address);
                    }
                }
                BackendEvent::Refused { why } => self.refused = Some(why),
            }
        }
        participants
    }

    fn apply_state(&mut self, state: &str, members: Option<&str>) -> Option<Participants> {
        let state: JobState = match serde_json::from_str(state) {
            Ok(state) => state,
            Err(error) => {
                self.refused = Some(format!("the coordinator at {} sent an invalid state: {error}", self.address));
                return None;
            }
        };
        // The master's states end with it; at etcd a job's name may be taken again.
        let is_anothers = state.round < self.node_state.known_round || state.serial < self.node_state.serial;
        if is_anothers && matches!(self.kind, BackendKind::Etcd(..)) {
            let why =
                "the job of this node does not exist any more: it ended without this node, or etcd has lost its data";
            self.refused = Some(format!("{}: {why}", self.address));
            return None;
        }
        let members: Option<Vec<RoundMember>> = members.and_then(|text| serde_json::from_str(text).ok());
        let seen = self.node_state.known_round;
        let is_newest = self.node_state.note_state(&state, members.as_deref());
        if let Some(members) = members.filter(|_| self.node_state.known_round > seen) {
            self.members = members;
        }
        if !is_newest {
            return None;
        }
        let known = self.state.as_ref().and_then(|known| known.participants.as_ref());
        let participants = state.participants.clone().filter(|participants| known != Some(participants));
        self.state = Some(state);
        participants
    }

    /// The next step of this node.
    pub fn step(&self) -> NodeStep {
        match (&self.refused, &self.state) {
            (Some(why), _) => NodeStep::Refused(why.clone()),
            (None, Some(state)) => next_step(&self.node_state, state),
            (None, None) => NodeStep::Wait,
        }
    }

    /// Why the ranks of this node have to stop, if they do, and the time within which they have to end; `None`: the grace period,
    /// because the other nodes wait for them.
    pub fn round_stop(&mut self) -> Option<(RoundStop, Option<Duration>)> {
        if let Some(why) = &self.refused {
            // The lease may not be renewed any more. That is known when two thirds of it are over at the latest.
            return Some((RoundStop::Refused(why.clone()), Some(self.lease * 3 / 10)));
        }
        let lost = self.lost_contact().map(|(why, within)| (why, within.unwrap_or_default()));
        let limit = lost.as_ref().map(|(_, within)| *within);
        match self.step() {
            NodeStep::Kill { end } => Some((RoundStop::LeftBehind { end }, Some(Duration::ZERO))),
            NodeStep::Stop { why, end } => Some((RoundStop::ByOthers { cause: why, end }, limit)),
            _ => lost.map(|(why, _)| (RoundStop::Unreachable(why), limit)),
        }
    }

    /// The error once contact has been lost for too long, and the time within which ranks have to end if this node alone is cut
    /// off; `None`: the time for which they may outlive etcd is over.
    pub fn lost_contact(&mut self) -> Option<(String, Option<Duration>)> {
        let lost = self.lost.as_mut()?;
        let now = clock::now();
        let others = self.members.iter().filter(|member| member.info.address != self.info.address);
        let others: Vec<(String, u16)> =
            others.filter_map(|member| probe_address(&member.info)).map(|at| (at.host, at.port)).collect();
        let decision = lost.decide(now, &self.kind, self.lease, &others);
        let (at, why, gone) = (&self.address, &lost.why, now.saturating_sub(lost.since).as_secs_f64());
        match decision {
            PartitionDecision::Until(due) => {
                self.due = Some(due);
                None
            }
            PartitionDecision::CutOff(within) if self.kind == BackendKind::Master => {
                self.due = None;
                Some((format!("no contact with {at} for {gone:.1} s: {why}"), Some(within)))
            }
            PartitionDecision::CutOff(within) => {
                self.due = self.kind.gives_up_at(lost.since);
                let why = format!("this node is cut off: neither {at} nor any other node answers ({why})");
                Some((why, Some(within)))
            }
            PartitionDecision::TooLong => {
                self.due = None;
                Some((format!("no contact with {at} for {gone:.0} s: {why}"), None))
            }
        }
    }

    /// Whether this node may take part again once contact is restored: the job continues on other nodes, and its state is not
    /// kept by one of them.
    pub fn may_rejoin(&self) -> bool {
        matches!(self.kind, BackendKind::Etcd(..)) && self.info.rules.on_loss == OnNodeLoss::Regroup
    }

    /// The error while there is no contact.
    pub fn contact_error(&self) -> Option<&str> {
        self.lost.as_ref().map(|lost| lost.why.as_str())
    }

    /// When `round_stop` and `lost_contact` have to be called even without an event.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Whether the job's state has been received.
    pub fn has_state(&self) -> bool {
        self.state.is_some()
    }

    /// The job's state as last received.
    pub fn state(&self) -> Option<&JobState> {
        self.state.as_ref()
    }

    /// The members of the last round and this node's index among them.
    pub fn round(&self) -> Option<(&[RoundMember], usize)> {
        let own = self.members.iter().position(|member| member.id == self.node_state.id)?;
        Some((&self.members, own))
    }

    /// Whether it has taken part in no round.
    pub fn has_run_nothing(&self) -> bool {
        self.node_state.status == NodeStatus::Ready { seen: 0 } && self.node_state.round.is_none()
    }

    /// Whether its ranks have exited successfully.
    pub fn is_done(&self) -> bool {
        matches!(self.node_state.status, NodeStatus::Done { .. })
    }

    /// Leaves the job.
    pub fn close(&mut self, patience: Duration) -> io::Result<()> {
        // Before the first round the other nodes need no report.
        let begun = self.state.as_ref().is_some_and(|state| state.phase != JobPhase::Gathering);
        let patience = if begun { patience } else { patience.min(LEAVE_EARLY_PATIENCE) };
        let left = self.backend.close(patience);
        // The server closes last, so that the other nodes still receive the outcome.
        if let Some(mut server) = self.server.take() {
            server.close(patience);
        }
        left
    }
}

/// An address on which a node can be probed.
fn probe_address(info: &NodeInfo) -> Option<Endpoint> {
    let known = [Some(&info.master), info.endpoints.first()];
    known.into_iter().flatten().find_map(|text| Endpoint::parse(text))
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend.as_fd()
    }
}
