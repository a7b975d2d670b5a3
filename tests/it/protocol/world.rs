//! A world in virtual time: a board that keeps records and states as etcd does, nodes, coordinators, and a net that loses,
//! delays, doubles and reorders messages. `checks.rs` checks each publication and each start of a round as it comes.

use super::checks::Judge;
use super::lease::KeptLease;
use super::node::{Exit, Sim};
use super::scenario::{Happening, Story};
use fastrand::Rng;
use rlaunch::protocol::{Coordinator, Departure, JobPhase, JobState, NodeRecord, RoundMember};
use std::collections::BTreeMap;
use std::time::Duration;

/// Later than this no happening befalls any node.
const MOST_EVENTS: usize = 200_000;

#[derive(Clone, Debug)]
pub enum Event {
    Happens(usize),
    Comes(usize),
    /// The contents of the board reach a node; `fresh`: its contents then.
    Hears {
        node: usize,
        message: Option<(JobState, Option<Vec<RoundMember>>)>,
    },
    /// A record reaches the board; `None`: it is taken away.
    Writes {
        node: usize,
        number: u16,
        record: Option<NodeRecord>,
    },
    /// Of the node's lease: see `lease.rs`.
    Renews {
        node: usize,
    },
    RenewsAtOnce {
        node: usize,
    },
    RenewalArrives {
        node: usize,
        number: u16,
        sent: u64,
    },
    RenewalAnswered {
        node: usize,
        number: u16,
        sent: u64,
        is_granted: bool,
    },
    JoinArrives {
        node: usize,
        number: u16,
        record: NodeRecord,
    },
    JoinAnswered {
        node: usize,
        number: u16,
        board: Option<(JobState, Vec<RoundMember>)>,
    },
    Lapses {
        node: usize,
        number: u16,
    },
    Silent {
        node: usize,
    },
    Overdue {
        node: usize,
        run: u32,
    },
    Enforced {
        node: usize,
        run: u32,
    },
    GivesUp {
        node: usize,
        contact: u32,
    },
    RanksEnd {
        node: usize,
        run: u32,
    },
    PeerGone {
        node: usize,
        run: u32,
    },
    HangFound {
        node: usize,
        run: u32,
        looks: u32,
    },
    RanksStopped {
        node: usize,
        run: u32,
    },
    /// `contact`: of a node without contact, the count of its losses; `None`: it was stopped.
    LosesPatience {
        node: usize,
        contact: Option<u32>,
    },
    Signalled {
        node: usize,
        early: bool,
    },
    /// A node's record on the board reaches a coordinator; `what`: the record when it was sent.
    Feeds {
        leader: usize,
        id: String,
        revision: u64,
        what: Option<NodeRecord>,
        age: u64,
    },
    Resyncs {
        leader: usize,
        id: String,
    },
    /// `known`: the records that the leader knew when it decided.
    Publishes {
        leader: usize,
        state: JobState,
        members: Option<Vec<RoundMember>>,
        known: BTreeMap<String, u64>,
    },
    Wakes {
        leader: usize,
    },
    TakesOver,
}

/// The state that all share.
#[derive(Default)]
pub struct Board {
    pub state: Option<JobState>,
    pub members: Vec<RoundMember>,
    pub term: u64,
    pub records: BTreeMap<String, (NodeRecord, u64)>,
    /// When each record was last written or taken away, in writes, and how old it was then.
    pub revisions: BTreeMap<String, (u64, u64)>,
    writes: u64,
}

pub struct Leader {
    pub machine: Coordinator,
    term: u64,
    alive: bool,
    seen: BTreeMap<String, u64>,
    /// In the order in which it received them.
    pub arrived: Vec<String>,
    /// Its publications arrive in order.
    last_arrival: u64,
    under_way: usize,
    /// The round after which it gathers, and since when nodes have been here of which none runs.
    pub gathers: Option<(u64, u64)>,
}

pub struct World<'a> {
    pub story: &'a Story,
    pub now: u64,
    /// When the last launcher went by itself.
    pub over: u64,
    pub board: Board,
    pub nodes: Vec<Sim>,
    /// The node's leases at the backend, and how often a launcher process had to kill ranks.
    pub leases: Vec<KeptLease>,
    pub enforcements: u32,
    pub leaders: Vec<Leader>,
    pub judge: Judge,
    pub rng: Rng,
    queue: BTreeMap<(u64, u64), Event>,
    pushed: u64,
    awaits_leader: bool,
}

pub fn time(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl<'a> World<'a> {
    /// All that happens, until nothing does any more.
    pub fn live(story: &'a Story) -> Self {
        let mut world = World {
            story,
            now: 0,
            over: 0,
            board: Board::default(),
            nodes: story.plans.iter().enumerate().map(|(number, _)| Sim::new(number)).collect(),
            leases: vec![KeptLease::default(); story.plans.len()],
            enforcements: 0,
            leaders: Vec::new(),
            judge: Judge::default(),
            rng: Rng::with_seed(story.seed),
            queue: BTreeMap::new(),
            pushed: 0,
            awaits_leader: false,
        };
        if let Some((state, members)) = &story.left {
            (world.board.state, world.board.members) = (Some(state.clone()), members.clone());
            world.judge.found(state);
        }
        for (number, plan) in story.plans.iter().enumerate() {
            world.at(plan.comes, Event::Comes(number));
        }
        for (number, (at, _)) in story.happenings.iter().enumerate() {
            world.at(*at, Event::Happens(number));
        }
        let mut events = 0;
        let verbose = std::env::var_os("PROTOCOL_SEED").is_some();
        while let Some(((at, _), event)) = world.queue.pop_first() {
            world.now = at;
            if verbose {
                println!("{at} {event:?}");
            }
            world.handle(event);
            let excused: Vec<bool> = world.nodes.iter().map(|sim| world.is_excused(sim)).collect();
            Judge::worlds(&world.nodes, &excused);
            events += 1;
            assert!(events < MOST_EVENTS, "it goes on and on, at {at} ms");
        }
        let most = story.bound();
        assert!(world.over <= most || story.may_alternate(), "it was over at {}, and not by {most}", world.over);
        for (number, node) in world.nodes.iter().enumerate() {
            assert!(node.exit.is_some(), "node {number} waits for ever: {:?}, {:?}", node.state, node.latest);
        }
        world
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.pushed += 1;
        self.queue.insert((at.max(self.now), self.pushed), event);
    }

    pub fn delay(&mut self) -> u64 {
        let most = self.story.net.delay;
        // Now and then nothing at all, so that much comes at the same time.
        if self.rng.bool() { self.rng.u64(0..=most) } else { most }
    }

    /// Up to `most`, or in a calm world exactly that.
    pub fn some(&mut self, most: u64) -> u64 {
        if self.story.net.delay == 0 { most } else { self.rng.u64(0..=most) }
    }

    /// Whether a renewal is lost, or what is sent with it. What else is lost is sent again.
    pub fn is_lost_message(&mut self) -> bool {
        let lost = if self.now < self.story.heals() { self.story.net.lost } else { 0 };
        self.chance(lost)
    }

    fn chance(&mut self, of_100: u32) -> bool {
        self.rng.u32(0..100) < of_100
    }

    /// When a message that is sent now arrives, as many times as it does, and when it is sent again.
    fn arrivals(&mut self) -> (Vec<u64>, Option<u64>) {
        let net = self.story.net;
        let mut times = Vec::new();
        if self.chance(net.lost) {
            return (times, Some(self.now + 1 + self.rng.u64(0..=net.again)));
        }
        times.push(self.now + self.delay());
        if self.chance(net.doubled) {
            times.push(self.now + self.delay() * 2);
        }
        (times, None)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Happens(number) => self.happens(self.story.happenings[number].1),
            Event::TakesOver => self.takes_over(),
            Event::Wakes { leader } => self.turn(leader),
            Event::Feeds { leader, id, revision, what, age } => self.feeds(leader, &id, revision, what, age),
            Event::Resyncs { leader, id } => {
                let (revision, age) = self.board.revisions[&id];
                let what = self.board.records.get(&id).map(|(record, _)| record.clone());
                self.feeds(leader, &id, revision, what, age);
            }
            Event::Publishes { leader, state, members, known } => self.publishes(leader, (state, members), &known),
            Event::Writes { node, number, record } => {
                if self.reaches(node) && self.keeps(node, number) {
                    self.write(node, record, 0);
                } else {
                    self.nodes[node].is_behind = true;
                }
            }
            Event::RenewalArrives { node, number, sent } => self.renewal_arrives(node, number, sent),
            Event::JoinArrives { node, number, record } => self.join_arrives(node, number, record),
            Event::Lapses { node, number } => self.lapses(node, number),
            Event::Enforced { node, run } => self.enforced(node, run),
            other => self.node_event(other),
        }
    }

    fn happens(&mut self, what: Happening) {
        match what {
            Happening::Kill { node, seen } => self.kill(node, seen),
            Happening::Cut { node, lasts, way } => self.cut(node, lasts, way),
            Happening::Sleep { node, who, lasts } => self.sleep(node, who, lasts),
            Happening::Signal { node, early } => match self.sleeps_until(node) {
                Some(until) => self.at(until, Event::Signalled { node, early }),
                None => self.signal(node, early),
            },
            Happening::NewLeader { after, late } => {
                let term = self.board.term;
                for leader in self.leaders.iter_mut().filter(|leader| leader.term == term) {
                    leader.alive &= late;
                }
                self.awaits_leader = true;
                self.at(self.now + after, Event::TakesOver);
            }
        }
    }

    /// A node's record on the board is another now.
    pub fn write(&mut self, node: usize, record: Option<NodeRecord>, age: u64) {
        let id = self.nodes[node].state.id.clone();
        let board = &mut self.board;
        let had = board.records.get(&id).map(|(record, created)| (record.clone(), *created));
        if had.as_ref().map(|(record, _)| record) == record.as_ref() {
            return;
        }
        board.writes += 1;
        let revision = board.writes;
        board.revisions.insert(id.clone(), (revision, age));
        match &record {
            Some(record) => {
                let created = had.map_or(revision, |(_, created)| created);
                board.records.insert(id.clone(), (record.clone(), created));
            }
            None => drop(board.records.remove(&id)),
        }
        for leader in 0..self.leaders.len() {
            if !self.leaders[leader].alive {
                continue;
            }
            let (times, again) = self.arrivals();
            for at in times {
                let (id, what) = (id.clone(), record.clone());
                self.at(at, Event::Feeds { leader, id, revision, what, age });
            }
            if let Some(at) = again {
                self.at(at, Event::Resyncs { leader, id: id.clone() });
            }
        }
        self.wants_leader();
    }

    /// Each node that is there campaigns, where no node leads.
    pub fn wants_leader(&mut self) {
        let term = self.board.term;
        let leads = self.leaders.iter().any(|leader| leader.alive && leader.term == term);
        if !leads && !self.awaits_leader && !self.board.records.is_empty() {
            self.awaits_leader = true;
            self.at(self.now + 10, Event::TakesOver);
        }
    }

    fn takes_over(&mut self) {
        self.awaits_leader = false;
        self.board.term += 1;
        let now = time(self.now);
        let machine = match &self.board.state {
            Some(state) => Coordinator::resume(state.clone(), self.board.members.clone(), now),
            None => Coordinator::new(now),
        };
        let mut leader = Leader {
            machine,
            term: self.board.term,
            alive: true,
            seen: self.board.revisions.iter().map(|(id, (revision, _))| (id.clone(), *revision)).collect(),
            arrived: Vec::new(),
            last_arrival: 0,
            under_way: 0,
            gathers: None,
        };
        let mut by_age: Vec<_> = self.board.records.iter().collect();
        by_age.sort_by_key(|(_, (_, created))| *created);
        for (id, (record, _)) in by_age {
            leader.machine.record(id, record.clone(), now);
            leader.arrived.push(id.clone());
        }
        self.leaders.push(leader);
        self.turn(self.leaders.len() - 1);
    }

    fn feeds(&mut self, number: usize, id: &str, revision: u64, what: Option<NodeRecord>, age: u64) {
        let now = time(self.now);
        let leader = &mut self.leaders[number];
        let seen = leader.seen.entry(id.to_owned()).or_default();
        // The carrier of records hands them over in their order.
        if !leader.alive || revision < *seen {
            return;
        }
        *seen = revision;
        match what {
            Some(record) => {
                leader.machine.record(id, record, now);
                if !leader.arrived.iter().any(|other| other == id) {
                    leader.arrived.push(id.to_owned());
                }
            }
            None => {
                let departure = if age == 0 { Departure::Left } else { Departure::Lapsed { age: time(age) } };
                leader.machine.gone(id, departure, now);
                leader.arrived.retain(|other| other != id);
            }
        }
        self.turn(number);
    }

    fn turn(&mut self, number: usize) {
        let leader = &mut self.leaders[number];
        if !leader.alive {
            return;
        }
        let was = leader.machine.state().phase.clone();
        let said = leader.machine.turn(time(self.now));
        self.judge.turned(self.story, leader, &was, self.now);
        if let Some((state, members)) = said {
            let arrives = self.now + self.delay();
            let leader = &mut self.leaders[number];
            leader.last_arrival = leader.last_arrival.max(arrives);
            leader.under_way += 1;
            let at = leader.last_arrival;
            let known = leader.seen.clone();
            self.at(at, Event::Publishes { leader: number, state, members, known });
        }
        if let Some(next) = self.leaders[number].machine.next_deadline() {
            let at = u64::try_from(next.as_millis()).unwrap();
            assert!(at > self.now, "it is to be called again at once, for ever");
            self.at(at, Event::Wakes { leader: number });
        }
        self.may_leave(number);
    }

    /// A coordinator goes when no node needs it any more.
    fn may_leave(&mut self, number: usize) {
        let leader = &mut self.leaders[number];
        if leader.alive && leader.machine.is_over() && leader.under_way == 0 {
            leader.alive = false;
            self.wants_leader();
        }
    }

    fn publishes(
        &mut self,
        number: usize,
        (state, members): (JobState, Option<Vec<RoundMember>>),
        known: &BTreeMap<String, u64>,
    ) {
        let leader = &mut self.leaders[number];
        leader.under_way -= 1;
        let follows = self.board.state.as_ref().is_none_or(|old| old.serial + 1 == state.serial);
        // The fence. A round does not begin, and no members are given up, while there is a node that the leader does not know.
        let knows = |(id, (_, created)): (&String, &(NodeRecord, u64))| known.get(id) >= Some(created);
        let begins = self.board.state.as_ref().map_or(0, |old| old.round) < state.round;
        let gives_up = !self.board.members.is_empty() && members.as_ref().is_some_and(Vec::is_empty);
        let knows_all = !(begins || gives_up) || self.board.records.iter().all(knows);
        if leader.term != self.board.term || !follows || !knows_all {
            leader.alive = false;
            if !self.leaders.iter().any(|other| other.alive && other.term == self.board.term) {
                self.wants_leader();
            }
            return;
        }
        // Where it has died since, its earlier messages arrive all the same.
        self.judge.published(self.story, &self.nodes, &self.board, &state, members.as_deref());
        self.board.state = Some(state.clone());
        if let Some(members) = &members {
            self.board.members = members.clone();
        }
        for node in 0..self.nodes.len() {
            let (times, again) = self.arrivals();
            for at in times {
                self.at(at, Event::Hears { node, message: Some((state.clone(), members.clone())) });
            }
            if let Some(at) = again {
                self.at(at, Event::Hears { node, message: None });
            }
        }
        self.may_leave(number);
    }

    /// How each launcher has gone.
    pub fn exits(&self) -> Vec<&Exit> {
        self.nodes.iter().filter_map(|node| node.exit.as_ref()).collect()
    }

    /// How often the job came to stand in such a phase.
    pub fn phases(&self, which: fn(&JobPhase) -> bool) -> usize {
        self.judge.states.iter().filter(|state| which(&state.phase)).count()
    }
}
