//! Who decides: reads what nodes say of themselves, and writes the job's state.

use super::admission;
use super::clocks::{self, Reading};
use super::order::{self, Candidate};
use super::record::{FORMAT, Offer, OnFailure, Record, Rules, Standing, millis};
use super::state::{End, Member, Phase, Roll, State, Why};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

/// How often those who wait are told who is here, and how long nobody is at first: most come at once.
const ROLL_EVERY: Duration = Duration::from_secs(10);
const ROLL_SOON: Duration = Duration::from_millis(1500);
/// How many nodes a roll names.
const NAMED: usize = 32;
/// How many refusals are told; who is refused goes at once.
const MOST_REFUSED: usize = 64;

/// A node that is here.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) record: Record,
    pub(super) came: u64,
    /// What its clock said, if that is known.
    clock: Option<Reading>,
}

/// Decides for one job.
#[derive(Clone, Debug)]
pub struct Coordinator {
    pub(super) state: State,
    pub(super) members: Vec<Member>,
    /// Whether the members are to be told with the state.
    tells_members: bool,
    pub(super) nodes: BTreeMap<String, Node>,
    came: u64,
    /// Who cannot take part: all of them, where the state names the first few.
    unfit: BTreeSet<String>,
    /// Who was here when the job ended, and has not gone since.
    owed: BTreeSet<String>,
    /// How long before they went members of the round that have gone were heard of.
    pub(super) ages: BTreeMap<String, Duration>,
    /// By what signals members of the round were stopped that have gone since.
    pub(super) left: BTreeMap<String, i32>,
    /// Whether it has decided anything.
    has_decided: bool,
    /// Whether it is in the place of another, and has not yet found a job that goes on.
    takes_over: bool,
    /// When gathering began, or somebody came after all had gone; and when somebody last came or went.
    began: Option<Duration>,
    moved: Duration,
    /// No round begins before.
    not_before: Duration,
    /// When those who wait are told next.
    roll_due: Duration,
    next: Option<Duration>,
    changed: bool,
}

impl Coordinator {
    /// For a job of which nothing is known yet.
    pub fn new(now: Duration) -> Self {
        let (phase, refused, waited) = (Phase::Gathering, BTreeMap::new(), BTreeSet::new());
        let state = State {
            format: FORMAT,
            serial: 0,
            round: 0,
            failures: 0,
            phase,
            refused,
            goes: None,
            warnings: Vec::new(),
            waited,
            roll: None,
        };
        Self { takes_over: false, ..Self::resume(state, Vec::new(), now) }
    }

    /// In the place of another, which has left off there. Whoever is here has to be told by `record` before `turn`, in
    /// the order in which they came: who came first makes the rules, and keeps a number that two were given.
    pub fn resume(state: State, members: Vec<Member>, now: Duration) -> Self {
        Self {
            state,
            members,
            tells_members: true,
            nodes: BTreeMap::new(),
            came: 0,
            unfit: BTreeSet::new(),
            owed: BTreeSet::new(),
            ages: BTreeMap::new(),
            left: BTreeMap::new(),
            has_decided: false,
            takes_over: true,
            began: Some(now),
            moved: now,
            not_before: Duration::ZERO,
            roll_due: now + ROLL_SOON,
            next: Some(now),
            changed: true,
        }
    }

    /// The job's state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The members of its last round.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Those that are here, with what they say.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Record)> {
        self.nodes.iter().map(|(id, node)| (id.as_str(), &node.record))
    }

    /// A node's record is this now. An older one must not come after a newer.
    pub fn record(&mut self, id: &str, record: Record, now: Duration) {
        match self.nodes.get_mut(id) {
            Some(node) if node.record == record => return,
            Some(node) => node.record = record,
            None => {
                self.came += 1;
                self.ages.remove(id);
                // Who was here before this one began to decide may have come at any time.
                let clock_ms = Some(record.offer.clock_ms).filter(|clock| *clock > 0 && self.has_decided);
                let clock = clock_ms.map(|clock_ms| Reading { clock_ms, came: now });
                self.nodes.insert(id.to_owned(), Node { record, came: self.came, clock });
                self.moved = now;
            }
        }
        self.next = Some(now);
    }

    /// A node is not here any more; it was last heard of so long ago.
    pub fn gone(&mut self, id: &str, age: Duration, now: Duration) {
        let node = self.nodes.remove(id);
        if let Some(Node { record: Record { standing, offer, .. }, .. }) = &node {
            // Whose connection has broken may live on, cut off, until it finds out and has ended what it runs: with the master
            // four tenths of a lease later. Who was silent for a lease has done so.
            let lease = Duration::from_millis(offer.rules.lease_ms);
            if matches!(standing, Standing::Runs { .. } | Standing::Stops { .. }) && age < lease {
                self.not_before = self.not_before.max(now + lease * 4 / 10);
            }
        }
        // Who is not here may be whoever decided before. Of strangers nothing is kept.
        if (node.is_some() || self.takes_over) && self.members.iter().any(|member| member.id == id) {
            self.ages.insert(id.to_owned(), age);
            if let Some(Standing::Leaves { signal }) = node.as_ref().map(|node| &node.record.standing) {
                self.left.insert(id.to_owned(), *signal);
            }
        }
        if node.is_some() {
            self.owed.remove(id);
            self.moved = now;
            self.next = Some(now);
        }
    }

    /// When `turn` wants to be called, if ever.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.next
    }

    /// Whether the job has ended, and nobody is here any more who has to be told so.
    pub fn is_over(&self) -> bool {
        matches!(self.state.phase, Phase::Ended { .. }) && self.owed.is_empty()
    }

    /// Decides. The state, if it is another now, and the members with it, if they are.
    pub fn turn(&mut self, now: Duration) -> Option<(State, Option<Vec<Member>>)> {
        self.next = None;
        self.has_decided = true;
        if self.is_left_to_others() {
            self.begin_anew(now);
        }
        self.refuse();
        while self.transition(now) {
            self.changed = true;
        }
        if !mem::take(&mut self.changed) {
            return None;
        }
        self.state.serial += 1;
        let members = mem::take(&mut self.tells_members).then(|| self.members.clone());
        Some((self.state.clone(), members))
    }

    /// Whether none of the round is here any more, but others are: they begin anew. So do launchers that find an earlier job
    /// of the same name (their ids are new every time); but where that has ended only once nobody is here who saw it open,
    /// because he is to be told.
    fn is_left_to_others(&mut self) -> bool {
        if self.nodes.is_empty() {
            return false;
        }
        let is_new = |node: &Node| matches!(node.record.standing, Standing::Ready { seen: 0 });
        let deserted = !self.members.iter().any(|member| self.nodes.contains_key(&member.id));
        if !matches!(self.state.phase, Phase::Ended { .. }) {
            let found = mem::take(&mut self.takes_over);
            return deserted && (found || !self.members.is_empty());
        }
        if self.takes_over {
            let members: BTreeSet<&String> = self.members.iter().map(|member| &member.id).collect();
            let waited = &self.state.waited;
            let saw =
                self.nodes.iter().filter(|(id, node)| !is_new(node) || members.contains(id) || waited.contains(*id));
            self.owed = saw.map(|(id, _)| id.clone()).collect();
        }
        self.takes_over && self.owed.is_empty()
    }

    fn begin_anew(&mut self, now: Duration) {
        self.takes_over = false;
        self.members.clear();
        self.owed.clear();
        self.tells_members = true;
        self.changed = true;
        (self.state.failures, self.state.goes) = (0, None);
        self.state.waited.clear();
        if self.state.phase != Phase::Gathering {
            self.gather(now);
        }
    }

    fn gather(&mut self, now: Duration) {
        (self.began, self.moved, self.roll_due) = (Some(now), now, now + ROLL_SOON);
        self.state.phase = Phase::Gathering;
        self.state.roll = None;
    }

    fn end(&mut self, end: End) -> bool {
        self.owed = self.nodes.keys().filter(|id| !self.unfit.contains(*id)).cloned().collect();
        let is_new = |id: &&String| matches!(self.nodes[*id].record.standing, Standing::Ready { seen: 0 });
        self.state.waited = self.owed.iter().filter(is_new).cloned().collect();
        self.state.phase = Phase::Ended { end };
        self.state.roll = None;
        true
    }

    /// One step of the machine; whether it made one.
    fn transition(&mut self, now: Duration) -> bool {
        match mem::replace(&mut self.state.phase, Phase::Gathering) {
            Phase::Gathering => self.gathering(now),
            Phase::Running => self.running(),
            Phase::Stopping { why, end } => self.stopping(now, why, end),
            ended @ Phase::Ended { .. } => {
                self.state.phase = ended;
                false
            }
        }
    }

    /// The rules of the job.
    fn rules(&self) -> Option<&Rules> {
        self.first().map(|offer| &offer.rules)
    }

    /// Who makes the rules: its members, else who came first of those that can take part.
    fn first(&self) -> Option<&Offer> {
        let own = |record: &&Record| !record.offer.foreign;
        let first = || {
            let nodes = self.nodes.iter().filter(|(_, node)| own(&&node.record));
            let right = |(id, node): &(&String, &Node)| {
                let fit = admission::could_be_fit(&node.record);
                (!fit, fit && self.state.refused.contains_key(*id), node.came)
            };
            nodes.min_by_key(right).map(|(_, node)| &node.record)
        };
        self.of_round().find(own).or_else(first).map(|record| &record.offer)
    }

    /// Refuses whoever cannot take part. After the end nobody: who comes then waits for another job of this name.
    fn refuse(&mut self) {
        let Some(first) = self.first() else { return };
        if matches!(self.state.phase, Phase::Ended { .. }) {
            return;
        }
        // What was decided stays so, also where another decides who was told of them in another order.
        let members: BTreeSet<&String> = self.members.iter().map(|member| &member.id).collect();
        let refused = &self.state.refused;
        let mut by_right: Vec<(&String, &Node)> = self.nodes.iter().collect();
        by_right.sort_by_key(|(id, node)| (!members.contains(id), refused.contains_key(*id), node.came));
        let unfit = admission::unfit(by_right.into_iter().map(|(id, node)| (id.as_str(), &node.record)), first);
        self.unfit = unfit.keys().cloned().collect();
        let refused: BTreeMap<String, String> = unfit.into_iter().take(MOST_REFUSED).collect();
        if refused != self.state.refused {
            self.state.refused = refused;
            self.changed = true;
        }
    }

    /// Those that are ready for another round than this. They have to have seen it: who has not might still begin it, or one
    /// before. Paddle's own launchers say nothing of rounds.
    fn ready(&self) -> Vec<Candidate<'_>> {
        let round = self.state.round;
        // Paddle's own launchers take part once.
        let is_new = |id: &String| !self.members.iter().any(|member| member.id == *id);
        let is_ready = |id: &String, node: &Node| match node.record.standing {
            Standing::Ready { seen } => seen >= round || node.record.offer.foreign && is_new(id),
            _ => false,
        };
        let ready = self.nodes.iter().filter(|(id, node)| is_ready(id, node) && !self.unfit.contains(*id));
        ready.map(|(id, node)| Candidate { id, offer: &node.record.offer, came: node.came }).collect()
    }

    fn gathering(&mut self, now: Duration) -> bool {
        let Some(rules) = self.rules().cloned() else {
            // Nobody is here. Whoever comes is waited for from then on.
            self.began = None;
            return false;
        };
        if self.began.is_none() {
            self.gather(now);
        }
        let began = self.began.unwrap_or(now);
        let ready = self.ready();
        let count = ready.len();
        let last_call = self.moved + Duration::from_millis(rules.last_call_ms);
        let until = began + Duration::from_millis(rules.join_ms);
        // Whoever is here and has only to say so is waited for: left out he would stop the round again at once.
        let is_coming = |(id, Node { record, .. }): (&String, &Node)| match &record.standing {
            _ if self.unfit.contains(id) || record.offer.foreign => false,
            Standing::Leaves { .. } => false,
            Standing::Failed { failure, .. } => self.state.goes.as_ref() != Some(failure),
            Standing::Ready { seen } => *seen < self.state.round,
            Standing::Runs { .. } | Standing::Stops { .. } | Standing::Done { .. } => true,
        };
        let called = now >= last_call && !self.nodes.iter().any(is_coming);
        // The number that the older launcher's users begin with, and then the one that the job has come to.
        let usual = rules.at_once.map(|first| if self.members.is_empty() { first } else { self.members.len() });
        let is_usual = usual == Some(count);
        let enough = count >= rules.max || count >= rules.min && (is_usual || called || now >= until);
        // One that was given up, and has come back while its ranks still run, has to stop them first.
        let runs = self
            .nodes
            .values()
            .any(|node| matches!(node.record.standing, Standing::Runs { .. } | Standing::Stops { .. }));
        if enough && !runs && now >= self.not_before {
            let before: Vec<String> = self.members.iter().map(|member| member.id.clone()).collect();
            let ids = order::round(&ready, rules.max, &before);
            let member = |id: &str| {
                let offer = Offer { rules: Rules::default(), ..self.nodes[id].record.offer.clone() };
                Member { id: id.to_owned(), offer }
            };
            let members: Vec<Member> = ids.into_iter().map(member).collect();
            self.members = members;
            self.ages.clear();
            self.left.clear();
            self.state.round += 1;
            self.state.phase = Phase::Running;
            self.state.roll = None;
            let readings: Vec<(&str, Reading)> =
                self.of_members().filter_map(|node| Some((node.record.offer.host.as_str(), node.clock?))).collect();
            self.state.warnings = clocks::apart(&readings);
            self.state.warnings.extend(admission::versions(&self.members));
            self.tells_members = true;
            return true;
        }
        if now >= until && !enough {
            let waited_ms = millis(now.saturating_sub(began));
            let end = End::TooFew { roll: self.roll(&rules, now, until), waited_ms };
            return self.end(end);
        }
        let mut wake = until;
        if enough {
            // Where somebody still runs, what he says next is what is waited for.
            wake = if runs { Duration::MAX } else { self.not_before };
        } else if count >= rules.min && now < last_call {
            wake = wake.min(last_call);
        }
        if now >= self.roll_due {
            // Once there are enough, what is left is the last call.
            let left = if count >= rules.min { until.min(last_call) } else { until };
            let roll = self.roll(&rules, now, left);
            self.roll_due = now + ROLL_EVERY;
            self.state.roll = Some(roll);
            self.changed = true;
        }
        self.wake(wake.min(self.roll_due));
        false
    }

    fn wake(&mut self, at: Duration) {
        self.next = Some(self.next.map_or(at, |other| other.min(at)));
    }

    fn roll(&self, rules: &Rules, now: Duration, until: Duration) -> Roll {
        let mut ready = self.ready();
        ready.sort_by_key(|one| (one.offer.rank, one.came));
        let name = |one: &Candidate<'_>| {
            let Offer { host, address, rank, .. } = one.offer;
            let number = rank.map_or(String::new(), |rank| format!("{rank}: "));
            format!("{number}{host} ({address})")
        };
        let numbers: Vec<usize> = ready.iter().filter_map(|one| one.offer.rank).collect();
        let missing = (0..rules.max).filter(|rank| !numbers.contains(rank)).take(NAMED);
        Roll {
            ready: ready.len(),
            min: rules.min,
            max: rules.max,
            here: ready.iter().take(NAMED).map(name).collect(),
            missing: if numbers.is_empty() { Vec::new() } else { missing.collect() },
            left_ms: millis(until.saturating_sub(now)),
        }
    }

    fn running(&mut self) -> bool {
        self.state.phase = Phase::Running;
        let Some(rules) = self.rules().cloned() else {
            // All have gone at once.
            return self.lost(false).is_some_and(|lost| self.end(End::Lost { lost }));
        };
        if let Some(why) = self.cause(true) {
            let end = self.follows(&rules, &why);
            return self.stop(why, end);
        }
        // Paddle's own launchers tell nobody how their ranks end.
        let (done, told) = (self.done(), self.of_round().filter(|record| !record.offer.foreign).count());
        if done == told && told > 0 {
            return self.end(End::Completed);
        }
        // Not once somebody is through: it would all have to be done again.
        let room = rules.max.saturating_sub(self.members.len());
        if room == 0 || done > 0 {
            return false;
        }
        let is_new = |one: &Candidate<'_>| !self.members.iter().any(|member| member.id == one.id);
        let ready = self.ready();
        let hosts: Vec<String> =
            ready.iter().filter(|one| is_new(one)).map(|one| one.offer.host.clone()).take(room).collect();
        !hosts.is_empty() && self.stop(Why::More { hosts }, None)
    }

    fn stop(&mut self, why: Why, end: Option<End>) -> bool {
        self.state.phase = Phase::Stopping { why, end };
        true
    }

    fn stopping(&mut self, now: Duration, mut why: Why, mut end: Option<End>) -> bool {
        let round = self.state.round;
        let rules = self.rules().cloned();
        let is_secondary = |why: &Why| matches!(why, Why::Failed { failure } if failure.lost_peer);
        let mut corrected = false;
        if let (true, Some(better), Some(rules)) = (is_secondary(&why), self.cause(false), &rules)
            && !is_secondary(&better)
        {
            (end, why, corrected) = (self.follows(rules, &better), better, true);
        }
        // Who is stopped while the job is to go on stops it all the same.
        if let (None, Some(stopped), Some(rules)) = (&end, self.stopped().filter(|stopped| *stopped != why), &rules) {
            (end, why, corrected) = (self.follows(rules, &stopped), stopped, true);
        }
        // What was said of a failure at once, said again once it was known better.
        if let (Why::Failed { failure }, Some(rules)) = (&why, &rules)
            && let Some(known) = self.known_better(failure)
        {
            let known = Why::Failed { failure: known };
            (end, why, corrected) = (self.follows(rules, &known), known, true);
        }
        let has_stopped = |record: &Record| record.standing.stopped_in() >= Some(round) || record.offer.foreign;
        if !self.of_round().all(has_stopped) {
            self.state.phase = Phase::Stopping { why, end };
            return corrected;
        }
        if let Some(end) = end {
            return self.end(end);
        }
        if let Why::Failed { failure } = why {
            self.not_before = self.not_before.max(now + Duration::from_millis(failure.delay_ms));
            match rules.map(|rules| rules.on_failure) {
                _ if failure.again => {}
                Some(OnFailure::Restart) => self.state.failures += 1,
                Some(OnFailure::Hold) => self.state.goes = Some(failure),
                _ => {}
            }
        }
        self.gather(now);
        true
    }
}
