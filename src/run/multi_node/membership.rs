//! Membership of this node in an elastic job: its record, the job's state as received, and what follows for its ranks.

use crate::model::plain_text::{escape, escape_document, read_document};
use crate::protocol::member_list;
use crate::protocol::record::FORMAT;
use crate::protocol::{
    JobEnd, JobPhase, JobState, LeaseTerms, NodeInfo, NodeRecord, NodeState, NodeStatus, NodeStep, NodeStop,
    OnNodeLoss, Participants, RankFailure, RankHang, RoundMember, RoundStopCause, next_step,
};
use crate::rendezvous::backend::{BackendEvent, RendezvousBackend};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::master::MasterServer;
use crate::rendezvous::questions::{QuestionListener, QuestionSender};
use crate::supervise::RankStop;
use crate::sys::clock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
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

/// Where the job's state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// In the embedded master of one node, whose end ends the job.
    Master,
    /// In etcd.
    Etcd,
}

/// The lost contact of a node.
struct LostContact {
    since: Duration,
    why: String,
}

/// The pause before the next look at whether a round may begin.
const BEGIN_RETRY: Duration = Duration::from_millis(100);
/// How long leaving may take before the first round.
const LEAVE_EARLY_PATIENCE: Duration = Duration::from_millis(500);

/// This node as a member of the job.
pub struct Membership {
    backend: Box<dyn RendezvousBackend>,
    /// The embedded master, if this node serves it.
    server: Option<MasterServer>,
    has_ended_master: bool,
    /// The address of the rendezvous backend as text.
    address: String,
    node_state: NodeState,
    info: NodeInfo,
    state: Option<JobState>,
    members: Vec<RoundMember>,
    /// Why this node may not take part any more, and how its ranks stop.
    refused: Option<(String, RankStop)>,
    lost: Option<LostContact>,
    hindered: Option<String>,
    kind: BackendKind,
    terms: LeaseTerms,
    lease: Arc<NodeLease>,
    /// The number of the lease under which this node last joined; 0: none. All states before that have been received.
    joined: u16,
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
        (kind, terms, lease): (BackendKind, LeaseTerms, Arc<NodeLease>),
    ) -> Self {
        Self {
            backend,
            server,
            has_ended_master: false,
            address,
            node_state: NodeState::new(id),
            info,
            state: None,
            members: Vec::new(),
            refused: None,
            lost: None,
            hindered: None,
            kind,
            terms,
            lease,
            joined: 0,
        }
    }

    /// Takes part in questions between nodes from now on. To be called once.
    pub fn connect_questions(&mut self, listener: QuestionListener) -> Box<dyn QuestionSender> {
        self.backend.connect_questions(listener)
    }

    /// The address of the rendezvous backend as text.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What this node offers.
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// Publishes the status of this node. If its ranks run from now on, they do under its lease where others may go on without them.
    pub fn publish(&mut self, status: NodeStatus) {
        // A node recognizes its own failure in the state by its texts.
        let status = escaped(status);
        match (&status, self.terms.on_loss) {
            (NodeStatus::Runs { round, .. }, OnNodeLoss::Regroup) => self.lease.hold(*round, self.joined, &self.terms),
            (NodeStatus::Runs { .. } | NodeStatus::Stops { .. }, _) => {}
            _ => self.lease.release(),
        }
        self.node_state.status = status;
        self.backend.put(&Self::record(&self.info, &self.node_state.status));
    }

    /// Publishes why its ranks stop, if they run.
    pub fn report_stop(&mut self, why: NodeStop) {
        if let NodeStatus::Runs { round, .. } = self.node_state.status {
            self.publish(NodeStatus::Stops { round, why });
        }
    }

    /// Publishes how its ranks hang, or that they do not any more. They run under the same lease as before.
    pub fn report_hang(&mut self, hang: Option<RankHang>) {
        let hang = hang.map(escaped);
        if let NodeStatus::Runs { hang: known, .. } = &mut self.node_state.status
            && *known != hang
        {
            *known = hang;
            self.backend.put(&Self::record(&self.info, &self.node_state.status));
        }
    }

    /// Publishes that its ranks are to stop soon: no node that joins stops them before.
    pub fn report_notice(&mut self) {
        if let NodeStatus::Runs { is_noticed, .. } = &mut self.node_state.status
            && !std::mem::replace(is_noticed, true)
        {
            self.backend.put(&Self::record(&self.info, &self.node_state.status));
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
                BackendEvent::Joined { lease } => self.joined = lease,
                BackendEvent::Lost { why } => match (&mut self.lost, escape(&why)) {
                    (Some(lost), why) => lost.why = why,
                    (None, why) => self.note_loss(why),
                },
                BackendEvent::Hindered { why } => {
                    // There is contact.
                    self.lost = None;
                    self.note_hindrance(escape(&why));
                }
                BackendEvent::Back => {
                    if let Some(lost) = self.lost.take() {
                        let gone = (clock::now() - lost.since).as_secs_f64();
                        info!("contact with {} restored after {gone:.1} s", self.address);
                    }
                    if self.hindered.take().is_some() {
                        info!("{} accepts this node again", self.address);
                    }
                }
                BackendEvent::Refused { why } => self.refused = Some((escape(&why), RankStop::WithGrace)),
                BackendEvent::Superseded { why } => self.refused = Some((escape(&why), RankStop::AtOnce)),
            }
        }
        participants
    }

    fn note_loss(&mut self, why: String) {
        // The record that is written when there is contact again must not say what time it was when this node first joined.
        if self.node_state.status == (NodeStatus::Ready { seen: 0 }) {
            self.backend.put(&Self::record(&self.info, &self.node_state.status));
        }
        if let NodeStatus::Runs { .. } = self.node_state.status {
            let left = self.time_to_lapse().unwrap_or_else(|| self.patience()).as_secs_f64();
            warn!("no contact with {}: {why}; the ranks keep running for up to {left:.1} s", self.address);
        }
        self.lost = Some(LostContact { since: clock::now(), why });
    }

    fn note_hindrance(&mut self, why: String) {
        if self.hindered.is_none() {
            warn!(
                "{} renews this node's lease, but serves it no further: {why}; ranks keep running, and no round ends or begins \
                 here before that is mended",
                self.address
            );
        }
        self.hindered = Some(why);
    }

    /// The time for which ranks may run if the lease is not renewed; `None`: none run under it.
    fn time_to_lapse(&self) -> Option<Duration> {
        self.lease.ranks_end_at().map(|at| at.saturating_sub(clock::boot()))
    }

    /// Whether ranks may begin: all that was to be known when this node got its present lease has been received, and that lease has
    /// been renewed lately.
    fn may_begin(&self) -> bool {
        self.joined != 0 && self.joined == self.lease.number() && self.lease.age() < self.terms.ranks_begin_within()
    }

    /// The lease of this node.
    pub fn lease(&self) -> &Arc<NodeLease> {
        &self.lease
    }

    /// Where its ranks find the lease that they run under, if they do.
    pub fn lease_path(&self) -> Option<String> {
        (self.terms.on_loss == OnNodeLoss::Regroup).then(|| self.lease.path())
    }

    /// All ranks of this node have ended.
    pub fn ranks_have_ended(&self) {
        self.lease.release();
    }

    fn apply_state(&mut self, state: &str, members: Option<&str>) -> Option<Participants> {
        let state: JobState = match read_document(state) {
            Ok(state) => state,
            Err(error) => {
                let why = format!("the coordinator at {} sent an invalid state: {error}", self.address);
                self.refused = Some((why, RankStop::WithGrace));
                return None;
            }
        };
        // The master's states end with it; at etcd a job's name may be taken again.
        let is_anothers = state.round < self.node_state.known_round || state.serial < self.node_state.serial;
        if is_anothers && self.kind == BackendKind::Etcd {
            let why =
                "the job of this node does not exist any more: it ended without this node, or etcd has lost its data";
            self.refused = Some((format!("{}: {why}", self.address), RankStop::AtOnce));
            return None;
        }
        let members: Option<Vec<RoundMember>> = members.and_then(member_list::read).map(escaped);
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
            (Some((why, _)), _) => NodeStep::Refused(why.clone()),
            (None, Some(state)) => match next_step(&self.node_state, state) {
                // The round may be one that the others have given up, because this node's lease had lapsed.
                NodeStep::Start { .. } if !self.may_begin() => NodeStep::Wait,
                step => step,
            },
            (None, None) => NodeStep::Wait,
        }
    }

    /// Why the ranks of this node have to stop, if they do, and how.
    pub fn round_stop(&self) -> Option<(RoundStop, RankStop)> {
        let unreachable = self.describe_lapse();
        let how = if unreachable.is_some() { RankStop::AtOnce } else { RankStop::WithGrace };
        if let Some((why, refused)) = &self.refused {
            let how = if unreachable.is_some() { how } else { *refused };
            return Some((RoundStop::Refused(why.clone()), how));
        }
        match (self.step(), unreachable) {
            (NodeStep::Kill { end }, _) => Some((RoundStop::LeftBehind { end }, RankStop::AtOnce)),
            (_, Some(why)) => Some((RoundStop::Unreachable(why), how)),
            (NodeStep::Stop { why, end }, None) => Some((RoundStop::ByOthers { cause: why, end }, how)),
            _ => None,
        }
    }

    /// Why ranks may not run any longer, if that is so: the lease that they run under has lapsed, or there is none and contact has
    /// been lost for too long.
    fn describe_lapse(&self) -> Option<String> {
        if !self.lease.has_lapsed() {
            return self.given_up().filter(|_| self.terms.on_loss == OnNodeLoss::End);
        }
        let (at, age) = (&self.address, self.lease.age().as_secs_f64());
        Some(match &self.lost {
            Some(lost) => format!("no contact with {at} for {age:.1} s: {}", lost.why),
            None => format!("this node was suspended, and its lease with {at} has lapsed"),
        })
    }

    /// The error once contact has been lost for so long that this node gives up, unless ranks run under its lease.
    pub fn given_up(&self) -> Option<String> {
        let lost = self.lost.as_ref()?;
        let gone = clock::now().saturating_sub(lost.since);
        (gone >= self.patience())
            .then(|| format!("no contact with {} for {:.0} s: {}", self.address, gone.as_secs_f64(), lost.why))
    }

    /// How long this node waits for contact, unless ranks run under its lease.
    fn patience(&self) -> Duration {
        match self.kind {
            BackendKind::Master => self.terms.heartbeat_timeout * 3 / 10,
            BackendKind::Etcd if self.may_rejoin() => {
                self.terms.loss_timeout.max(Duration::from_millis(self.info.rules.join_ms))
            }
            BackendKind::Etcd => self.terms.loss_timeout,
        }
    }

    /// Whether this node may take part again once contact is restored: the job continues on other nodes, and its state is not
    /// kept by one of them.
    pub fn may_rejoin(&self) -> bool {
        self.kind == BackendKind::Etcd && self.info.rules.on_loss == OnNodeLoss::Regroup
    }

    /// The error while there is no contact.
    pub fn contact_error(&self) -> Option<&str> {
        self.lost.as_ref().map(|lost| lost.why.as_str())
    }

    /// Why the backend serves this node no further than that it renews its lease, if that is so.
    pub fn hindrance(&self) -> Option<&str> {
        self.hindered.as_deref()
    }

    /// When `step`, `round_stop` and `given_up` have to be called even without an event (`clock::now`).
    pub fn due(&self) -> Option<Duration> {
        let begins = self
            .state
            .as_ref()
            .is_some_and(|state| matches!(next_step(&self.node_state, state), NodeStep::Start { .. }));
        if begins && self.refused.is_none() {
            // It may begin with the next renewal, which is no event.
            return Some(clock::now() + BEGIN_RETRY);
        }
        let lapses = self.time_to_lapse().map(|left| clock::now() + left);
        let gives_up = self.lost.as_ref().map(|lost| lost.since + self.patience());
        lapses.or(gives_up)
    }

    /// Whether the job's state has been received.
    pub fn has_state(&self) -> bool {
        self.state.is_some()
    }

    /// The job's state as last received.
    pub fn state(&self) -> Option<&JobState> {
        self.state.as_ref()
    }

    /// What the other nodes learn of a user who asks this node for another attempt: as of a rank that asks for a restart of all, which
    /// is no failure.
    pub fn restart_request(&self) -> RankFailure {
        RankFailure {
            host: self.info.host.clone(),
            node: self.round().map_or(0, |(_, own)| own),
            process: "a user".into(),
            outcome: "`rlaunch restart`".into(),
            again: true,
            ..RankFailure::default()
        }
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

    /// Whether the round that runs has as many nodes as it may have, without this one.
    pub fn is_spare(&self) -> bool {
        self.members.len() >= self.info.rules.max && self.round().is_none()
    }

    /// The same in a job that replaces no node.
    pub fn is_surplus(&self) -> bool {
        self.is_spare() && !self.info.rules.replace_nodes()
    }

    /// Whether the job refuses this node.
    pub fn is_refused_by_job(&self) -> bool {
        self.refused.is_none()
            && self.state.as_ref().is_some_and(|state| state.refused.contains_key(&self.node_state.id))
    }

    /// Whether its ranks have exited successfully.
    pub fn is_done(&self) -> bool {
        matches!(self.node_state.status, NodeStatus::Done { .. })
    }

    /// Ends the master, if this node serves it: the job is over, and no node may join it any more.
    pub fn end_master(&mut self) {
        self.has_ended_master |= self.server.take().is_some();
    }

    /// Leaves the job.
    pub fn close(&mut self, patience: Duration) -> io::Result<()> {
        self.lease.release();
        // Before the first round the other nodes need no report.
        let begun = self.state.as_ref().is_some_and(|state| state.phase != JobPhase::Gathering);
        let patience = match begun {
            _ if self.has_ended_master => Duration::ZERO,
            true => patience,
            false => patience.min(LEAVE_EARLY_PATIENCE),
        };
        let left = self.backend.close(patience);
        // The server closes last, so that the other nodes still receive the outcome.
        if let Some(mut server) = self.server.take() {
            server.close(patience);
        }
        left
    }
}

/// The same with all texts as nodes read them.
fn escaped<T: Serialize + DeserializeOwned>(value: T) -> T {
    let document = serde_json::to_value(&value).map(escape_document);
    document.and_then(serde_json::from_value).unwrap_or(value)
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend.as_fd()
    }
}
