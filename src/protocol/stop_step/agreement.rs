//! One node's part in the agreement on a stop step. Pure: time is an argument, and the ranks' memory is behind effects and events.

use super::notice_time::NoticeTime;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The largest step that a rank can report.
pub const LARGEST_STEP: u64 = (1 << 62) - 2;

/// The number of the node that coordinates.
const COORDINATOR: usize = 0;

/// A step at which node 0 wants all ranks to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Its number, from 1 on. A later one replaces it.
    pub serial: u32,
    /// The step.
    pub step: u64,
}

/// What a node answers to a proposal that it has raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The number of the proposal.
    pub serial: u32,
    /// The newest step of its ranks, if one had reached the proposed step.
    pub reached: Option<u64>,
}

/// The end of the agreement, the same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// All ranks stop at this step.
    StopAt(u64),
    /// No rank stops.
    Abandoned,
}

/// What a node sends: where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopDocument {
    /// The newest proposal that it knows.
    pub proposal: Option<Proposal>,
    /// Its answer to it.
    pub answer: Option<Answer>,
    /// The decision, if it knows it.
    pub decision: Option<Decision>,
}

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopEvent {
    /// The ranks are to stop.
    Noticed,
    /// A proposal has been raised in the ranks' memory, and their steps have been read after that.
    Raised {
        /// The number of the proposal.
        serial: u32,
        /// The newest step of this node's ranks; `None`: no rank has reported one.
        newest: Option<u64>,
    },
    /// Another node has sent this document.
    Heard {
        /// The number of that node.
        from: usize,
        /// The document.
        document: StopDocument,
    },
}

/// Where a document goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRecipient {
    /// To node 0, which alone needs what the others answer.
    Coordinator,
    /// To all other nodes.
    All,
}

/// What a node has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopEffect {
    /// Let ranks that reach this step wait; then read the ranks' steps and report `Raised`.
    Raise(Proposal),
    /// Send this, with the time of the notice.
    Send(StopRecipient, StopDocument),
    /// Let the ranks stop, or go on. Comes once.
    Decide(Decision),
}

/// One node's part in the agreement.
#[derive(Debug)]
pub struct StopAgreement {
    own: usize,
    patience: Duration,
    resend: Duration,
    is_noticed: bool,
    document: StopDocument,
    /// On node 0: the last answer of each node, and whether the node knows the decision.
    others: Vec<(Option<Answer>, bool)>,
    /// When nothing is waited for any longer.
    gives_up: Option<Duration>,
    resends: Option<Duration>,
    time: NoticeTime,
}

impl StopAgreement {
    /// Node `own` of `nodes`. `patience`: after which time without a decision the agreement is abandoned, where that is safe;
    /// `resend`: after which time without an answer a document is sent again.
    pub fn new((own, nodes): (usize, usize), patience: Duration, resend: Duration) -> Self {
        Self {
            own,
            patience,
            resend,
            is_noticed: false,
            document: StopDocument::default(),
            others: vec![(None, false); nodes],
            gives_up: None,
            resends: None,
            time: NoticeTime::new(if own == COORDINATOR { 1..nodes } else { 0..1 }, resend),
        }
    }

    /// The decision, if it is known.
    pub fn decision(&self) -> Option<Decision> {
        self.document.decision
    }

    /// Where this node stands.
    pub fn document(&self) -> StopDocument {
        self.document
    }

    /// When `handle_timeout` is due; `None`: not before the next event.
    pub fn due(&self) -> Option<Duration> {
        [self.gives_up, self.resends, self.time.due()].into_iter().flatten().min()
    }

    /// The time of the notice ends then at the latest, for this node. A shorter time is due at once (`due`).
    pub fn limit_time(&mut self, now: Duration, ends: Duration) {
        self.time.limit(now, ends);
    }

    /// The same, as another node has sent it. `asks`: that node did not know this one's time (`asks_for_time`).
    pub fn hear_time(&mut self, now: Duration, (from, ends): (usize, Duration), asks: bool) {
        self.time.hear(now, (from, ends), asks);
    }

    /// Whether this node does not know yet that the nodes to which it sends know its time: each message says so.
    pub fn asks_for_time(&self) -> bool {
        !self.time.is_known()
    }

    /// Handles an event. `newest`: the newest step of this node's ranks, as read lately.
    pub fn handle(&mut self, now: Duration, event: StopEvent, newest: Option<u64>, effects: &mut Vec<StopEffect>) {
        match event {
            StopEvent::Noticed => self.notice(now, newest, effects),
            StopEvent::Raised { serial, newest } => self.raised(now, serial, newest, effects),
            StopEvent::Heard { from, .. } if from == self.own || from >= self.others.len() => {}
            StopEvent::Heard { from, document } if self.own == COORDINATOR => {
                self.notice(now, newest, effects);
                self.hear_answer(now, from, document, effects);
            }
            StopEvent::Heard { from: COORDINATOR, document } => self.hear_coordinator(now, document, effects),
            // That node has abandoned the agreement before it has answered node 0, which can decide nothing else any more.
            StopEvent::Heard { document: StopDocument { decision: Some(Decision::Abandoned), .. }, .. }
                if self.document.decision.is_none() && self.document.proposal.is_none() =>
            {
                self.decide(now, Decision::Abandoned, effects);
            }
            StopEvent::Heard { .. } => {}
        }
    }

    /// Handles the time of `due`; before that time it does nothing.
    pub fn handle_timeout(&mut self, now: Duration, effects: &mut Vec<StopEffect>) {
        if self.gives_up.is_some_and(|at| now >= at) {
            self.gives_up = None;
            if self.document.decision.is_none() {
                self.decide(now, Decision::Abandoned, effects);
                if self.own != COORDINATOR {
                    // Node 0 does not answer, and the other nodes may not know of the notice.
                    effects.push(StopEffect::Send(StopRecipient::All, self.document));
                }
            } else {
                // The others have had their time to learn of the decision.
                self.resends = None;
            }
        }
        if self.resends.is_some_and(|at| now >= at) {
            self.send(now, effects);
        }
        if self.time.due().is_some_and(|at| now >= at) {
            self.push_document(now, effects);
        }
    }

    fn notice(&mut self, now: Duration, newest: Option<u64>, effects: &mut Vec<StopEffect>) {
        if std::mem::replace(&mut self.is_noticed, true) || self.document.decision.is_some() {
            return;
        }
        if self.own == COORDINATOR {
            self.gives_up = Some(now + self.patience);
            self.propose(now, newest, effects);
        } else if self.document.proposal.is_none() {
            self.gives_up = Some(now + self.patience);
            self.send(now, effects);
        }
    }

    /// On node 0: proposes the next step, later than `newest`.
    fn propose(&mut self, now: Duration, newest: Option<u64>, effects: &mut Vec<StopEffect>) {
        let before = self.document.proposal.unwrap_or(Proposal { serial: 0, step: 0 });
        let (serial, ahead) = (before.serial + 1, 1_u64 << before.serial.min(40));
        let step = newest.map_or(before.step, |newest| newest.max(before.step).saturating_add(ahead));
        if step > LARGEST_STEP {
            return self.decide(now, Decision::Abandoned, effects);
        }
        let proposal = Proposal { serial, step };
        self.document = StopDocument { proposal: Some(proposal), answer: None, decision: None };
        effects.push(StopEffect::Raise(proposal));
        self.send(now, effects);
    }

    fn raised(&mut self, now: Duration, serial: u32, newest: Option<u64>, effects: &mut Vec<StopEffect>) {
        let Some(proposal) = self.document.proposal.filter(|proposal| proposal.serial == serial) else { return };
        if self.document.decision.is_some() {
            return;
        }
        let answer = Answer { serial, reached: newest.filter(|newest| *newest >= proposal.step) };
        self.document.answer = Some(answer);
        if self.own == COORDINATOR {
            self.others[COORDINATOR].0 = Some(answer);
            self.count_answers(now, effects);
        } else {
            self.send(now, effects);
        }
    }

    fn hear_answer(&mut self, now: Duration, from: usize, document: StopDocument, effects: &mut Vec<StopEffect>) {
        match (self.document.decision, document.decision) {
            (Some(_), Some(_)) => {
                self.others[from].1 = true;
                let is_known = self.others.iter().enumerate().all(|(node, (_, knows))| node == self.own || *knows);
                if is_known {
                    (self.resends, self.gives_up) = (None, None);
                }
            }
            // It has not heard of the decision yet: it is sent again in time.
            (Some(_), None) => {}
            // A node decides this alone only before it has answered anything.
            (None, Some(_)) => self.decide(now, Decision::Abandoned, effects),
            (None, None) => {
                if document.answer.is_some() {
                    self.others[from].0 = document.answer;
                }
                self.count_answers(now, effects);
            }
        }
    }

    /// On node 0: decides or proposes again once all nodes have answered the proposal.
    fn count_answers(&mut self, now: Duration, effects: &mut Vec<StopEffect>) {
        let Some(proposal) = self.document.proposal.filter(|_| self.document.decision.is_none()) else { return };
        let of_proposal = |answer: &Option<Answer>| answer.filter(|answer| answer.serial == proposal.serial);
        let answers: Vec<Answer> = self.others.iter().filter_map(|(answer, _)| of_proposal(answer)).collect();
        if answers.len() < self.others.len() {
            return;
        }
        match answers.iter().filter_map(|answer| answer.reached).max() {
            Some(newest) => self.propose(now, Some(newest), effects),
            None => self.decide(now, Decision::StopAt(proposal.step), effects),
        }
    }

    /// On another node than node 0.
    fn hear_coordinator(&mut self, now: Duration, document: StopDocument, effects: &mut Vec<StopEffect>) {
        // Node 0 knows of the notice. Once this node has answered, it may not give up alone.
        (self.is_noticed, self.gives_up) = (true, None);
        if self.document.decision.is_some() {
            // Node 0 has not heard that this node knows it, or that this node takes no part.
            return self.push_document(now, effects);
        }
        let known = self.document.proposal.map_or(0, |proposal| proposal.serial);
        self.resends = None;
        if let Some(decision) = document.decision {
            self.document.decision = Some(decision);
            effects.push(StopEffect::Decide(decision));
            self.push_document(now, effects);
        } else if let Some(proposal) = document.proposal.filter(|proposal| proposal.serial > known) {
            self.document = StopDocument { proposal: Some(proposal), answer: None, decision: None };
            effects.push(StopEffect::Raise(proposal));
        } else if self.document.answer.is_some() {
            self.send(now, effects);
        }
    }

    fn decide(&mut self, now: Duration, decision: Decision, effects: &mut Vec<StopEffect>) {
        self.document.decision = Some(decision);
        effects.push(StopEffect::Decide(decision));
        self.gives_up = Some(now + self.patience);
        self.send(now, effects);
    }

    /// Sends where this node stands, and again until there is an answer.
    fn send(&mut self, now: Duration, effects: &mut Vec<StopEffect>) {
        if self.others.len() > 1 {
            self.push_document(now, effects);
            self.resends = Some(now + self.resend);
        }
    }

    fn push_document(&mut self, now: Duration, effects: &mut Vec<StopEffect>) {
        let to = if self.own == COORDINATOR { StopRecipient::All } else { StopRecipient::Coordinator };
        effects.push(StopEffect::Send(to, self.document));
        self.time.note_sent(now);
    }
}
