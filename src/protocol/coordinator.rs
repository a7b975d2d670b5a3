//! The coordinator: it reads the nodes' records, and writes the job's state.

mod cause;
mod exclusion;
mod participants;

use crate::protocol::admission;
use crate::protocol::clocks;
use crate::protocol::clocks::ClockReading;
use crate::protocol::coordinator_logic::Departure;
use crate::protocol::order;
use crate::protocol::order::Candidate;
use crate::protocol::record::{FORMAT, JobRules, NodeInfo, NodeRecord, NodeStatus, OnFailure, millis};
use crate::protocol::state::{FIRST_REPORT, JobEnd, JobPhase, JobState, REPORT_EVERY, RoundMember, RoundStopCause};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

/// A node that is here.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorNode {
    pub(crate) record: NodeRecord,
    /// Its place in the order in which nodes joined.
    pub(crate) joined: u64,
    /// When it joined, or this coordinator took over.
    pub(crate) came: Duration,
    clock: Option<ClockReading>,
    has_taken_part: bool,
}

/// Decides for one job.
#[derive(Clone, Debug)]
pub struct Coordinator {
    pub(crate) state: JobState,
    pub(crate) members: Vec<RoundMember>,
    /// Whether the members are to be sent with the state.
    sends_members: bool,
    pub(crate) nodes: BTreeMap<String, CoordinatorNode>,
    joined: u64,
    /// All nodes that cannot take part; the state names the first few.
    unfit: BTreeSet<String>,
    /// Nodes that were here when the job ended, and have not left since.
    to_notify: BTreeSet<String>,
    /// Members of the round that are gone: the time between their last sign and that.
    pub(crate) ages: BTreeMap<String, Duration>,
    /// Members of the round that received a signal and are gone: the signals.
    pub(crate) left: BTreeMap<String, i32>,
    /// Whether it has decided anything.
    has_decided: bool,
    /// Whether it continues for another coordinator, and has not yet found a job that goes on.
    takes_over: bool,
    /// When gathering began, or a node joined after all had left.
    began: Option<Duration>,
    /// When a node last joined or left.
    last_change: Duration,
    /// When the round began, or this coordinator took over.
    round_began: Duration,
    /// How many looks had found the ranks of these nodes idle when it first was clear that all others wait for them.
    pub(crate) idle_looks: BTreeMap<String, u32>,
    /// Exclusions that members have not received yet.
    newly_excluded: Vec<String>,
    /// No round begins before.
    pub(crate) not_before: Duration,
    /// Until when ranks of nodes that are gone may run.
    pub(crate) may_run: BTreeMap<String, Duration>,
    /// When waiting nodes receive the participants next.
    next_report: Duration,
    next_deadline: Option<Duration>,
    changed: bool,
}

impl Coordinator {
    /// For a job of which nothing is known yet.
    pub fn new(now: Duration) -> Self {
        let (phase, refused, to_receive_end) = (JobPhase::Gathering, BTreeMap::new(), BTreeSet::new());
        let state = JobState {
            format: FORMAT,
            serial: 0,
            round: 0,
            failures: 0,
            phase,
            excluded: BTreeMap::new(),
            last_failed: None,
            newcomers: BTreeSet::new(),
            refused,
            held_failure: None,
            warnings: Vec::new(),
            to_receive_end,
            ranks_may_run: false,
            stopped_at: None,
            participants: None,
        };
        Self { takes_over: false, ..Self::resume(state, Vec::new(), now) }
    }

    /// Continues for another coordinator that stopped there. The records of all nodes that are here have to be passed to `record`
    /// before `turn`, in the order in which the nodes joined: the first makes the rules, and keeps a number that two have.
    pub fn resume(state: JobState, members: Vec<RoundMember>, now: Duration) -> Self {
        Self {
            state,
            members,
            sends_members: true,
            nodes: BTreeMap::new(),
            joined: 0,
            unfit: BTreeSet::new(),
            to_notify: BTreeSet::new(),
            ages: BTreeMap::new(),
            left: BTreeMap::new(),
            has_decided: false,
            takes_over: true,
            began: Some(now),
            last_change: now,
            round_began: now,
            idle_looks: BTreeMap::new(),
            newly_excluded: Vec::new(),
            not_before: Duration::ZERO,
            may_run: BTreeMap::new(),
            next_report: now + FIRST_REPORT,
            next_deadline: Some(now),
            changed: true,
        }
    }

    /// The job's state.
    pub fn state(&self) -> &JobState {
        &self.state
    }

    /// The members of its last round.
    pub fn members(&self) -> &[RoundMember] {
        &self.members
    }

    /// The nodes that are here, with their records.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &NodeRecord)> {
        self.nodes.iter().map(|(id, node)| (id.as_str(), &node.record))
    }

    /// A node has a new record. Records of one node have to come in order.
    pub fn record(&mut self, id: &str, record: NodeRecord, now: Duration) {
        if !self.has_ranks(id, &record) {
            self.may_run.remove(id);
        }
        match self.nodes.get_mut(id) {
            Some(node) if node.record == record => return,
            Some(node) => node.record = record,
            None => {
                self.joined += 1;
                self.ages.remove(id);
                // A node that was here before the first decision may have joined at any time.
                let clock_ms = Some(record.info.clock_ms).filter(|clock| *clock > 0 && self.has_decided);
                let clock = clock_ms.map(|clock_ms| ClockReading { clock_ms, joined: now });
                let (joined, has_taken_part) = (self.joined, self.members.iter().any(|member| member.id == id));
                self.nodes.insert(id.to_owned(), CoordinatorNode { record, joined, came: now, clock, has_taken_part });
                self.last_change = now;
            }
        }
        self.next_deadline = Some(now);
    }

    /// A node is gone.
    pub fn gone(&mut self, id: &str, departure: Departure, now: Duration) {
        let longest = self.rules().and_then(|rules| departure.ranks_run_for(rules));
        let node = self.nodes.remove(id);
        if let (Some(node), Some(longest)) = (&node, longest)
            && self.has_ranks(id, &node.record)
        {
            self.may_run.insert(id.to_owned(), now + longest);
        }
        // The coordinator before may be a member that is not here. Nothing is kept of other nodes.
        if (node.is_some() || self.takes_over) && self.members.iter().any(|member| member.id == id) {
            self.ages.insert(id.to_owned(), departure.silence());
            if let Some(NodeStatus::Leaves { signal }) = node.as_ref().map(|node| &node.record.status) {
                self.left.insert(id.to_owned(), *signal);
            }
        }
        if node.is_some() {
            self.to_notify.remove(id);
            self.last_change = now;
            self.next_deadline = Some(now);
        }
    }

    /// When `turn` is to be called next, if ever.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.next_deadline
    }

    /// Whether the job has ended, and all nodes that have to receive that have left.
    pub fn is_over(&self) -> bool {
        matches!(self.state.phase, JobPhase::Ended { .. }) && self.to_notify.is_empty()
    }

    /// Decides. Returns the state if it has changed, with the members if they have changed.
    pub fn turn(&mut self, now: Duration) -> Option<(JobState, Option<Vec<RoundMember>>)> {
        self.next_deadline = None;
        if !std::mem::replace(&mut self.has_decided, true) && self.takes_over {
            self.note_missing_members(now);
        }
        if self.has_new_nodes_only() {
            self.begin_anew(now);
        }
        self.refuse_unfit(now);
        while self.make_transition(now) {
            self.changed = true;
        }
        self.changed |= self.note_lingering_ranks();
        if !mem::take(&mut self.changed) {
            return None;
        }
        // A state that was read may have any numbers.
        self.state.serial = self.state.serial.saturating_add(1);
        let members = mem::take(&mut self.sends_members).then(|| self.members.clone());
        Some((self.state.clone(), members))
    }

    /// Whether no member of the round is here any more, but other nodes are: they begin anew. So do launchers that find an earlier
    /// job of the same name (their ids are new every time). If that job has ended, they wait until the nodes that saw it open have
    /// left, because these still have to receive its end.
    fn has_new_nodes_only(&mut self) -> bool {
        if self.nodes.is_empty() {
            return false;
        }
        let is_new = |node: &CoordinatorNode| matches!(node.record.status, NodeStatus::Ready { seen: 0 });
        let deserted = !self.members.iter().any(|member| self.nodes.contains_key(&member.id));
        if !matches!(self.state.phase, JobPhase::Ended { .. }) {
            let found = mem::take(&mut self.takes_over);
            return deserted && (found || !self.members.is_empty());
        }
        if self.takes_over {
            let members: BTreeSet<&String> = self.members.iter().map(|member| &member.id).collect();
            let awaiting_end = &self.state.to_receive_end;
            let saw = self
                .nodes
                .iter()
                .filter(|(id, node)| !is_new(node) || members.contains(id) || awaiting_end.contains(*id));
            self.to_notify = saw.map(|(id, _)| id.clone()).collect();
        }
        self.takes_over && self.to_notify.is_empty()
    }

    fn begin_anew(&mut self, now: Duration) {
        self.takes_over = false;
        self.members.clear();
        self.to_notify.clear();
        self.sends_members = true;
        self.changed = true;
        (self.state.failures, self.state.held_failure, self.state.last_failed) = (0, None, None);
        self.state.excluded.clear();
        self.state.newcomers.clear();
        self.state.stopped_at = None;
        self.state.to_receive_end.clear();
        if self.state.phase != JobPhase::Gathering {
            self.gather(now);
        }
    }

    fn gather(&mut self, now: Duration) {
        (self.began, self.last_change, self.next_report) = (Some(now), now, now + FIRST_REPORT);
        self.state.phase = JobPhase::Gathering;
        self.state.participants = None;
    }

    fn end(&mut self, end: JobEnd) -> bool {
        self.to_notify = self.nodes.keys().filter(|id| !self.unfit.contains(*id)).cloned().collect();
        let is_new = |id: &&String| matches!(self.nodes[*id].record.status, NodeStatus::Ready { seen: 0 });
        self.state.to_receive_end = self.to_notify.iter().filter(is_new).cloned().collect();
        self.state.phase = JobPhase::Ended { end };
        self.state.participants = None;
        true
    }

    /// Makes one step of the state machine; whether there was one.
    fn make_transition(&mut self, now: Duration) -> bool {
        match mem::replace(&mut self.state.phase, JobPhase::Gathering) {
            JobPhase::Gathering => self.turn_gathering(now),
            JobPhase::Running => self.turn_running(now),
            JobPhase::Stopping { why, end } => self.turn_stopping(now, why, end),
            ended @ JobPhase::Ended { .. } => {
                self.state.phase = ended;
                false
            }
        }
    }

    /// The rules of the job.
    pub(crate) fn rules(&self) -> Option<&JobRules> {
        self.first_node().map(|info| &info.rules)
    }

    /// The node that makes the rules: a member of the round, else the first to join of those that can take part.
    fn first_node(&self) -> Option<&NodeInfo> {
        let own = |record: &&NodeRecord| !record.info.is_paddle_launcher;
        let first = || {
            let nodes = self.nodes.iter().filter(|(_, node)| own(&&node.record));
            let right = |(id, node): &(&String, &CoordinatorNode)| {
                let fit = admission::could_be_fit(&node.record);
                (!fit, fit && self.state.refused.contains_key(*id), node.joined)
            };
            nodes.min_by_key(right).map(|(_, node)| &node.record)
        };
        self.of_round().find(own).or_else(first).map(|record| &record.info)
    }

    /// Nodes that are ready for the next round. They have to know the last one: a node that does not might still begin it, or an
    /// earlier one. The records of Paddle's own launchers say nothing of rounds, and these take part once.
    pub(crate) fn ready_nodes(&self) -> Vec<Candidate<'_>> {
        let round = self.state.round;
        let is_ready = |node: &CoordinatorNode| match node.record.status {
            NodeStatus::Ready { .. } if node.record.info.is_paddle_launcher => !node.has_taken_part,
            NodeStatus::Ready { seen } => seen >= round,
            _ => false,
        };
        let ready = self.nodes.iter().filter(|(id, node)| is_ready(node) && !self.unfit.contains(*id));
        ready.map(|(id, node)| Candidate { id, info: &node.record.info, joined: node.joined }).collect()
    }

    fn turn_gathering(&mut self, now: Duration) -> bool {
        let Some(rules) = self.rules().cloned() else {
            // No node is here. Gathering begins when one joins.
            self.began = None;
            return false;
        };
        if self.began.is_none() {
            self.gather(now);
        }
        let began = self.began.unwrap_or(now);
        let ready = self.ready_nodes();
        let count = ready.len();
        let last_call = self.last_change + Duration::from_millis(rules.last_call_ms);
        let until = began + Duration::from_millis(rules.join_ms);
        // A node that is here, but has not reported ready yet, is waited for: left out, it would stop the round again at once.
        let is_coming = |(id, CoordinatorNode { record, .. }): (&String, &CoordinatorNode)| match &record.status {
            _ if self.unfit.contains(id) || record.info.is_paddle_launcher => false,
            NodeStatus::Leaves { .. } => false,
            NodeStatus::Failed { failure, .. } => self.state.held_failure.as_ref() != Some(failure),
            NodeStatus::Ready { seen } => *seen < self.state.round,
            NodeStatus::Runs { .. } | NodeStatus::Stops { .. } | NodeStatus::Done { .. } => true,
        };
        let called = now >= last_call && !self.nodes.iter().any(is_coming);
        // The number with which users of the legacy launcher begin, and later the number of the last round.
        let usual = rules.no_last_call_at.map(|first| if self.members.is_empty() { first } else { self.members.len() });
        let is_usual = usual == Some(count);
        let enough = count >= rules.max || count >= rules.min && (is_usual || called || now >= until);
        // A node that was considered lost, and has come back with running ranks, has to stop them first.
        let runs = self.nodes.iter().any(|(id, node)| self.has_ranks(id, &node.record));
        let ranks_gone_at = self.ranks_gone_at();
        if enough && !runs && now >= ranks_gone_at {
            let before: Vec<String> = self.members.iter().map(|member| member.id.clone()).collect();
            let ids = order::order_round(&ready, rules.max, &before);
            let infos = || ids.iter().map(|id| &self.nodes[*id].record.info);
            let mut warnings = Vec::from_iter(admission::version_warning(infos()));
            warnings.extend(admission::fingerprint_warnings(infos()));
            self.members = RoundMember::list(ids.into_iter().map(|id| (id, &self.nodes[id].record.info)));
            self.note_newcomers(&before);
            for member in &self.members {
                self.nodes.entry(member.id.clone()).and_modify(|node| node.has_taken_part = true);
            }
            (self.may_run, self.ages, self.left) = Default::default();
            self.state.round = self.state.round.saturating_add(1);
            self.state.phase = JobPhase::Running;
            self.state.participants = None;
            let readings: Vec<(&str, ClockReading)> =
                self.of_members().filter_map(|node| Some((node.record.info.host.as_str(), node.clock?))).collect();
            self.state.warnings = clocks::offset_warnings(&readings);
            self.state.warnings.append(&mut warnings);
            self.state.warnings.append(&mut self.newly_excluded);
            self.round_began = now;
            self.sends_members = true;
            return true;
        }
        if now >= until && !enough {
            let waited_ms = millis(now.saturating_sub(began));
            let end = JobEnd::TooFew { participants: self.participants(&rules, now, until), waited_ms };
            return self.end(end);
        }
        let mut wake = until;
        if enough {
            // While a node still runs ranks, its next record is waited for.
            wake = if runs { Duration::MAX } else { ranks_gone_at };
        } else if count >= rules.min && now < last_call {
            wake = wake.min(last_call);
        }
        if now >= self.next_report {
            let left = if count >= rules.min { until.min(last_call) } else { until };
            let left = if enough { ranks_gone_at.max(now) } else { left };
            let participants = self.participants(&rules, now, left);
            self.next_report = now + REPORT_EVERY;
            self.state.participants = Some(participants);
            self.changed = true;
        }
        self.wake_at(wake.min(self.next_report));
        false
    }

    pub(crate) fn wake_at(&mut self, at: Duration) {
        self.next_deadline = Some(self.next_deadline.map_or(at, |other| other.min(at)));
    }

    fn turn_running(&mut self, now: Duration) -> bool {
        self.state.phase = JobPhase::Running;
        let Some(rules) = self.rules().cloned() else {
            // All nodes have left at once.
            return self.find_lost(false).is_some_and(|lost| self.end(JobEnd::Lost { lost }));
        };
        self.forget_failures(now);
        if let Some(why) = self.find_cause(true) {
            let end = self.end_by(&rules, &why);
            return self.begin_stop(now, why, end);
        }
        // Paddle's own launchers do not report how their ranks end.
        let (done, reporting) =
            (self.count_done(), self.of_round().filter(|record| !record.info.is_paddle_launcher).count());
        if done == reporting && reporting > 0 {
            let stopped_at = |record: &NodeRecord| match record.status {
                NodeStatus::Done { stopped_at, .. } => stopped_at,
                _ => None,
            };
            self.state.stopped_at = self.of_round().filter_map(stopped_at).max();
            return self.end(JobEnd::Completed);
        }
        if let Some(failure) = self.exclude_stuck(&rules) {
            return self.begin_stop(now, RoundStopCause::Failed { failure }, None);
        }
        // Not once a node has finished: it would have to repeat everything. Nor while ranks are about to save and stop.
        let is_noticed = |record: &NodeRecord| matches!(record.status, NodeStatus::Runs { is_noticed: true, .. });
        let hosts = if done > 0 || self.of_round().any(is_noticed) { Vec::new() } else { self.newcomers(&rules) };
        let until = self.round_began + Duration::from_millis(rules.min_round_ms);
        if now < until && !hosts.is_empty() {
            self.wake_at(until);
            return false;
        }
        !hosts.is_empty() && self.begin_stop(now, RoundStopCause::More { hosts }, None)
    }

    fn begin_stop(&mut self, now: Duration, why: RoundStopCause, end: Option<JobEnd>) -> bool {
        self.forget_newcomers(now, &why);
        self.state.phase = JobPhase::Stopping { why, end };
        true
    }

    fn turn_stopping(&mut self, now: Duration, mut why: RoundStopCause, mut end: Option<JobEnd>) -> bool {
        let round = self.state.round;
        let rules = self.rules().cloned();
        let is_secondary =
            |why: &RoundStopCause| matches!(why, RoundStopCause::Failed { failure } if failure.lost_peer);
        let mut corrected = false;
        if let (true, Some(better), Some(rules)) = (is_secondary(&why), self.find_cause(false), &rules)
            && !is_secondary(&better)
        {
            (end, why, corrected) = (self.end_by(rules, &better), better, true);
        }
        // A node that receives a signal while the job is to go on stops the job all the same.
        if let (None, Some(stopped), Some(rules)) = (&end, self.find_other_stopped(&why), &rules) {
            (end, why, corrected) = (self.end_by(rules, &stopped), stopped, true);
        }
        // A failure is reported at once, and again when all ranks of its node have ended.
        if let (RoundStopCause::Failed { failure }, Some(rules)) = (&why, &rules)
            && !failure.hangs
            && let Some(known) = self.final_failure(failure)
        {
            let known = RoundStopCause::Failed { failure: known };
            (end, why, corrected) = (self.end_by(rules, &known), known, true);
        }
        let has_stopped =
            |record: &NodeRecord| record.status.stopped_in() >= Some(round) || record.info.is_paddle_launcher;
        if !self.of_round().all(has_stopped) {
            self.state.phase = JobPhase::Stopping { why, end };
            return corrected;
        }
        // Meanwhile too few may be left to continue without a node that fails.
        let by_failure = || self.end_by(rules.as_ref()?, &why).filter(|end| matches!(end, JobEnd::Failed { .. }));
        if let Some(end) = end.or_else(|| self.end_by_any_loss(rules.as_ref())).or_else(by_failure) {
            return self.end(end);
        }
        if let (RoundStopCause::Failed { failure }, Some(rules)) = (&why, &rules)
            && let Some(excluded) = self.exclude(rules, failure)
        {
            self.newly_excluded.push(excluded);
            self.refuse_unfit(now);
            self.gather(now);
            return true;
        }
        // Members that hang have been excluded when the stop began.
        self.refuse_unfit(now);
        if let RoundStopCause::Failed { failure } = why {
            self.not_before = self.not_before.max(now + Duration::from_millis(failure.delay_ms));
            match rules.map(|rules| rules.on_failure) {
                _ if failure.again => {}
                Some(OnFailure::Restart) => self.state.failures = self.state.failures.saturating_add(1),
                Some(OnFailure::Hold) => self.state.held_failure = Some(failure),
                _ => {}
            }
        }
        self.gather(now);
        true
    }
}
