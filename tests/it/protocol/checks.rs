//! The invariants, each checked as something is decided, published or begun.

use super::node::Sim;
use super::scenario::Story;
use super::world::{Board, Leader, time};
use rlaunch::protocol::record::FORMAT;
use rlaunch::protocol::{
    Coordinator, JobEnd, JobPhase, JobState, NodeRecord, NodeStatus, OnFailure, RankFailure, RoundMember,
    RoundStopCause,
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Judge {
    /// The published states.
    pub states: Vec<JobState>,
    /// The members of each round.
    pub lists: BTreeMap<u64, Vec<RoundMember>>,
    /// The nodes that began a round, in time.
    pub starts: Vec<(usize, u64)>,
    /// How often a job began anew after another.
    pub anew: usize,
    /// How often a resumed coordinator was compared.
    pub compared: usize,
}

fn number(id: &str) -> usize {
    id.strip_prefix("id").unwrap().parse().unwrap()
}

impl Judge {
    pub fn found(&mut self, state: &JobState) {
        self.states.push(state.clone());
    }

    /// On the same input again it publishes nothing; a coordinator in its place decides the same.
    pub fn turned(&mut self, story: &Story, leader: &mut Leader, was: &JobPhase, now: u64) {
        gathers(story, leader, now);
        let machine = &leader.machine;
        let state = machine.state();
        if let (Some(spares), false) = (story.rules.spares, matches!(state.phase, JobPhase::Ended { .. })) {
            let stays = |id: &str, record: &NodeRecord| {
                let leaves = matches!(record.status, NodeStatus::Leaves { .. });
                !leaves && !state.refused.contains_key(id) && !state.excluded.contains_key(id)
            };
            let taken = machine.nodes().filter(|(id, record)| stays(id, record)).count();
            assert!(taken <= story.rules.max + spares, "{taken} nodes stay in a job of {:?}", story.rules);
        }
        let mut again = machine.clone();
        for (id, record) in machine.nodes() {
            again.record(id, record.clone(), time(now));
        }
        assert_eq!(again.turn(time(now)), None, "on the same input again it publishes something else");
        assert_eq!(again.state(), state);

        let mut other = Coordinator::resume(state.clone(), machine.members().to_vec(), time(now));
        for id in &leader.arrived {
            let (_, record) = machine.nodes().find(|(other, _)| other == id).unwrap();
            other.record(id, record.clone(), time(now));
        }
        other.turn(time(now));
        let (own, its) = (state, other.state());
        let ended = matches!(own.phase, JobPhase::Ended { .. });
        // It does not know since when the round runs, or nodes gather.
        let by_time = |phase: &JobPhase| {
            matches!(phase, JobPhase::Gathering | JobPhase::Stopping { why: RoundStopCause::More { .. }, .. })
        };
        let timers = by_time(&own.phase) && its.phase == JobPhase::Running;
        let forgets = ended && !matches!(its.phase, JobPhase::Ended { .. });
        if !timers && !forgets {
            let all = |state: &JobState| {
                (state.round, state.failures, state.phase.clone(), state.refused.clone(), state.held_failure.clone())
            };
            assert_eq!(all(own), all(its), "the new coordinator decides otherwise");
            self.compared += 1;
        }
        if forgets {
            let new = |record: &NodeStatus| matches!(record, NodeStatus::Ready { seen: 0 });
            let may = |id: &str, standing: &NodeStatus| new(standing) && !state.to_receive_end.contains(id);
            assert!(machine.nodes().all(|(id, record)| may(id, &record.status)), "an end is forgotten that a node saw");
        }

        let begins = *was == JobPhase::Gathering && state.phase == JobPhase::Running;
        let runs = machine.nodes().any(|(_, record)| matches!(record.status, NodeStatus::Runs { .. }));
        assert!(!(begins && runs), "a round begins, and a node that is here runs another");

        let JobPhase::Ended { end: JobEnd::Failed { failure, .. } } = &state.phase else { return };
        if matches!(was, JobPhase::Ended { .. }) || !failure.lost_peer {
            return;
        }
        let is_member = |id: &str| machine.members().iter().any(|member| member.id == id);
        let own = machine.nodes().find(|(id, record)| {
            let own = matches!(&record.status,
                NodeStatus::Failed { round, failure } if *round == state.round && !failure.lost_peer);
            own && is_member(id)
        });
        assert!(own.is_none(), "{failure:?} is blamed, and {own:?} had failed by itself");
    }

    pub fn published(
        &mut self,
        story: &Story,
        nodes: &[Sim],
        old: &Board,
        new: &JobState,
        members: Option<&[RoundMember]>,
    ) {
        let before = old.state.as_ref();
        let ends = |state: &JobState| matches!(state.phase, JobPhase::Ended { .. });
        let excludes = before.is_some_and(|before| new.excluded.len() > before.excluded.len());
        let fewer = |before: &JobState| !excludes && new.failures < before.failures;
        let is_anew = before.is_some_and(|before| ends(before) && !ends(new) || fewer(before));
        if is_anew {
            // Of those of an earlier job no one is here.
            let gone = |member: &RoundMember| {
                nodes.get(number(&member.id)).is_none_or(|sim| sim.exit.is_some() || sim.was_away())
            };
            assert!(old.members.iter().all(gone), "a job begins anew whose members are here");
            self.anew += 1;
        }
        if let Some(before) = before {
            assert_eq!(new.serial, before.serial + 1);
            assert!(new.round == before.round || new.round == before.round + 1, "rounds grow one by one");
            assert!(new.failures <= before.failures + 1, "one failure counts once");
            if let (JobPhase::Ended { end }, false) = (&before.phase, is_anew) {
                assert_eq!(new.phase, JobPhase::Ended { end: end.clone() }, "an end is for good");
            }
            let by_failure = new.failures > before.failures;
            let other = matches!(
                &before.phase,
                JobPhase::Stopping { why: RoundStopCause::Lost { .. } | RoundStopCause::More { .. }, .. }
            );
            assert!(!(by_failure && other), "a change of the members uses up no restart");
            let grew = new.round > before.round;
            if grew {
                let ids = |members: &[RoundMember]| members.iter().map(|one| number(&one.id)).collect::<Vec<_>>();
                let list = members.expect("the members are published with the round");
                round(story, &ids(&old.members), &ids(list));
            }
        }
        if let Some(members) = members.filter(|members| !members.is_empty()) {
            let known = self.lists.entry(new.round).or_insert_with(|| members.to_vec());
            assert_eq!(known, members, "round {} has other members now", new.round);
        }
        let rules = self.rules(story, new.round);
        if let (Some(rules), true) = (rules, new.failures > 0) {
            assert_eq!(rules.on_failure, OnFailure::Restart);
            assert!(new.failures <= rules.restarts, "more restarts than there are");
        }
        for (id, why) in &new.excluded {
            let own = &nodes[number(id)];
            let is_at_fault =
                if why.contains("hang") { self.may_hang(nodes, new, own) } else { !own.failures.is_empty() };
            assert!(is_at_fault, "node {} is excluded without a reason: {why}", own.number);
            let may = |rules: &rlaunch::protocol::JobRules| rules.min < rules.max || rules.spares > Some(0);
            assert!(rules.is_none_or(may), "no node is excluded from a job that needs all");
        }
        for (id, why) in new.refused.iter().filter(|(id, _)| !new.excluded.contains_key(*id)) {
            refused(story, old, number(id), why);
        }
        if let JobPhase::Ended { end } = &new.phase {
            self.end(nodes, new, end);
        }
        self.states.push(new.clone());
    }

    /// Whether there is a round in which this node's ranks hung, into which it came while the job ran, whose other members did not hang
    /// unless they are excluded too, and of which one stays.
    fn may_hang(&self, nodes: &[Sim], state: &JobState, own: &Sim) -> bool {
        let is_in = |list: &[RoundMember]| list.iter().any(|member| member.id == own.state.id);
        own.hung.iter().any(|round| {
            let is_excused = |member: &RoundMember| {
                state.excluded.contains_key(&member.id) || !nodes[number(&member.id)].hung.contains(round)
            };
            let stays = |member: &RoundMember| !nodes[number(&member.id)].hung.contains(round);
            let came_later = self.lists.range(..round).any(|(_, list)| !is_in(list));
            let list = &self.lists[round];
            came_later && is_in(list) && list.iter().all(is_excused) && list.iter().any(stays)
        })
    }

    fn rules<'a>(&self, story: &'a Story, round: u64) -> Option<&'a rlaunch::protocol::JobRules> {
        let first = self.lists.get(&round)?.first()?;
        Some(&story.plans[number(&first.id)].offer.rules)
    }

    fn end(&self, nodes: &[Sim], state: &JobState, end: &JobEnd) {
        let empty = Vec::new();
        let members = self.lists.get(&state.round).unwrap_or(&empty);
        let mut sims = members.iter().map(|member| &nodes[number(&member.id)]);
        match end {
            JobEnd::Completed => {
                let well = |sim: &Sim| sim.well.contains(&state.round);
                assert!(!members.is_empty() && sims.all(well), "not all have exited successfully");
            }
            JobEnd::Failed { failure, .. } => assert!(
                sims.any(|sim| sim.failures.iter().any(|own: &RankFailure| own == failure)),
                "no rank failed like that: {failure:?}"
            ),
            JobEnd::Lost { lost } => {
                let sim = sims.nth(lost.node).unwrap();
                assert!(sim.was_away() || sim.exit.is_some(), "it was never away: {lost:?}");
            }
            JobEnd::Stopped { host, .. } => {
                assert!(sims.any(|sim| sim.is_signalled() && *host == format!("host{}", sim.number)));
            }
            JobEnd::TooFew { participants, .. } => {
                assert!(participants.ready < participants.min, "enough were there: {participants:?}");
            }
        }
    }

    /// There are never ranks of two rounds, but for those of nodes that are excused.
    pub fn worlds(nodes: &[Sim], excused: &[bool]) {
        let rounds =
            |sim: &Sim| sim.ranks.as_ref().filter(|ranks| !ranks.dead && !excused[sim.number]).map(|ranks| ranks.round);
        let found: BTreeSet<u64> = nodes.iter().filter_map(rounds).collect();
        assert!(found.len() < 2, "two worlds: rounds {found:?}");
    }

    /// A node's ranks begin.
    pub fn started(&mut self, nodes: &[Sim], excused: &[bool], node: usize, round: u64) {
        let own = &nodes[node];
        let list = own.lists.get(&round).expect("it knows its peers");
        assert_eq!(Some(list), self.lists.get(&round), "round {round} is another for node {node}");
        assert!(list.iter().any(|member| member.id == own.state.id));
        assert!(!self.starts.contains(&(node, round)), "a round begins once");
        for other in nodes {
            let Some(ranks) = other.ranks.as_ref().filter(|ranks| !ranks.dead && !excused[other.number]) else {
                continue;
            };
            assert!(
                ranks.round == round,
                "round {round} begins on node {node} while node {} runs round {}",
                other.number,
                ranks.round
            );
        }
        self.starts.push((node, round));
    }
}

/// No job gathers for longer than it may.
fn gathers(story: &Story, leader: &mut Leader, now: u64) {
    let machine = &leader.machine;
    // A member that is back may be about to begin the last round.
    let is_member = |id: &str| machine.members().iter().any(|member| member.id == id);
    let runs = machine.nodes().any(|(id, record)| {
        matches!(record.status, NodeStatus::Runs { .. })
            || is_member(id) && record.status.stopped_in() < Some(machine.state().round)
    });
    let waits = machine.state().phase == JobPhase::Gathering && machine.nodes().next().is_some() && !runs;
    let round = machine.state().round;
    let before = leader.gathers.filter(|(after, _)| *after == round);
    leader.gathers = waits.then(|| before.unwrap_or((round, now)));
    if let Some((_, since)) = leader.gathers {
        assert!(now - since < story.rules.join_ms + story.rules.loss_ms, "they gather since {since}");
        assert!(machine.next_deadline().is_some(), "no timer is set to ask again");
    }
}

/// A round: fit nodes, as many as there may be, each once, with the numbers that the user gave them, or else those that
/// they had.
fn round(story: &Story, before: &[usize], list: &[usize]) {
    let plan = |node: usize| &story.plans[node];
    let rules = &plan(list[0]).offer.rules;
    assert!(list.len() >= rules.min && list.len() <= rules.max, "{list:?}: too few or too many");
    assert_eq!(list.iter().collect::<BTreeSet<_>>().len(), list.len(), "{list:?}: one is there twice");
    for &node in list {
        assert_eq!(&plan(node).offer.rules, rules, "it was started with other rules");
        assert_eq!(plan(node).format, FORMAT);
    }
    let given = |node: usize| plan(node).offer.rank;
    let numbers: Vec<usize> = list.iter().filter_map(|&node| given(node)).collect();
    assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len(), "{list:?}: two have one number");
    for &rank in &numbers {
        assert!(rank >= list.len() || given(list[rank]) == Some(rank), "{list:?}: number {rank} is another's");
    }
    for (place, node) in before.iter().enumerate() {
        let could = list.contains(node) && place < list.len() && given(*node).is_none() && !numbers.contains(&place);
        assert!(!could || list[place] == *node, "{before:?} became {list:?}: node {node} had number {place}");
    }
    if before.is_empty() && numbers.is_empty() {
        assert!(list.is_sorted_by_key(|&node| &plan(node).offer.name), "{list:?}: not in the order of names");
    }
}

/// A refused node differs from a node that is here.
fn refused(story: &Story, board: &Board, node: usize, why: &str) {
    let plan = &story.plans[node];
    // The board may be ahead of the coordinator: each node that was ever there counts.
    let known = |other: usize| other != node && board.revisions.contains_key(&format!("id{other}"));
    let others = (0..story.plans.len()).filter(|&other| known(other)).map(|other| &story.plans[other]);
    let true_reason = match why {
        why if why.contains("whose protocol is another") => plan.format != FORMAT,
        why if why.contains("has that number already") => {
            others.into_iter().any(|other| other.offer.rank == plan.offer.rank)
        }
        why if why.starts_with("--spares") => {
            let most = plan.offer.rules.spares.map(|spares| plan.offer.rules.max + spares);
            most.is_some_and(|most| others.into_iter().count() >= most)
        }
        why if why.starts_with("--require_same git") => {
            others.into_iter().any(|other| other.offer.fingerprint != plan.offer.fingerprint)
        }
        why if why.starts_with("--rank") => plan.offer.rank.is_some_and(|rank| rank >= story.rules.max),
        _ => others.into_iter().any(|other| other.offer.rules != plan.offer.rules),
    };
    assert!(true_reason, "node {node} is refused: {why}");
}
