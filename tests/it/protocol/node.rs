//! A simulated node: it follows `next_step`, and its ranks follow the story.

use super::lease::Faults;
use super::scenario::Life;
use super::world::{Event, World, time};
use rlaunch::protocol::{
    JobEnd, JobState, NodeRecord, NodeState, NodeStatus, NodeStep, NodeStop, OnNodeLoss, RankFailure, RankHang,
    RoundMember, RoundStopCause, next_step,
};
use rlaunch::rendezvous::lease::NodeLease;
use std::collections::BTreeMap;

/// How long a node that was stopped waits for the end of the job.
const PATIENCE: u64 = 30_000;
/// How long a node without contact waits for it.
const MOST_ALONE: u64 = 60_000;

#[derive(Clone, Debug, PartialEq)]
pub enum Exit {
    End(JobEnd),
    Refused(String),
    Killed,
    /// It was stopped from outside, and received no end.
    Stopped,
    /// It had no contact for too long.
    Alone,
}

#[derive(Clone, Debug)]
pub struct Ranks {
    pub round: u64,
    pub stopping: bool,
    failed: Option<RankFailure>,
    /// The launcher process has killed them.
    pub dead: bool,
}

#[derive(Debug)]
pub struct Sim {
    pub number: usize,
    pub state: NodeState,
    pub latest: Option<JobState>,
    pub lists: BTreeMap<u64, Vec<RoundMember>>,
    pub here: bool,
    pub exit: Option<Exit>,
    pub ranks: Option<Ranks>,
    pub run: u32,
    /// Counts the times that contact was lost; and whether there is none.
    pub contact: u32,
    pub lost: bool,
    /// The lease, the number that it has or asks for, and the one under which all that was to be known has been received.
    pub lease: NodeLease,
    pub number_of_lease: u16,
    pub joined: u16,
    /// When the last renewal was sent that the backend has confirmed, and whether a timer waits for the silence after it.
    pub renewed: u64,
    pub is_timed: bool,
    /// Whether something was lost that it has to read or write again.
    pub is_behind: bool,
    pub faults: Faults,
    pub has_slept: bool,
    signalled: bool,
    last_write: u64,
    /// The rounds in which its ranks exited successfully, those in which it reported that they hang, and its failures.
    pub well: Vec<u64>,
    pub hung: Vec<u64>,
    pub failures: Vec<RankFailure>,
    pub whys: Vec<RoundStopCause>,
}

impl Sim {
    pub fn new(number: usize) -> Self {
        Self {
            number,
            state: NodeState::new(&format!("id{number}")),
            latest: None,
            lists: BTreeMap::new(),
            here: false,
            exit: None,
            ranks: None,
            run: 0,
            contact: 0,
            lost: false,
            lease: NodeLease::new().unwrap(),
            number_of_lease: 1,
            joined: 0,
            renewed: 0,
            is_timed: false,
            is_behind: false,
            faults: Faults::default(),
            has_slept: false,
            signalled: false,
            last_write: 0,
            well: Vec::new(),
            hung: Vec::new(),
            failures: Vec::new(),
            whys: Vec::new(),
        }
    }

    pub fn is_signalled(&self) -> bool {
        self.signalled
    }

    /// Whether it has ever been without contact, or was killed.
    pub fn was_away(&self) -> bool {
        self.contact > 0 || self.has_slept || self.exit == Some(Exit::Killed)
    }
}

impl World<'_> {
    /// An event of the node's supervisor process, which hears of it when it runs again.
    pub fn node_event(&mut self, event: Event) {
        let (Event::Comes(node)
        | Event::Hears { node, .. }
        | Event::Renews { node }
        | Event::RenewsAtOnce { node }
        | Event::RenewalAnswered { node, .. }
        | Event::JoinAnswered { node, .. }
        | Event::Silent { node }
        | Event::Overdue { node, .. }
        | Event::GivesUp { node, .. }
        | Event::RanksEnd { node, .. }
        | Event::PeerGone { node, .. }
        | Event::HangFound { node, .. }
        | Event::RanksStopped { node, .. }
        | Event::Signalled { node, .. }
        | Event::LosesPatience { node, .. }) = &event
        else {
            panic!("no event of a node: {event:?}");
        };
        if let Some(until) = self.sleeps_until(*node) {
            return self.at(until, event);
        }
        match event {
            Event::Comes(node) if self.nodes[node].exit.is_none() => {
                let sim = &mut self.nodes[node];
                (sim.here, sim.renewed, sim.is_timed) = (true, self.now, true);
                self.at(self.now + self.silence(), Event::Silent { node });
                self.renews(node);
            }
            Event::Renews { node } => self.renews(node),
            Event::RenewsAtOnce { node } if self.nodes[node].here => self.send_renewal(node),
            Event::RenewalAnswered { node, number, sent, is_granted } if self.nodes[node].here => {
                self.renewal_answered(node, number, sent, is_granted);
            }
            Event::JoinAnswered { node, number, board } if self.nodes[node].here => {
                self.join_answered(node, number, board);
            }
            Event::Silent { node } => self.silent(node),
            Event::Overdue { node, run } => self.overdue(node, run),
            Event::Signalled { node, early } => self.signal(node, early),
            // A node that has not joined yet reads the board again after that.
            Event::Hears { node, .. } if !self.is_reached(node) || self.nodes[node].joined == 0 => {
                self.nodes[node].is_behind = true;
            }
            Event::Hears { node, message } if self.nodes[node].here => {
                match message {
                    Some((state, members)) => self.hear(node, state, members),
                    None => self.read(node),
                }
                self.act(node);
            }
            Event::GivesUp { node, contact } => {
                let sim = &self.nodes[node];
                if sim.here && sim.lost && sim.contact == contact {
                    if self.story.plans[node].offer.rules.on_loss == OnNodeLoss::End {
                        self.stop_within(node, 0);
                    }
                    if self.nodes[node].ranks.is_none() {
                        self.loses_patience(node);
                    }
                }
            }
            Event::RanksEnd { node, run } => self.ranks_end(node, run),
            Event::PeerGone { node, run } => {
                self.fails(node, run, RankFailure { lost_peer: true, ..RankFailure::default() })
            }
            Event::HangFound { node, run, looks } => self.hang_found(node, run, looks),
            Event::RanksStopped { node, run } => self.ranks_stopped(node, run),
            Event::LosesPatience { node, contact } if self.nodes[node].here && self.nodes[node].ranks.is_none() => {
                let sim = &self.nodes[node];
                match contact {
                    None => self.leave(node, Exit::Stopped),
                    Some(contact) if sim.lost && sim.contact == contact => self.leave(node, Exit::Alone),
                    // It has had contact since.
                    Some(_) => {}
                }
            }
            _ => {}
        }
    }

    /// The contents of the board now.
    pub fn read(&mut self, node: usize) {
        if let Some(state) = self.board.state.clone() {
            let members = self.board.members.clone();
            self.hear(node, state, Some(members));
        }
    }

    pub fn hear(&mut self, node: usize, state: JobState, members: Option<Vec<RoundMember>>) {
        let sim = &mut self.nodes[node];
        if sim.state.note_state(&state, members.as_deref()) {
            sim.latest = Some(state.clone());
        }
        if let Some(members) = members {
            sim.lists.insert(state.round, members);
        }
    }

    pub fn record_of(&self, node: usize) -> NodeRecord {
        let plan = &self.story.plans[node];
        let standing = self.nodes[node].state.status.clone();
        NodeRecord { format: plan.format, info: plan.offer.clone(), status: standing }
    }

    pub fn put(&mut self, node: usize) {
        let record = self.record_of(node);
        self.send(node, Some(record));
    }

    /// The writes of a node arrive in order.
    pub fn next_write(&mut self, node: usize) -> u64 {
        let at = (self.now + self.delay()).max(self.nodes[node].last_write);
        self.nodes[node].last_write = at;
        at
    }

    fn send(&mut self, node: usize, record: Option<NodeRecord>) {
        let (at, number) = (self.next_write(node), self.nodes[node].joined);
        self.at(at, Event::Writes { node, number, record });
    }

    fn stand(&mut self, node: usize, standing: NodeStatus) {
        if !matches!(standing, NodeStatus::Runs { .. } | NodeStatus::Stops { .. }) {
            self.nodes[node].lease.release();
        }
        self.nodes[node].state.status = standing;
        self.put(node);
    }

    pub fn act(&mut self, node: usize) {
        for _ in 0..4 {
            let sim = &self.nodes[node];
            let Some(state) = sim.latest.as_ref().filter(|_| sim.here) else { return };
            match next_step(&sim.state, state) {
                NodeStep::Wait => return,
                NodeStep::ReportReady { seen } => {
                    assert!(sim.ranks.is_none(), "ready, and its ranks run");
                    self.stand(node, NodeStatus::Ready { seen });
                }
                // The round may be one that the others have given up.
                NodeStep::Start { .. } if sim.joined != sim.number_of_lease || self.may_not_run(node) => return,
                NodeStep::Start { round } => self.start(node, round),
                NodeStep::Stop { why, .. } => {
                    self.nodes[node].whys.extend(why);
                    return self.stop(node);
                }
                NodeStep::Kill { .. } => return self.stop_within(node, 0),
                NodeStep::End(end) if sim.ranks.is_none() => return self.leave(node, Exit::End(end)),
                NodeStep::End(_) => return self.stop(node),
                NodeStep::Refused(why) => return self.leave(node, Exit::Refused(why)),
            }
        }
        panic!("node {node} knows no end: {:?}", self.nodes[node].state);
    }

    /// Its lease has not been renewed lately.
    fn may_not_run(&self, node: usize) -> bool {
        time(self.now) >= time(self.nodes[node].renewed) + self.terms(node).ranks_begin_within()
    }

    fn start(&mut self, node: usize, round: u64) {
        let excused: Vec<bool> = self.nodes.iter().map(|sim| self.is_excused(sim)).collect();
        self.judge.started(&self.nodes, &excused, node, round);
        let lives = &self.story.plans[node].lives;
        let sim = &mut self.nodes[node];
        let lasts = lives[(sim.run as usize).min(lives.len() - 1)].lasts();
        sim.run += 1;
        sim.ranks = Some(Ranks { round, stopping: false, failed: None, dead: false });
        let run = sim.run;
        self.hold(node, round);
        self.stand(node, NodeStatus::runs(round));
        self.at(self.now + lasts, Event::RanksEnd { node, run });
        self.at(self.now + self.story.hang_after, Event::HangFound { node, run, looks: 1 });
    }

    fn life(&self, node: usize, run: u32) -> Life {
        let lives = &self.story.plans[node].lives;
        lives[(run as usize - 1).min(lives.len() - 1)]
    }

    /// It reports that its ranks hang, or wait for those of others, also where these do not hang; and looks again later.
    fn hang_found(&mut self, node: usize, run: u32, looks: u32) {
        let is_stuck = matches!(self.life(node, run), Life::Hangs(_));
        let sim = &mut self.nodes[node];
        let Some(round) = sim.ranks.as_ref().filter(|ranks| sim.run == run && !ranks.stopping).map(|ranks| ranks.round)
        else {
            return;
        };
        let hang =
            if is_stuck { RankHang::Stuck { place: "rank 0 is in sleep".into(), looks } } else { RankHang::Waits };
        sim.hung.extend(is_stuck.then_some(round));
        self.stand(node, NodeStatus::Runs { round, hang: Some(hang), is_noticed: false });
        self.at(self.now + self.story.hang_after, Event::HangFound { node, run, looks: looks + 1 });
    }

    fn ranks_end(&mut self, node: usize, run: u32) {
        match self.life(node, run) {
            Life::Fails(_) | Life::Hangs(_) => return self.fails(node, run, RankFailure::default()),
            Life::CannotBegin => {
                let no_restart = Some("a rank could not be started".into());
                let failure = RankFailure { cannot_begin: true, no_restart, ..RankFailure::default() };
                return self.fails(node, run, failure);
            }
            Life::Well(_) => {}
        }
        let sim = &mut self.nodes[node];
        if sim.run != run || sim.ranks.as_ref().is_none_or(|ranks| ranks.stopping) {
            return;
        }
        if let Some(Ranks { round, .. }) = sim.ranks.take() {
            sim.well.push(round);
            if sim.lost {
                self.loses_patience(node);
            }
            self.stand(node, NodeStatus::done(round));
            self.act(node);
        }
    }

    fn fails(&mut self, node: usize, run: u32, failure: RankFailure) {
        let sim = &mut self.nodes[node];
        let Some(ranks) = sim.ranks.as_mut().filter(|ranks| sim.run == run && !ranks.stopping) else { return };
        let number = sim.lists[&ranks.round].iter().position(|member| member.id == sim.state.id).unwrap();
        let who = format!("rank of node {node}, round {}", ranks.round);
        let failure = RankFailure { node: number, process: who, status: 1, ..failure };
        ranks.failed = Some(failure.clone());
        sim.failures.push(failure);
        self.stop(node);
        self.peers_feel(node);
    }

    fn stop(&mut self, node: usize) {
        let grace = self.some(self.story.grace);
        self.stop_within(node, grace);
    }

    pub fn stop_within(&mut self, node: usize, grace: u64) {
        let sim = &mut self.nodes[node];
        let run = sim.run;
        if let Some(ranks) = sim.ranks.as_mut().filter(|ranks| !ranks.stopping || grace == 0) {
            ranks.stopping = true;
            self.at(self.now + grace, Event::RanksStopped { node, run });
        }
    }

    fn ranks_stopped(&mut self, node: usize, run: u32) {
        let sim = &mut self.nodes[node];
        if !sim.here || sim.run != run {
            return;
        }
        let Some(Ranks { round, failed, .. }) = sim.ranks.take() else { return };
        let standing = match failed {
            _ if sim.signalled => NodeStatus::Leaves { signal: 15 },
            Some(failure) => NodeStatus::Failed { round, failure },
            None => NodeStatus::Ready { seen: round },
        };
        if sim.signalled {
            self.at(self.now + PATIENCE, Event::LosesPatience { node, contact: None });
        } else if sim.lost {
            self.loses_patience(node);
        }
        self.stand(node, standing);
        self.act(node);
    }

    /// It leaves if contact does not come back.
    fn loses_patience(&mut self, node: usize) {
        let contact = Some(self.nodes[node].contact);
        self.at(self.now + MOST_ALONE, Event::LosesPatience { node, contact });
    }

    /// The ranks of the same round, where theirs notice.
    pub fn peers_feel(&mut self, node: usize) {
        let Some(round) = self.nodes[node].ranks.as_ref().map(|ranks| ranks.round) else { return };
        for peer in 0..self.nodes.len() {
            let runs = self.nodes[peer].ranks.as_ref().is_some_and(|ranks| ranks.round == round);
            if peer != node && runs && self.story.plans[peer].feels {
                let (run, at) = (self.nodes[peer].run, self.now + 1 + self.some(500));
                self.at(at, Event::PeerGone { node: peer, run });
            }
        }
    }

    fn leave(&mut self, node: usize, exit: Exit) {
        assert!(self.nodes[node].ranks.is_none() || exit == Exit::Killed, "it goes, and its ranks run");
        self.over = self.now;
        let sim = &mut self.nodes[node];
        (sim.here, sim.exit) = (false, Some(exit));
        self.send(node, None);
    }

    pub fn kill(&mut self, node: usize, seen: bool) {
        if self.nodes[node].exit.is_some() {
            return;
        }
        self.peers_feel(node);
        let sim = &mut self.nodes[node];
        let came = sim.here;
        (sim.here, sim.exit, sim.ranks) = (false, Some(Exit::Killed), None);
        // Else it goes when its lease lapses.
        if came && seen {
            self.send(node, None);
        }
    }

    pub fn signal(&mut self, node: usize, early: bool) {
        if !self.nodes[node].here || self.nodes[node].signalled {
            return;
        }
        self.nodes[node].signalled = true;
        let round = self.nodes[node].ranks.as_ref().map(|ranks| ranks.round);
        let runs = round.is_some();
        match round {
            Some(round) if early => {
                self.stand(node, NodeStatus::Stops { round, why: NodeStop::Signal { signal: 15 } });
            }
            Some(_) => {}
            None => self.stand(node, NodeStatus::Leaves { signal: 15 }),
        }
        if runs {
            self.peers_feel(node);
            self.stop(node);
        } else {
            self.at(self.now + PATIENCE, Event::LosesPatience { node, contact: None });
        }
        self.act(node);
    }
}
