//! Nodes that harm the job: one that cannot begin, whose ranks fail again and again, or that has joined lately and whose ranks hang at
//! their start, takes part no more where the others can continue without it.

use crate::protocol::coordinator::{Coordinator, CoordinatorNode};
use crate::protocol::record::{JobRules, NodeStatus, NodeStop, OnFailure, RankFailure, RankHang};
use crate::protocol::state::{FailingNode, RoundMember, RoundStopCause};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A launcher that is started again on a bad machine is a new node. Once so many are excluded, the job ends as without exclusions.
const MOST_EXCLUDED: usize = 8;
/// After a round that ran for so long, earlier failures count no more for their node.
const LONG_ROUND: Duration = Duration::from_secs(600);
/// Members of a round that ran for so long have not joined lately any more: at the default `--hang_timeout`, a hang at their start would
/// have been found.
const PROVEN_AFTER: Duration = Duration::from_secs(1800);
/// How many newcomers a state names.
const MOST_NEWCOMERS: usize = 64;
/// The longest part of an error that states repeat to all nodes.
const LONGEST_REASON: usize = 200;

impl Coordinator {
    /// Why this failure excludes its node from the job, if it does.
    pub(crate) fn excludes(&self, rules: &JobRules, failure: &RankFailure) -> Option<String> {
        let member = self.members.get(failure.node)?;
        if failure.again || !self.can_exclude(rules, &[member]) {
            return None;
        }
        if failure.cannot_begin {
            return Some(format!("it cannot begin: {}", shortened(&failure.message)));
        }
        let in_a_row = self.failures_in_a_row(member);
        let restarts = rules.on_failure == OnFailure::Restart && rules.restarts > 0;
        // A rank that felt another one's end is not the first to fail, and what all nodes suffer from is no node's fault.
        let is_alone = !failure.lost_peer
            && !self.members_but(&[member]).any(|node| self.own_failure(node).is_some_and(|own| !own.lost_peer));
        // Its own rules may refuse a restart after such a failure.
        let is_open = failure.no_restart.is_none() || self.state.failures >= rules.restarts;
        // One more failure ends the job.
        let limit = rules.node_failure_limit.min(rules.restarts.saturating_add(1));
        (restarts && limit > 0 && is_alone && is_open && in_a_row >= limit).then(|| {
            format!("its ranks failed {in_a_row} times in a row, last {}: {}", failure.process, failure.outcome)
        })
    }

    /// Excludes the members that have joined lately and whose ranks hang at their start, while all ranks of the other nodes wait for
    /// them. After all nodes have reported this, a further look has to find each such member idle again. Returns why the round stops, if
    /// a member is excluded.
    pub(crate) fn exclude_stuck(&mut self, rules: &JobRules) -> Option<RankFailure> {
        let hang = |member: &RoundMember| match &self.nodes.get(&member.id)?.record.status {
            NodeStatus::Runs { round, hang, .. } if *round == self.state.round => hang.clone(),
            _ => None,
        };
        let hangs: Option<Vec<RankHang>> = self.members.iter().map(hang).collect();
        let mut looks_now = BTreeMap::new();
        let places =
            self.members.iter().zip(hangs.unwrap_or_default()).enumerate().filter_map(|(node, (member, hang))| {
                match hang {
                    RankHang::Waits => None,
                    RankHang::Stuck { place, looks } => {
                        looks_now.insert(member.id.clone(), looks);
                        Some((node, member, shortened(&place)))
                    }
                }
            });
        let stuck: Vec<(usize, &RoundMember, String)> = places.collect();
        // A report may be older than those of the nodes that wait, and its ranks may have gone on since.
        let is_known = looks_now.keys().eq(self.idle_looks.keys());
        if !is_known || looks_now.iter().any(|(id, looks)| *looks <= self.idle_looks[id]) {
            if !is_known {
                self.idle_looks = looks_now;
            }
            return None;
        }
        let members: Vec<&RoundMember> = stuck.iter().map(|(_, member, _)| *member).collect();
        let is_new = |member: &RoundMember| self.state.newcomers.contains(&member.id);
        if self.members.iter().all(is_new) || !members.iter().copied().all(is_new) || !self.can_exclude(rules, &members)
        {
            return None;
        }
        let (node, member, place) = stuck.first()?;
        let failure = RankFailure {
            host: member.info.host.clone(),
            node: *node,
            process: "a rank".into(),
            outcome: "a hang at its start".into(),
            message: place.clone(),
            again: true,
            hangs: true,
            ..RankFailure::default()
        };
        let whys = stuck.iter().map(|(_, member, place)| {
            let why = format!("its ranks hang at their start: {place}");
            (member.id.clone(), exclusion_warning(member, &why), why)
        });
        for (id, warning, why) in whys.collect::<Vec<_>>() {
            self.newly_excluded.push(warning);
            self.state.excluded.insert(id, excluded_because(&why));
        }
        Some(failure)
    }

    /// Whether the job may go on without these members: it is elastic, and enough others are left that can take part.
    fn can_exclude(&self, rules: &JobRules, members: &[&RoundMember]) -> bool {
        let is_elastic = rules.are_elastic() && rules.on_failure != OnFailure::Hold;
        let serves_master =
            |member: &&RoundMember| self.nodes.get(&member.id).is_some_and(|node| node.record.info.serves_master);
        let is_full = self.state.excluded.len() >= MOST_EXCLUDED;
        if !is_elastic || is_full || members.iter().any(serves_master) || self.count_done() > 0 {
            return false;
        }
        let is_able = |node: &&CoordinatorNode| !self.own_failure(node).is_some_and(|own| own.cannot_begin);
        let room = rules.max.saturating_sub(self.members_but(members).count());
        self.members_but(members).filter(is_able).count() + self.waiting(room).len() >= rules.min
    }

    /// The round's members that are here, but for these.
    fn members_but(&self, left_out: &[&RoundMember]) -> impl Iterator<Item = &CoordinatorNode> {
        let others = self.members.iter().filter(move |member| !left_out.iter().any(|other| other.id == member.id));
        others.filter_map(move |member| self.nodes.get(&member.id))
    }

    /// Notes which members of the round that begins have joined lately. `before`: the ids of those of the last one.
    pub(crate) fn note_newcomers(&mut self, before: &[String]) {
        let before: BTreeSet<&String> = before.iter().collect();
        let known = &self.state.newcomers;
        let is_new = |id: &&String| !before.is_empty() && (!before.contains(id) || known.contains(*id));
        let ids = self.members.iter().map(|member| &member.id);
        self.state.newcomers = ids.filter(is_new).take(MOST_NEWCOMERS).cloned().collect();
    }

    /// Forgets who has joined lately when a round stops that has run for long.
    pub(crate) fn forget_newcomers(&mut self, now: Duration, why: &RoundStopCause) {
        let hung = matches!(why, RoundStopCause::Failed { failure } if failure.hangs);
        if !hung && now.saturating_sub(self.round_began) >= PROVEN_AFTER {
            self.state.newcomers.clear();
        }
    }

    /// Counts a failure for its node, and excludes it if it harms the job. Returns a warning for the others.
    pub(crate) fn exclude(&mut self, rules: &JobRules, failure: &RankFailure) -> Option<String> {
        let why = self.excludes(rules, failure);
        let member = self.members.get(failure.node)?;
        let (id, in_a_row) = (member.id.clone(), self.failures_in_a_row(member));
        let Some(why) = why else {
            if !failure.again && !failure.lost_peer {
                self.state.last_failed = Some(FailingNode { id, in_a_row });
            }
            return None;
        };
        let text = exclusion_warning(member, &why);
        if self.state.excluded.is_empty() {
            // Restarts are for the others. Once: what excludes several nodes may be the script's fault.
            self.state.failures = self.state.failures.saturating_sub(in_a_row - 1);
        }
        self.state.last_failed = None;
        self.state.excluded.insert(id, excluded_because(&why));
        Some(text)
    }

    /// Forgets the failures before a round that has run for long.
    pub(crate) fn forget_failures(&mut self, now: Duration) {
        if now.saturating_sub(self.round_began) >= LONG_ROUND {
            self.state.last_failed = None;
        }
    }

    /// The failure that a node reports in this round.
    fn own_failure<'a>(&self, node: &'a CoordinatorNode) -> Option<&'a RankFailure> {
        match &node.record.status {
            NodeStatus::Failed { round, failure } | NodeStatus::Stops { round, why: NodeStop::Failure { failure } }
                if *round == self.state.round =>
            {
                Some(failure)
            }
            _ => None,
        }
    }

    /// How many of the job's last failures are this member's, with the one at hand.
    fn failures_in_a_row(&self, member: &RoundMember) -> u32 {
        let before = self.state.last_failed.as_ref().filter(|last| last.id == member.id);
        before.map_or(1, |last| last.in_a_row.saturating_add(1))
    }
}

/// What the other nodes print.
fn exclusion_warning(RoundMember { info, .. }: &RoundMember, why: &str) -> String {
    format!("{} ({}) is excluded from the job: {why}", info.host, info.address)
}

/// What the excluded node prints.
fn excluded_because(why: &str) -> String {
    format!("it is excluded from the job: {why}")
}

fn shortened(reason: &str) -> String {
    reason.chars().take(LONGEST_REASON).collect()
}
