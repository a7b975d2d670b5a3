//! Who decides: reads what nodes say of themselves, and writes the job's state.

use super::order::{self, Candidate};
use super::record::{FORMAT, Failure, Offer, OnFailure, OnLoss, Record, Rules, Standing};
use super::state::{End, Lost, Member, Phase, Roll, State, Why};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

/// How often those who wait are told who is here.
const ROLL_EVERY: Duration = Duration::from_secs(10);
/// How many nodes a roll names.
const NAMED: usize = 32;
/// How many refusals are told; who is refused goes at once.
const MOST_REFUSED: usize = 64;
/// How far clocks may be apart before somebody is told.
pub const CLOCKS_APART: Duration = Duration::from_secs(30);

/// A node that is here.
#[derive(Clone, Debug)]
struct Node {
    record: Record,
    came: u64,
}

/// Decides for one job.
#[derive(Clone, Debug)]
pub struct Coordinator {
    state: State,
    members: Vec<Member>,
    /// Whether the members are to be told with the state.
    tells_members: bool,
    nodes: BTreeMap<String, Node>,
    came: u64,
    /// How long before they went those who have gone were heard of.
    ages: BTreeMap<String, Duration>,
    /// Whether it is in the place of another.
    takes_over: bool,
    /// When gathering began, and when somebody last came or went.
    began: Duration,
    moved: Duration,
    /// No round begins before.
    not_before: Duration,
    rolled: Duration,
    next: Option<Duration>,
    changed: bool,
}

impl Coordinator {
    /// For a job of which nothing is known yet.
    pub fn new(now: Duration) -> Self {
        let (phase, refused) = (Phase::Gathering, BTreeMap::new());
        let state = State { format: FORMAT, serial: 0, round: 0, failures: 0, phase, refused, roll: None };
        Self { takes_over: false, ..Self::resume(state, Vec::new(), now) }
    }

    /// In the place of another, which has left off there. Whoever is here has to be told by `record` before `turn`.
    pub fn resume(state: State, members: Vec<Member>, now: Duration) -> Self {
        Self {
            state,
            members,
            tells_members: true,
            nodes: BTreeMap::new(),
            came: 0,
            ages: BTreeMap::new(),
            takes_over: true,
            began: now,
            moved: now,
            not_before: Duration::ZERO,
            rolled: now,
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

    /// A node's record is this now.
    pub fn record(&mut self, id: &str, record: Record, now: Duration) {
        match self.nodes.get_mut(id) {
            Some(node) if node.record == record => return,
            Some(node) => node.record = record,
            None => {
                self.came += 1;
                self.ages.remove(id);
                self.nodes.insert(id.to_owned(), Node { record, came: self.came });
                self.moved = now;
            }
        }
        self.next = Some(now);
    }

    /// A node is not here any more; it was last heard of so long ago.
    pub fn gone(&mut self, id: &str, age: Duration, now: Duration) {
        if self.nodes.remove(id).is_some() {
            self.ages.insert(id.to_owned(), age);
            self.moved = now;
            self.next = Some(now);
        }
    }

    /// When `turn` wants to be called, if ever.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.next
    }

    /// Whether the job has ended, and nobody who had a part in it is here any more.
    pub fn is_over(&self) -> bool {
        let is_here = |member: &Member| self.nodes.contains_key(&member.id);
        matches!(self.state.phase, Phase::Ended { .. }) && !self.members.iter().any(is_here)
    }

    /// Decides. The state, if it is another now, and the members with it, if they are.
    pub fn turn(&mut self, now: Duration) -> Option<(State, Option<Vec<Member>>)> {
        self.next = None;
        if mem::take(&mut self.takes_over) && self.is_of_another_job() {
            self.members.clear();
            self.state.phase = Phase::Gathering;
            (self.state.failures, self.state.roll) = (0, None);
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

    /// Whether nobody who is here had a part in what is known of the job: launchers' ids are new every time.
    fn is_of_another_job(&self) -> bool {
        let is_new = |node: &Node| matches!(node.record.standing, Standing::Ready { seen: 0 });
        self.nodes.values().all(is_new) && !self.members.iter().any(|member| self.nodes.contains_key(&member.id))
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

    /// The offer of who came first among its members, else of all.
    fn first(&self) -> Option<&Offer> {
        let of = |member: &Member| self.nodes.get(&member.id);
        let first = self.members.iter().filter_map(of).min_by_key(|node| node.came);
        let own = |node: &&Node| !node.record.offer.foreign;
        let first = first.filter(own).or_else(|| self.nodes.values().filter(own).min_by_key(|node| node.came));
        first.map(|node| &node.record.offer)
    }

    /// Refuses whoever cannot take part.
    fn refuse(&mut self) {
        let Some((rules, is_numbered)) = self.first().map(|offer| (offer.rules.clone(), offer.rank.is_some())) else {
            return;
        };
        let mut numbered: BTreeMap<usize, (u64, &str)> = BTreeMap::new();
        let mut refused = BTreeMap::new();
        let mut by_arrival: Vec<(&String, &Node)> = self.nodes.iter().collect();
        by_arrival.sort_by_key(|(_, node)| node.came);
        for (id, node) in by_arrival {
            let offer = &node.record.offer;
            let why = if node.record.format != FORMAT {
                Some(format!("its launcher is version {}, which speaks another language", offer.version))
            } else if offer.foreign {
                // Where some have numbers and others have none it computes another order than we do.
                (offer.rank.is_some() != is_numbered).then(|| "--rank: give it to all nodes or to none".to_owned())
            } else {
                offer.rules.differ(&rules)
            };
            let why = why.or_else(|| match offer.rank {
                Some(rank) if rank >= rules.max => {
                    Some(format!("--rank {rank}: there are {} nodes, numbered from 0", rules.max))
                }
                Some(rank) => match numbered.get(&rank) {
                    Some((_, host)) => Some(format!("--rank {rank}: {host} has that number already")),
                    None => {
                        numbered.insert(rank, (node.came, &offer.host));
                        None
                    }
                },
                None => None,
            });
            if let Some(why) = why
                && refused.len() < MOST_REFUSED
            {
                refused.insert(id.clone(), why);
            }
        }
        if refused != self.state.refused {
            self.state.refused = refused;
            self.changed = true;
        }
    }

    /// Those that are ready for another round than this.
    fn ready(&self) -> Vec<Candidate<'_>> {
        let round = self.state.round;
        let is_ready =
            |node: &Node| matches!(node.record.standing, Standing::Ready { seen } if seen >= round || seen == 0);
        let ready = self.nodes.iter().filter(|(id, node)| is_ready(node) && !self.state.refused.contains_key(*id));
        // Who was in the round has to have seen it; Paddle's own launchers take part once.
        let has_seen = |id: &str, node: &Node| {
            !self.members.iter().any(|member| member.id == id) || node.record.standing.stopped_in() >= Some(round)
        };
        let ready = ready.filter(|(id, node)| has_seen(id, node));
        ready.map(|(id, node)| Candidate { id, offer: &node.record.offer, came: node.came }).collect()
    }

    fn gathering(&mut self, now: Duration) -> bool {
        let Some(rules) = self.rules().cloned() else {
            // Nobody is here. Whoever comes is waited for from then on.
            self.began = now;
            return false;
        };
        let ready = self.ready();
        let count = ready.len();
        let last_call = self.moved + Duration::from_millis(rules.last_call_ms);
        let until = self.began + Duration::from_millis(rules.join_ms);
        let enough = count >= rules.max || count >= rules.min && (now >= last_call || now >= until);
        if enough && now >= self.not_before {
            let before: Vec<String> = self.members.iter().map(|member| member.id.clone()).collect();
            let ids = order::round(&ready, rules.max, &before);
            let member = |id: &str| {
                let offer = Offer { rules: Rules::default(), ..self.nodes[id].record.offer.clone() };
                Member { id: id.to_owned(), offer }
            };
            let members: Vec<Member> = ids.into_iter().map(member).collect();
            self.members = members;
            self.ages.clear();
            self.state.round += 1;
            self.state.phase = Phase::Running;
            self.state.roll = None;
            self.tells_members = true;
            return true;
        }
        if now >= until && !enough {
            let waited_ms = millis(now.saturating_sub(self.began));
            let end = End::TooFew { roll: self.roll(&rules, now, until), waited_ms };
            self.state.phase = Phase::Ended { end };
            self.state.roll = None;
            return true;
        }
        let mut wake = until.max(now);
        if enough {
            wake = self.not_before;
        } else if count >= rules.min {
            wake = wake.min(last_call);
        }
        let due = self.rolled + ROLL_EVERY;
        if now >= due {
            let roll = self.roll(&rules, now, until);
            self.rolled = now;
            self.state.roll = Some(roll);
            self.changed = true;
        }
        self.wake(wake.min(self.rolled + ROLL_EVERY));
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
        let Some(rules) = self.rules().cloned() else {
            // All have gone at once.
            let end = self.first_lost().map(|lost| End::Lost { lost });
            self.state.phase = end.map_or(Phase::Running, |end| Phase::Ended { end });
            return matches!(self.state.phase, Phase::Ended { .. });
        };
        let round = self.state.round;
        let of_round = || self.members.iter().filter_map(|member| self.nodes.get(&member.id));
        let failure = of_round().find_map(|node| match &node.record.standing {
            Standing::Failed { round: its, failure } if *its == round => Some(failure.clone()),
            _ => None,
        });
        if let Some(failure) = failure {
            let end = self.after(&rules, &failure);
            return self.stop(Why::Failed { failure }, end);
        }
        let stopped = of_round().find_map(|node| match node.record.standing {
            Standing::Leaves { signal } => Some((node.record.offer.host.clone(), signal)),
            _ => None,
        });
        if let Some((host, signal)) = stopped {
            let end = End::Stopped { host: host.clone(), signal };
            return self.stop(Why::Stopped { host, signal }, Some(end));
        }
        // Paddle's own launchers tell nobody how their ranks end.
        let is_done = |node: &Node| matches!(node.record.standing, Standing::Done { round: its } if its == round);
        let done = of_round().filter(|node| is_done(node)).count();
        let told = of_round().filter(|node| !node.record.offer.foreign).count();
        if let Some(lost) = self.first_lost() {
            let end = (rules.on_loss == OnLoss::End || done > 0).then(|| End::Lost { lost: lost.clone() });
            return self.stop(Why::Lost { lost }, end);
        }
        if done == told && told > 0 {
            self.state.phase = Phase::Ended { end: End::Completed };
            return true;
        }
        // Not once somebody is through: it would all have to be done again.
        let room = rules.max.saturating_sub(self.members.len());
        let is_new = |one: &Candidate<'_>| !self.members.iter().any(|member| member.id == one.id);
        let more: Vec<String> =
            self.ready().iter().filter(|one| is_new(one)).map(|one| one.offer.host.clone()).take(room).collect();
        if !more.is_empty() && done == 0 {
            return self.stop(Why::More { hosts: more }, None);
        }
        self.state.phase = Phase::Running;
        false
    }

    /// How the job ends by a failure, if it does.
    fn after(&mut self, rules: &Rules, failure: &Failure) -> Option<End> {
        let failed = |no_restart| Some(End::Failed { failure: failure.clone(), no_restart });
        match rules.on_failure {
            OnFailure::End => failed(None),
            OnFailure::Hold => None,
            OnFailure::Restart if failure.no_restart.is_some() => failed(failure.no_restart.clone()),
            OnFailure::Restart if self.state.failures >= rules.restarts => {
                failed((rules.restarts > 0).then(|| format!("all {} restarts are used up", rules.restarts)))
            }
            OnFailure::Restart => {
                self.state.failures += 1;
                None
            }
        }
    }

    /// The same of those that are not here alone.
    fn first_gone(&self) -> Option<Lost> {
        self.first_lost().filter(|lost| !self.nodes.contains_key(&self.members[lost.node].id))
    }

    /// The member that has gone, if one has: the one that was heard of longest ago. One that runs nothing any more though
    /// nobody has told it to stop has lost its contact for too long.
    fn first_lost(&self) -> Option<Lost> {
        let round = self.state.round;
        let gave_up = |node: &Node| matches!(node.record.standing, Standing::Ready { seen } if seen >= round);
        let is_lost = |member: &Member| self.nodes.get(&member.id).is_none_or(gave_up);
        let age = |member: &Member| self.ages.get(&member.id).copied().unwrap_or_default();
        let lost = self.members.iter().enumerate().filter(|(_, member)| is_lost(member));
        let (node, member) = lost.max_by_key(|(node, member)| (age(member), Reverse(*node)))?;
        let Offer { host, address, .. } = member.offer.clone();
        Some(Lost { node, host, address, age_ms: millis(age(member)) })
    }

    fn stop(&mut self, why: Why, end: Option<End>) -> bool {
        self.state.phase = Phase::Stopping { why, end };
        true
    }

    fn stopping(&mut self, now: Duration, mut why: Why, mut end: Option<End>) -> bool {
        let round = self.state.round;
        let of_round = || self.members.iter().filter_map(|member| self.nodes.get(&member.id));
        // Whose peer was gone failed later than that, whoever was heard first.
        let blamed = |why: &Why| matches!(why, Why::Failed { failure } if !failure.lost_peer);
        let first = of_round().find_map(|node| match &node.record.standing {
            Standing::Failed { round: its, failure } if *its == round && !failure.lost_peer => Some(failure.clone()),
            _ => None,
        });
        let mut corrected = false;
        if let (Why::Failed { .. }, false, Some(failure)) = (&why, blamed(&why), first) {
            if let Some(End::Failed { failure: old, .. }) = &mut end {
                *old = failure.clone();
            }
            why = Why::Failed { failure };
            corrected = true;
        } else if let (Why::Failed { .. }, false, Some(lost)) = (&why, blamed(&why), self.first_gone()) {
            if end.is_some() {
                end = Some(End::Lost { lost: lost.clone() });
            }
            why = Why::Lost { lost };
            corrected = true;
        }
        let has_stopped = |node: &Node| node.record.standing.stopped_in() >= Some(round) || node.record.offer.foreign;
        if !of_round().all(has_stopped) {
            self.state.phase = Phase::Stopping { why, end };
            return corrected;
        }
        if let Some(end) = end {
            self.state.phase = Phase::Ended { end };
            return true;
        }
        if let Why::Failed { failure } = &why {
            self.not_before = now + Duration::from_millis(failure.delay_ms);
        }
        (self.began, self.moved, self.rolled) = (now, now, now);
        self.state.phase = Phase::Gathering;
        true
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Rules {
    /// In what these differ from the job's, for people; `None`: in nothing.
    pub fn differ(&self, job: &Rules) -> Option<String> {
        let nodes = |rules: &Rules| match (rules.min, rules.max) {
            (min, max) if min == max => max.to_string(),
            (min, max) => format!("{min}:{max}"),
        };
        let restarts = |rules: &Rules| rules.restarts.to_string();
        let seconds = |ms: u64| format!("{} s", ms as f64 / 1000.0);
        let pairs = [
            ("the launcher's words", self.door.clone(), job.door.clone()),
            ("--nnodes", nodes(self), nodes(job)),
            ("restarts", restarts(self), restarts(job)),
            ("what follows a failure", format!("{:?}", self.on_failure), format!("{:?}", job.on_failure)),
            ("what follows a loss", format!("{:?}", self.on_loss), format!("{:?}", job.on_loss)),
            ("the order of nodes", format!("{:?}", self.order), format!("{:?}", job.order)),
            ("the last call", seconds(self.last_call_ms), seconds(job.last_call_ms)),
            ("the time to join", seconds(self.join_ms), seconds(job.join_ms)),
        ];
        let (name, own, others) = pairs.into_iter().find(|(_, own, others)| own != others)?;
        Some(format!("{name}: it was started with {own}, the job with {others}; start all nodes alike"))
    }
}
