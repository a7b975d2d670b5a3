//! The agreement on a stop step, over random interleavings of ranks, launchers and messages that are lost, doubled and overtaken.
//! Ranks run ahead of each other without a limit, which no collective would allow: the agreement does not rely on one. They begin at the
//! same step.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use rlaunch::protocol::stop_step::{
    Decision, Proposal, StopAgreement, StopDocument, StopEffect, StopEvent, StopRecipient,
};
use std::collections::VecDeque;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);
const RESEND: Duration = Duration::from_millis(200);

/// What a launcher has written to the memory that it shares with its ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Word {
    Nothing,
    Raised(u64),
    Stop(u64),
}

/// Where a rank is in its call of `should_stop`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Writes,
    Reads,
    /// It has read that there is no stop step, before it writes its own.
    WritesLate,
    Stopped,
}

#[derive(Clone, Debug)]
struct Rank {
    step: u64,
    call: Call,
    slot: Option<u64>,
}

/// Reading the ranks' steps, one after another.
struct Reading {
    serial: u32,
    next: usize,
    newest: Option<u64>,
}

struct Node {
    agreement: StopAgreement,
    word: Word,
    ranks: Vec<Rank>,
    effects: VecDeque<StopEffect>,
    reading: Option<Reading>,
    inbox: Vec<(usize, StopDocument)>,
}

struct World {
    now: Duration,
    start: u64,
    nodes: Vec<Node>,
    is_lossy: bool,
    /// How many messages have been received.
    received: usize,
    /// A fault that the test has to find.
    reads_first: bool,
}

impl World {
    /// Nodes with so many ranks each, which begin at the step `start`.
    fn new((start, ranks): (u64, &[usize]), reads_first: bool) -> Self {
        let rank = Rank { step: start, call: Call::Writes, slot: None };
        let node = |(own, count): (usize, &usize)| Node {
            agreement: StopAgreement::new((own, ranks.len()), PATIENCE, RESEND),
            word: Word::Nothing,
            ranks: vec![rank.clone(); *count],
            effects: VecDeque::new(),
            reading: None,
            inbox: Vec::new(),
        };
        let nodes = ranks.iter().enumerate().map(node).collect();
        Self { now: Duration::ZERO, start, nodes, is_lossy: true, received: 0, reads_first }
    }

    fn event(&mut self, node: usize, event: StopEvent) {
        let Node { agreement, ranks, effects, .. } = &mut self.nodes[node];
        let (newest, mut more) = (ranks.iter().filter_map(|rank| rank.slot).max(), Vec::new());
        agreement.handle(self.now, event, newest, &mut more);
        effects.extend(more);
    }

    /// One access of a rank to the memory.
    fn rank(&mut self, node: usize, rank: usize) {
        let Node { word, ranks, .. } = &mut self.nodes[node];
        let count = ranks.len();
        let rank = &mut ranks[rank % count];
        match rank.call {
            Call::Writes if self.reads_first && matches!(word, Word::Nothing) => rank.call = Call::WritesLate,
            Call::WritesLate => {
                (rank.slot, rank.step, rank.call) = (Some(rank.step), rank.step + 1, Call::Writes);
            }
            Call::Writes => {
                rank.slot = Some(rank.step);
                rank.call = Call::Reads;
            }
            Call::Reads => match *word {
                Word::Stop(at) if rank.step >= at => rank.call = Call::Stopped,
                Word::Raised(at) if rank.step >= at => {}
                _ => (rank.step, rank.call) = (rank.step + 1, Call::Writes),
            },
            Call::Stopped => {}
        }
    }

    /// The ranks of a node have ended. From then on it only says what was decided to those that do not know.
    fn has_ended(&self, own: usize) -> bool {
        let node = &self.nodes[own];
        !node.ranks.is_empty() && node.ranks.iter().all(|rank| rank.call == Call::Stopped)
    }

    fn send(&mut self, own: usize, (to, document): (StopRecipient, StopDocument), choice: u32) {
        let copies = if self.is_lossy { choice as usize % 3 } else { 1 };
        let is_meant = |other: usize| other != own && (to == StopRecipient::All || other == 0);
        for other in (0..self.nodes.len()).filter(|other| is_meant(*other)) {
            self.received += copies;
            self.nodes[other].inbox.extend(vec![(own, document); copies]);
        }
    }

    /// One access of a launcher to the memory, or one message.
    fn launcher(&mut self, own: usize, choice: u32) {
        let has_ended = self.has_ended(own);
        let node = &mut self.nodes[own];
        if has_ended {
            let (last, asked) = (node.agreement.document(), node.inbox.pop());
            if asked.is_some_and(|(_, document)| document.decision.is_none()) {
                self.send(own, (StopRecipient::All, last), choice);
            }
            return;
        }
        if let Some(mut reading) = node.reading.take() {
            if let Some(rank) = node.ranks.get(reading.next) {
                reading.newest = reading.newest.max(rank.slot);
                reading.next += 1;
                node.reading = Some(reading);
            } else {
                let Reading { serial, newest, .. } = reading;
                self.event(own, StopEvent::Raised { serial, newest });
            }
            return;
        }
        match node.effects.pop_front() {
            Some(StopEffect::Raise(Proposal { serial, step })) => {
                node.word = Word::Raised(step);
                node.reading = Some(Reading { serial, next: 0, newest: None });
            }
            Some(StopEffect::Decide(Decision::StopAt(step))) => node.word = Word::Stop(step),
            Some(StopEffect::Decide(Decision::Abandoned)) => node.word = Word::Nothing,
            Some(StopEffect::Send(to, document)) => self.send(own, (to, document), choice),
            None if node.inbox.is_empty() => {}
            None => {
                let (from, document) = node.inbox.swap_remove(choice as usize % node.inbox.len());
                self.event(own, StopEvent::Heard { from, document });
            }
        }
    }

    fn timeouts(&mut self) {
        let running: Vec<usize> = (0..self.nodes.len()).filter(|node| !self.has_ended(*node)).collect();
        let Some(due) = running.iter().filter_map(|node| self.nodes[*node].agreement.due()).min() else { return };
        self.now = self.now.max(due);
        for node in running {
            let node = &mut self.nodes[node];
            let mut effects = Vec::new();
            node.agreement.handle_timeout(self.now, &mut effects);
            node.effects.extend(effects);
        }
    }

    fn play(&mut self, choice: u32) {
        let (node, which) = (choice as usize / 16 % self.nodes.len(), choice / 256);
        match choice % 16 {
            0 => self.timeouts(),
            1 => self.event(node, StopEvent::Noticed),
            2..=8 => self.launcher(node, which),
            _ => self.rank(node, which as usize),
        }
    }

    /// Every message arrives from now on, in order, and all take turns.
    fn end(&mut self) {
        self.is_lossy = false;
        self.event(0, StopEvent::Noticed);
        for turn in 0..3000 {
            for node in 0..self.nodes.len() {
                (0..12).for_each(|_| self.launcher(node, 0));
                (0..self.nodes[node].ranks.len()).for_each(|rank| self.rank(node, rank));
            }
            if turn % 20 == 19 {
                self.timeouts();
            }
        }
    }

    fn judge(&self) -> Result<Option<u64>, String> {
        let decisions: Vec<_> = self.nodes.iter().map(|node| node.agreement.decision()).collect();
        if decisions.iter().any(|one| one.is_none() || *one != decisions[0]) {
            return Err(format!("the nodes have not agreed: {decisions:?}"));
        }
        let Some(Decision::StopAt(at)) = decisions[0] else {
            let stopped = self.nodes.iter().flat_map(|node| &node.ranks).filter(|rank| rank.call == Call::Stopped);
            return if stopped.count() == 0 { Ok(None) } else { Err("a rank has stopped without a decision".into()) };
        };
        // Where no rank had asked, all stop at once.
        let at = at.max(self.start);
        for rank in self.nodes.iter().flat_map(|node| &node.ranks) {
            if rank.call != Call::Stopped && rank.step >= at || rank.call == Call::Stopped && rank.step != at {
                return Err(format!("all ranks stop at {at}, but one is at {rank:?}"));
            }
        }
        Ok(Some(at))
    }
}

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig { cases: cases.unwrap_or(2000), ..ProptestConfig::default() }
}

/// The first step, the ranks of each node, and what happens.
fn histories() -> impl Strategy<Value = ((u64, Vec<usize>), Vec<u32>)> {
    let ranks = prop::collection::vec(1..4_usize, 1..4);
    ((0..40_u64, ranks), prop::collection::vec(any::<u32>(), 0..600))
}

fn play((start, ranks): &(u64, Vec<usize>), choices: &[u32], reads_first: bool) -> Result<Option<u64>, String> {
    let mut world = World::new((*start, ranks), reads_first);
    choices.iter().for_each(|choice| world.play(*choice));
    world.end();
    world.judge()
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn all_ranks_stop_at_one_step_or_none_does((job, choices) in histories()) {
        prop_assert!(play(&job, &choices, false).is_ok(), "{:?}", play(&job, &choices, false));
    }

    #[test]
    fn without_losses_they_stop((job, _) in histories()) {
        let stopped = play(&job, &[], false);
        prop_assert!(matches!(stopped, Ok(Some(_))), "{:?}", stopped);
    }
}

#[test]
fn a_rank_that_reads_before_it_writes_is_found() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let is_found = (0..3000).any(|_| {
        let (job, choices) = histories().new_tree(&mut runner).unwrap().current();
        play(&job, &choices, true).is_err()
    });
    assert!(is_found);
}

#[test]
fn one_node_needs_no_message() {
    let mut agreement = StopAgreement::new((0, 1), PATIENCE, RESEND);
    let mut effects = Vec::new();
    agreement.handle(Duration::ZERO, StopEvent::Noticed, Some(7), &mut effects);
    assert_eq!(effects, [StopEffect::Raise(Proposal { serial: 1, step: 8 })]);
    // A rank was faster, twice.
    effects.clear();
    agreement.handle(Duration::ZERO, StopEvent::Raised { serial: 1, newest: Some(11) }, Some(11), &mut effects);
    assert_eq!(effects, [StopEffect::Raise(Proposal { serial: 2, step: 13 })]);
    effects.clear();
    agreement.handle(Duration::ZERO, StopEvent::Raised { serial: 2, newest: Some(12) }, Some(12), &mut effects);
    assert_eq!(effects, [StopEffect::Decide(Decision::StopAt(13))]);
}

#[test]
fn a_node_that_does_not_answer_ends_the_agreement_and_ranks_go_on() {
    let mut agreement = StopAgreement::new((0, 2), PATIENCE, RESEND);
    let mut effects = Vec::new();
    agreement.handle(Duration::ZERO, StopEvent::Noticed, Some(7), &mut effects);
    agreement.handle(Duration::ZERO, StopEvent::Raised { serial: 1, newest: Some(7) }, Some(7), &mut effects);
    assert_eq!((agreement.decision(), agreement.due()), (None, Some(RESEND)));
    effects.clear();
    agreement.handle_timeout(PATIENCE, &mut effects);
    assert_eq!(effects[0], StopEffect::Decide(Decision::Abandoned));
}

/// All of them receive SIGTERM at once. Only node 0 needs the answers of the others.
#[test]
fn the_number_of_messages_grows_with_the_number_of_nodes_and_not_with_its_square() {
    for nodes in [2, 10, 100] {
        let mut world = World::new((3, &vec![1; nodes]), false);
        world.is_lossy = false;
        (0..nodes).for_each(|node| world.event(node, StopEvent::Noticed));
        world.end();
        assert!(matches!(world.judge(), Ok(Some(_))), "{:?}", world.judge());
        let others = nodes - 1;
        assert!(world.received <= 20 * others, "{} messages for {nodes} nodes", world.received);
    }
}

/// Node 0 does not answer. Nodes that have not received the notice have to stop too.
#[test]
fn a_node_that_abandons_the_agreement_alone_tells_all_others() {
    let nodes = 3;
    let mut own = StopAgreement::new((1, nodes), PATIENCE, RESEND);
    let mut effects = Vec::new();
    own.handle(Duration::ZERO, StopEvent::Noticed, Some(7), &mut effects);
    assert!(matches!(effects[..], [StopEffect::Send(StopRecipient::Coordinator, _)]), "{effects:?}");
    effects.clear();
    own.handle_timeout(PATIENCE, &mut effects);
    let sent = effects.iter().find_map(|effect| match effect {
        StopEffect::Send(StopRecipient::All, document) => Some(*document),
        _ => None,
    });
    let document = sent.unwrap();
    let mut other = StopAgreement::new((2, nodes), PATIENCE, RESEND);
    effects.clear();
    other.handle(PATIENCE, StopEvent::Noticed, Some(7), &mut effects);
    other.handle(PATIENCE, StopEvent::Heard { from: 1, document }, Some(7), &mut effects);
    assert_eq!(other.decision(), Some(Decision::Abandoned));
    // One that has answered node 0 waits for its decision.
    let mut answered = StopAgreement::new((2, nodes), PATIENCE, RESEND);
    let proposal = StopDocument { proposal: Some(Proposal { serial: 1, step: 8 }), ..StopDocument::default() };
    answered.handle(PATIENCE, StopEvent::Heard { from: 0, document: proposal }, Some(7), &mut effects);
    answered.handle(PATIENCE, StopEvent::Heard { from: 1, document }, Some(7), &mut effects);
    assert_eq!(answered.decision(), None);
}

/// What each node knows of the time, and the messages that one sends: a message has its time.
struct Times {
    now: Duration,
    ends: Vec<Duration>,
    nodes: Vec<StopAgreement>,
    sent: usize,
}

impl Times {
    /// All nodes have agreed, and know this time.
    fn agreed(nodes: usize, ends: Duration) -> Self {
        let mut agreements: Vec<_> = (0..nodes).map(|own| StopAgreement::new((own, nodes), PATIENCE, RESEND)).collect();
        agreements.iter_mut().for_each(|one| one.limit_time(Duration::ZERO, ends));
        let mut effects = Vec::new();
        agreements[0].handle(Duration::ZERO, StopEvent::Noticed, Some(7), &mut effects);
        let mut times = Self { now: Duration::ZERO, ends: vec![ends; nodes], nodes: agreements, sent: 0 };
        times.carry_out(0, effects, &mut |_| true);
        assert!(times.nodes.iter().all(|one| one.decision() == Some(Decision::StopAt(8))));
        times
    }

    fn carry_out(&mut self, own: usize, effects: Vec<StopEffect>, arrives: &mut dyn FnMut(usize) -> bool) {
        for effect in effects {
            let mut more = Vec::new();
            match effect {
                StopEffect::Raise(Proposal { serial, .. }) => {
                    self.nodes[own].handle(self.now, StopEvent::Raised { serial, newest: Some(7) }, Some(7), &mut more);
                    self.carry_out(own, more, arrives);
                }
                StopEffect::Decide(_) => {}
                StopEffect::Send(to, document) => {
                    let meant: Vec<usize> = match to {
                        StopRecipient::All => (0..self.nodes.len()).filter(|other| *other != own).collect(),
                        StopRecipient::Coordinator => vec![0],
                    };
                    self.sent += 1;
                    // It takes 100 ms, by which its time is later for the other node.
                    let ends = self.ends[own] + Duration::from_millis(100);
                    let asks = self.nodes[own].asks_for_time();
                    for other in meant.into_iter().filter(|_| arrives(self.sent)).collect::<Vec<_>>() {
                        let mut more = Vec::new();
                        self.ends[other] = self.ends[other].min(ends);
                        self.nodes[other].hear_time(self.now, (own, ends), asks);
                        let event = StopEvent::Heard { from: own, document };
                        self.nodes[other].handle(self.now, event, Some(7), &mut more);
                        self.carry_out(other, more, arrives);
                    }
                }
            }
        }
    }

    /// Until then, each node does what is due.
    fn pass(&mut self, until: Duration, arrives: &mut dyn FnMut(usize) -> bool) {
        while let Some(due) = self.nodes.iter().filter_map(StopAgreement::due).min().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            for own in 0..self.nodes.len() {
                let mut effects = Vec::new();
                self.nodes[own].handle_timeout(self.now, &mut effects);
                self.carry_out(own, effects, arrives);
            }
        }
    }
}

#[test]
fn a_shortened_time_is_sent_again_until_all_nodes_know_it() {
    let (long, short, second) = (Duration::from_secs(3600), Duration::from_secs(150), Duration::from_secs(1));
    for (nodes, shortened) in [(2, 0), (2, 1), (4, 0), (4, 3)] {
        // These messages are lost, as those of a connection that has to be made again.
        for lost in [0..0, 0..1, 0..5, 1..2, 1..4, 2..3, 3..9] {
            let mut times = Times::agreed(nodes, long);
            times.pass(30 * second, &mut |_| true);
            let sent = times.sent;
            times.now = 30 * second;
            times.ends[shortened] = short;
            times.nodes[shortened].limit_time(times.now, short);
            times.pass(90 * second, &mut |count| !lost.contains(&(count - sent - 1)));
            let known = times.ends.iter().all(|ends| *ends <= short + second);
            assert!(known, "{nodes} nodes, messages {lost:?} lost: {:?}", times.ends);
            // All know it: nothing more is sent.
            let sent = times.sent;
            times.pass(long, &mut |_| true);
            assert_eq!(times.sent, sent, "{nodes} nodes, {shortened} shortens it, messages {lost:?} are lost");
        }
    }
}

#[test]
fn a_time_that_no_node_hears_of_is_sent_less_and_less_often_until_it_is_over() {
    let second = Duration::from_secs(1);
    let mut times = Times::agreed(2, 3600 * second);
    times.pass(30 * second, &mut |_| true);
    let sent = times.sent;
    times.now = 30 * second;
    times.ends[1] = 330 * second;
    times.nodes[1].limit_time(times.now, times.ends[1]);
    times.pass(3600 * second, &mut |_| false);
    assert!((30..=40).contains(&(times.sent - sent)), "{}", times.sent - sent);
    assert!(times.nodes[1].due().is_none());
}
