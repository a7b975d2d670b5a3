//! A simulated node: it follows `next_step`, and its ranks follow the story.

use super::scenario::Life;
use super::world::{Event, World};
use rlaunch::protocol::{
    JobEnd, JobState, NodeRecord, NodeState, NodeStatus, NodeStep, NodeStop, OnNodeLoss, RankFailure, RoundMember,
    RoundStopCause, next_step,
};
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
    stopping: bool,
    failed: Option<RankFailure>,
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
    run: u32,
    /// Counts the times that contact was lost; and whether there is none.
    contact: u32,
    cut: bool,
    signalled: bool,
    last_write: u64,
    /// The rounds in which its ranks exited successfully, and its failures.
    pub well: Vec<u64>,
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
            cut: false,
            signalled: false,
            last_write: 0,
            well: Vec::new(),
            failures: Vec::new(),
            whys: Vec::new(),
        }
    }

    pub fn is_connected(&self) -> bool {
        !self.cut
    }

    pub fn is_signalled(&self) -> bool {
        self.signalled
    }

    /// Whether it has ever been without contact, or was killed.
    pub fn was_away(&self) -> bool {
        self.contact > 0 || self.exit == Some(Exit::Killed)
    }
}

impl World<'_> {
    pub fn node_event(&mut self, event: Event) {
        match event {
            Event::Comes(node) if self.nodes[node].exit.is_none() => {
                self.nodes[node].here = true;
                // A node that comes reads the board, and then says that it is here.
                self.read(node);
                self.put(node);
                self.act(node);
            }
            Event::Hears { node, message } if self.nodes[node].here && !self.nodes[node].cut => {
                match message {
                    Some((state, members)) => self.hear(node, state, members),
                    None => self.read(node),
                }
                self.act(node);
            }
            Event::Lapses { node, contact } => {
                let sim = &mut self.nodes[node];
                if !sim.here || sim.cut && sim.contact == contact {
                    self.write(node, None, self.story.lease);
                }
            }
            Event::Returns { node, contact } if self.nodes[node].here && self.nodes[node].contact == contact => {
                let sim = &mut self.nodes[node];
                sim.cut = false;
                // First it hears how things stand, then it says how it does.
                self.read(node);
                self.put(node);
                self.act(node);
            }
            Event::GivesUp { node, contact } => {
                let sim = &self.nodes[node];
                if sim.here && sim.cut && sim.contact == contact {
                    self.stop_within(node, 0);
                    if self.nodes[node].ranks.is_none() {
                        self.at(self.now + MOST_ALONE, Event::LosesPatience { node });
                    }
                }
            }
            Event::RanksEnd { node, run } => self.ranks_end(node, run),
            Event::PeerGone { node, run } => self.fails(node, run, true),
            Event::RanksStopped { node, run } => self.ranks_stopped(node, run),
            Event::LosesPatience { node } if self.nodes[node].here => {
                let sim = &self.nodes[node];
                if sim.signalled {
                    self.leave(node, Exit::Stopped);
                } else if sim.cut {
                    self.leave(node, Exit::Alone);
                }
            }
            _ => {}
        }
    }

    /// The contents of the board now.
    fn read(&mut self, node: usize) {
        if let Some(state) = self.board.state.clone() {
            let members = self.board.members.clone();
            self.hear(node, state, Some(members));
        }
    }

    fn hear(&mut self, node: usize, state: JobState, members: Option<Vec<RoundMember>>) {
        let sim = &mut self.nodes[node];
        if sim.state.note_state(&state, members.as_deref()) {
            sim.latest = Some(state.clone());
        }
        if let Some(members) = members {
            sim.lists.insert(state.round, members);
        }
    }

    pub fn put(&mut self, node: usize) {
        let plan = &self.story.plans[node];
        let standing = self.nodes[node].state.status.clone();
        let record = NodeRecord { format: plan.format, info: plan.offer.clone(), status: standing };
        self.send(node, Some(record));
    }

    /// The writes of a node arrive in order.
    fn send(&mut self, node: usize, record: Option<NodeRecord>) {
        let at = (self.now + self.delay()).max(self.nodes[node].last_write);
        self.nodes[node].last_write = at;
        self.at(at, Event::Writes { node, record });
    }

    fn stand(&mut self, node: usize, standing: NodeStatus) {
        self.nodes[node].state.status = standing;
        self.put(node);
    }

    fn act(&mut self, node: usize) {
        for _ in 0..4 {
            let sim = &self.nodes[node];
            let Some(state) = sim.latest.as_ref().filter(|_| sim.here) else { return };
            match next_step(&sim.state, state) {
                NodeStep::Wait => return,
                NodeStep::ReportReady { seen } => {
                    assert!(sim.ranks.is_none(), "ready, and its ranks run");
                    self.stand(node, NodeStatus::Ready { seen });
                }
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

    fn start(&mut self, node: usize, round: u64) {
        self.judge.started(&self.nodes, node, round);
        let lives = &self.story.plans[node].lives;
        let sim = &mut self.nodes[node];
        let (Life::Well(lasts) | Life::Fails(lasts)) = lives[(sim.run as usize).min(lives.len() - 1)];
        sim.run += 1;
        sim.ranks = Some(Ranks { round, stopping: false, failed: None });
        let run = sim.run;
        self.stand(node, NodeStatus::Runs { round });
        self.at(self.now + lasts, Event::RanksEnd { node, run });
    }

    fn ranks_end(&mut self, node: usize, run: u32) {
        let lives = &self.story.plans[node].lives;
        if let Life::Fails(_) = lives[(run as usize - 1).min(lives.len() - 1)] {
            return self.fails(node, run, false);
        }
        let sim = &mut self.nodes[node];
        if sim.run != run || sim.ranks.as_ref().is_none_or(|ranks| ranks.stopping) {
            return;
        }
        if let Some(Ranks { round, .. }) = sim.ranks.take() {
            sim.well.push(round);
            self.stand(node, NodeStatus::Done { round });
            self.act(node);
        }
    }

    fn fails(&mut self, node: usize, run: u32, lost_peer: bool) {
        let sim = &mut self.nodes[node];
        let Some(ranks) = sim.ranks.as_mut().filter(|ranks| sim.run == run && !ranks.stopping) else { return };
        let number = sim.lists[&ranks.round].iter().position(|member| member.id == sim.state.id).unwrap();
        let who = format!("rank of node {node}, round {}", ranks.round);
        let failure = RankFailure { node: number, process: who, lost_peer, status: 1, ..RankFailure::default() };
        ranks.failed = Some(failure.clone());
        sim.failures.push(failure);
        self.stop(node);
        self.peers_feel(node);
    }

    fn stop(&mut self, node: usize) {
        let grace = self.some(self.story.grace);
        self.stop_within(node, grace);
    }

    fn stop_within(&mut self, node: usize, grace: u64) {
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
        if sim.signalled || sim.cut {
            let patience = if sim.cut { MOST_ALONE } else { PATIENCE };
            self.at(self.now + patience, Event::LosesPatience { node });
        }
        self.stand(node, standing);
        self.act(node);
    }

    /// The ranks of the same round, where theirs notice.
    fn peers_feel(&mut self, node: usize) {
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
        if came && seen && !sim.cut {
            self.send(node, None);
        } else if came {
            sim.cut = true;
            let contact = sim.contact;
            self.at(self.now + self.story.lease, Event::Lapses { node, contact });
        }
    }

    pub fn cut(&mut self, node: usize, lasts: Option<u64>) {
        if !self.nodes[node].here || self.nodes[node].cut {
            return;
        }
        self.peers_feel(node);
        let plan = &self.story.plans[node];
        let lapse = self.now + self.story.lease;
        // Where the job goes on without the node, its ranks end before its lease lapses (`LeaseTerms`).
        let gives_up = match plan.offer.rules.on_loss {
            OnNodeLoss::Regroup => self.now + self.story.lease * 8 / 10,
            OnNodeLoss::End => lapse + plan.patience.min(plan.offer.rules.loss_ms),
        };
        let sim = &mut self.nodes[node];
        sim.cut = true;
        sim.contact += 1;
        let contact = sim.contact;
        self.at(lapse, Event::Lapses { node, contact });
        self.at(gives_up, Event::GivesUp { node, contact });
        if let Some(lasts) = lasts {
            self.at(self.now + lasts, Event::Returns { node, contact });
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
            self.at(self.now + PATIENCE, Event::LosesPatience { node });
        }
        self.act(node);
    }
}
