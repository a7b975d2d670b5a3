//! A simulated node's lease: renewals over the net, the two processes that kill its ranks, and what keeps both from it.
//!
//! What is easier here than in reality: leaders run on no node; the master's broken connections do not occur; a node whose contact
//! is back reads the board at once; clocks do not drift; what a launcher does between its decision to begin a round and its first
//! rank takes no time.
//!
//! The lease itself is the real one (`NodeLease`, `LeaseTerms`), with virtual times. The supervisor process follows the protocol,
//! renews the lease and kills the ranks when it has lapsed. The launcher process only waits, and kills them a tenth of the heartbeat
//! timeout later.

use super::node::Sim;
use super::scenario::Story;
use super::world::{Event, World, time};
use rlaunch::protocol::{JobState, LeaseTerms, NodeRecord, OnNodeLoss, RoundMember};
use rlaunch::rendezvous::lease::next_number;

/// Which messages a cut link loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Both,
    ToBackend,
    FromBackend,
}

/// What sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleeper {
    /// The supervisor process: it is stopped, or waits for a file.
    Supervisor,
    /// The node with its ranks: a frozen cgroup, a suspended machine.
    Node,
}

/// A node's lease as the backend keeps it.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptLease {
    number: u16,
    until: u64,
}

/// Until when something does not work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    to_backend: u64,
    from_backend: u64,
    supervisor: u64,
    node: u64,
}

impl World<'_> {
    pub fn terms(&self, node: usize) -> LeaseTerms {
        let rules = &self.story.plans[node].offer.rules;
        LeaseTerms {
            heartbeat_timeout: time(self.story.lease),
            loss_timeout: time(rules.loss_ms),
            on_loss: rules.on_loss,
        }
    }

    fn time_to_live(&self, node: usize) -> u64 {
        u64::try_from(self.terms(node).time_to_live().as_millis()).unwrap()
    }

    pub fn reaches(&self, node: usize) -> bool {
        self.now >= self.nodes[node].faults.to_backend
    }

    pub fn is_reached(&self, node: usize) -> bool {
        self.now >= self.nodes[node].faults.from_backend
    }

    /// When its supervisor process runs again, if it sleeps.
    pub fn sleeps_until(&self, node: usize) -> Option<u64> {
        let Faults { supervisor, node, .. } = self.nodes[node].faults;
        Some(supervisor.max(node)).filter(|until| *until > self.now)
    }

    /// The backend has the lease of this number.
    pub fn keeps(&self, node: usize, number: u16) -> bool {
        let kept = self.leases[node];
        kept.number == number && self.now < kept.until
    }

    pub fn cut(&mut self, node: usize, lasts: Option<u64>, way: Way) {
        if !self.nodes[node].here {
            return;
        }
        self.peers_feel(node);
        let until = lasts.map_or(u64::MAX, |lasts| self.now + lasts);
        let faults = &mut self.nodes[node].faults;
        if way != Way::FromBackend {
            faults.to_backend = faults.to_backend.max(until);
        }
        if way != Way::ToBackend {
            faults.from_backend = faults.from_backend.max(until);
        }
    }

    pub fn sleep(&mut self, node: usize, who: Sleeper, lasts: u64) {
        let until = self.now + lasts;
        let sim = &mut self.nodes[node];
        if !sim.here {
            return;
        }
        sim.has_slept = true;
        match who {
            Sleeper::Supervisor => sim.faults.supervisor = sim.faults.supervisor.max(until),
            Sleeper::Node => sim.faults.node = sim.faults.node.max(until),
        }
        let run = sim.run;
        // What a process does first when it runs again.
        self.at(until, Event::Overdue { node, run });
        self.at(until, Event::Enforced { node, run });
    }

    /// Whether no law forbids that its ranks are there: they are frozen; or the job ends with a lost node, where the supervisor
    /// process alone ends ranks, and it has not run for long enough to do so.
    pub fn is_excused(&self, sim: &Sim) -> bool {
        let rules = &self.story.plans[sim.number].offer.rules;
        let Faults { supervisor, node, .. } = sim.faults;
        let ends = rules.on_loss == OnNodeLoss::End && sim.has_slept;
        self.now <= node || ends && self.now <= supervisor.max(node) + rules.loss_ms + self.story.lease
    }

    pub fn renews(&mut self, node: usize) {
        if self.nodes[node].here {
            let period = if self.nodes[node].lost { self.story.lease / 12 } else { self.story.lease / 4 };
            self.at(self.now + period, Event::Renews { node });
            self.send_renewal(node);
        }
    }

    pub fn send_renewal(&mut self, node: usize) {
        let (number, sent, at) = (self.nodes[node].number_of_lease, self.now, self.now + self.renewal_delay());
        if !self.is_lost_message() {
            self.at(at, Event::RenewalArrives { node, number, sent });
        }
    }

    /// Renewals have a connection of their own.
    fn renewal_delay(&mut self) -> u64 {
        let Story { net, lease, .. } = self.story;
        let most = if self.now < self.story.heals() { net.renewal } else { net.renewal.min(lease / 10) };
        self.rng.u64(0..=most)
    }

    pub fn renewal_arrives(&mut self, node: usize, number: u16, sent: u64) {
        if !self.reaches(node) {
            return;
        }
        let until = self.now + self.time_to_live(node);
        let kept = self.leases[node];
        let is_granted = if self.keeps(node, number) {
            self.leases[node].until = until;
            true
        } else if kept.number != number && self.now >= kept.until {
            self.leases[node] = KeptLease { number, until };
            self.at(until, Event::Lapses { node, number });
            true
        } else {
            false
        };
        let at = self.now + self.renewal_delay();
        self.at(at, Event::RenewalAnswered { node, number, sent, is_granted });
    }

    pub fn lapses(&mut self, node: usize, number: u16) {
        let kept = self.leases[node];
        if kept.number != number {
            return;
        }
        if self.now < kept.until {
            return self.at(kept.until, Event::Lapses { node, number });
        }
        let age = self.time_to_live(node);
        self.write(node, None, age);
    }

    pub fn renewal_answered(&mut self, node: usize, number: u16, sent: u64, is_granted: bool) {
        let sim = &self.nodes[node];
        if !self.is_reached(node) || number != sim.number_of_lease {
            return;
        }
        if !is_granted {
            self.nodes[node].number_of_lease = next_number(number);
            self.lose_contact(node);
            return self.at(self.now, Event::RenewsAtOnce { node });
        }
        if sent < sim.renewed {
            return;
        }
        let sim = &mut self.nodes[node];
        sim.renewed = sent;
        sim.lease.renewed(number, time(sent));
        let was_lost = std::mem::take(&mut sim.lost);
        let (joined, is_behind) = (sim.joined == number, std::mem::take(&mut sim.is_behind));
        if !std::mem::replace(&mut sim.is_timed, true) {
            self.at(sent + self.silence(), Event::Silent { node });
        }
        if !joined {
            self.join(node, number);
        } else if was_lost || is_behind {
            // First it hears how things stand, then it says how it does.
            self.read(node);
            self.put(node);
            self.act(node);
        }
    }

    /// After so long without a confirmed renewal a node reports that contact is lost.
    pub fn silence(&self) -> u64 {
        self.story.lease * 13 / 20
    }

    pub fn silent(&mut self, node: usize) {
        if !self.nodes[node].here {
            return;
        }
        let at = self.nodes[node].renewed + self.silence();
        if self.now < at {
            return self.at(at, Event::Silent { node });
        }
        self.nodes[node].is_timed = false;
        self.lose_contact(node);
    }

    fn lose_contact(&mut self, node: usize) {
        let (loss_ms, on_loss) =
            (self.story.plans[node].offer.rules.loss_ms, self.story.plans[node].offer.rules.on_loss);
        let patience = self.story.plans[node].patience;
        let sim = &mut self.nodes[node];
        if std::mem::replace(&mut sim.lost, true) {
            return;
        }
        sim.contact += 1;
        let contact = sim.contact;
        // Ranks that run under the lease end with it.
        match on_loss {
            OnNodeLoss::End => self.at(self.now + patience.min(loss_ms), Event::GivesUp { node, contact }),
            OnNodeLoss::Regroup => self.at(self.now, Event::GivesUp { node, contact }),
        }
    }

    /// Writes its record under the lease, and reads the board, in one step at the backend. It tries again with every renewal.
    fn join(&mut self, node: usize, number: u16) {
        if !self.is_lost_message() {
            let (at, record) = (self.next_write(node), self.record_of(node));
            self.at(at, Event::JoinArrives { node, number, record });
        }
    }

    pub fn join_arrives(&mut self, node: usize, number: u16, record: NodeRecord) {
        if !self.reaches(node) || !self.keeps(node, number) || !self.nodes[node].here {
            return;
        }
        self.write(node, Some(record), 0);
        let board = self.board.state.clone().map(|state| (state, self.board.members.clone()));
        let at = self.now + self.delay();
        self.at(at, Event::JoinAnswered { node, number, board });
    }

    pub fn join_answered(&mut self, node: usize, number: u16, board: Option<(JobState, Vec<RoundMember>)>) {
        if !self.is_reached(node) || number != self.nodes[node].number_of_lease {
            return;
        }
        if let Some((state, members)) = board {
            self.hear(node, state, Some(members));
        }
        if std::mem::replace(&mut self.nodes[node].joined, number) != number {
            // It may stand otherwise by now.
            self.put(node);
        }
        self.act(node);
    }

    /// Its ranks run under the lease from now on.
    pub fn hold(&mut self, node: usize, round: u64) {
        let terms = self.terms(node);
        if terms.on_loss == OnNodeLoss::End {
            return;
        }
        let sim = &self.nodes[node];
        sim.lease.hold(round, sim.joined, &terms);
        let run = sim.run;
        self.at(self.now, Event::Overdue { node, run });
        self.at(self.now, Event::Enforced { node, run });
    }

    /// The supervisor process looks at the deadline.
    pub fn overdue(&mut self, node: usize, run: u32) {
        let sim = &self.nodes[node];
        let Some(at) = sim.lease.ranks_end_at().filter(|_| sim.run == run && sim.here) else { return };
        let at = u64::try_from(at.as_millis()).unwrap();
        if self.now >= at {
            return self.stop_within(node, 0);
        }
        self.at(at, Event::Overdue { node, run });
    }

    /// The launcher process does, which no file and no signal to the supervisor process stops.
    pub fn enforced(&mut self, node: usize, run: u32) {
        let sim = &mut self.nodes[node];
        if self.now < sim.faults.node {
            return;
        }
        let Some(at) = sim.lease.enforced_at().filter(|_| sim.run == run && sim.here) else { return };
        let at = u64::try_from(at.as_millis()).unwrap();
        if self.now < at {
            return self.at(at, Event::Enforced { node, run });
        }
        sim.lease.enforce();
        if let Some(ranks) = &mut sim.ranks {
            self.enforcements += u32::from(!std::mem::replace(&mut ranks.dead, true));
            ranks.stopping = true;
        }
        // The supervisor process finds that they have ended.
        self.at(self.now, Event::RanksStopped { node, run });
    }
}
