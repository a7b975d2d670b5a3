//! Why a round stops, what follows, and which ranks may still run.

use crate::protocol::coordinator::{Coordinator, CoordinatorNode};
use crate::protocol::coordinator_logic::Departure;
use crate::protocol::record::{
    JobRules, NodeInfo, NodeRecord, NodeStatus, NodeStop, OnFailure, OnNodeLoss, RankFailure, millis,
};
use crate::protocol::state::{JobEnd, JobPhase, LostNode, RoundMember, RoundStopCause};
use std::cmp::Reverse;
use std::time::Duration;

/// In place of the ids of nodes that the coordinator before has seen. No node has it.
const UNKNOWN: &str = "";

impl Coordinator {
    /// The round's members that are here.
    pub(crate) fn of_members(&self) -> impl Iterator<Item = &CoordinatorNode> {
        self.members.iter().filter_map(|member| self.nodes.get(&member.id))
    }

    /// The records of the round's members that are here.
    pub(crate) fn of_round(&self) -> impl Iterator<Item = &NodeRecord> {
        self.of_members().map(|node| &node.record)
    }

    /// How many of them have exited successfully.
    pub(crate) fn count_done(&self) -> usize {
        let round = self.state.round;
        self.of_round()
            .filter(|record| matches!(record.status, NodeStatus::Done { round: done, .. } if done == round))
            .count()
    }

    /// Why the round stops, if its members report a reason. A rank that failed because a peer was gone failed after that peer,
    /// whichever report arrived first. `running`: the members have not been asked to stop.
    pub(crate) fn find_cause(&self, running: bool) -> Option<RoundStopCause> {
        let round = self.state.round;
        let failures = || {
            self.of_round().filter_map(move |record| match &record.status {
                NodeStatus::Failed { round: its, failure } if *its == round => Some(failure),
                NodeStatus::Stops { round: its, why: NodeStop::Failure { failure } } if *its == round => Some(failure),
                _ => None,
            })
        };
        let failed = |failure: &RankFailure| RoundStopCause::Failed { failure: failure.clone() };
        let own = || failures().find(|failure| !failure.lost_peer).map(failed);
        let lost = || self.find_lost(running).map(|lost| RoundStopCause::Lost { lost });
        own().or_else(|| self.find_stopped(true)).or_else(lost).or_else(|| failures().next().map(failed))
    }

    /// The final report of a failure, if its node has made one that differs from the first.
    pub(crate) fn final_failure(&self, failure: &RankFailure) -> Option<RankFailure> {
        let node = self.nodes.get(&self.members.get(failure.node)?.id)?;
        match &node.record.status {
            NodeStatus::Failed { round, failure: known } if *round == self.state.round && known != failure => {
                Some(known.clone())
            }
            _ => None,
        }
    }

    /// The first member that received a signal, unless the round stops for it already. Once the round stops for one, members that
    /// are gone do not count: a later coordinator does not know their signals.
    pub(crate) fn find_other_stopped(&self, why: &RoundStopCause) -> Option<RoundStopCause> {
        let is_first = !matches!(why, RoundStopCause::Stopped { .. });
        self.find_stopped(is_first).filter(|stopped| stopped != why)
    }

    /// The first member that received a signal. `gone`: also one that has gone since.
    fn find_stopped(&self, gone: bool) -> Option<RoundStopCause> {
        let signal = |member: &RoundMember| match self.nodes.get(&member.id).map(|node| &node.record.status) {
            Some(NodeStatus::Leaves { signal }) => Some(*signal),
            Some(NodeStatus::Stops { why: NodeStop::Signal { signal }, .. }) => Some(*signal),
            Some(_) => None,
            None => self.left.get(&member.id).copied().filter(|_| gone),
        };
        let why = |member: &RoundMember| {
            Some(RoundStopCause::Stopped { host: member.info.host.clone(), signal: signal(member)? })
        };
        self.members.iter().find_map(why)
    }

    /// How the job ends by this cause, if it does.
    pub(crate) fn end_by(&self, rules: &JobRules, why: &RoundStopCause) -> Option<JobEnd> {
        match why {
            RoundStopCause::Failed { failure } if failure.again || self.excludes(rules, failure).is_some() => None,
            RoundStopCause::Failed { failure } => {
                let failed = |no_restart| Some(JobEnd::Failed { failure: failure.clone(), no_restart });
                let (used, most) = (self.state.failures, rules.restarts);
                match rules.on_failure {
                    OnFailure::End => failed(None),
                    OnFailure::Hold => None,
                    OnFailure::Restart if failure.no_restart.is_some() => failed(failure.no_restart.clone()),
                    OnFailure::Restart if most == 0 => failed(None),
                    OnFailure::Restart if used >= most => failed(Some(format!("{used} of {most} restarts used"))),
                    OnFailure::Restart => None,
                }
            }
            RoundStopCause::Lost { lost } => {
                (rules.on_loss == OnNodeLoss::End || self.count_done() > 0).then(|| JobEnd::Lost { lost: lost.clone() })
            }
            // In an elastic job only this node leaves, while enough are left.
            RoundStopCause::Stopped { host, signal } => {
                let goes = |status: &NodeStatus| {
                    matches!(status, NodeStatus::Leaves { .. } | NodeStatus::Stops { why: NodeStop::Signal { .. }, .. })
                };
                let stays = |record: &&NodeRecord| !goes(&record.status);
                let enough = rules.min < rules.max && self.of_round().filter(stays).count() >= rules.min;
                let goes_on = rules.on_loss == OnNodeLoss::Regroup && enough && self.count_done() == 0;
                (!goes_on).then(|| JobEnd::Stopped { host: host.clone(), signal: *signal })
            }
            RoundStopCause::More { .. } => None,
        }
    }

    /// The end of a job that ends with a lost node, if one is lost: whatever the round stops for, ranks of that node may outlive
    /// its lease, so no other round begins.
    pub(crate) fn end_by_any_loss(&self, rules: Option<&JobRules>) -> Option<JobEnd> {
        let ends = rules.is_some_and(|rules| rules.on_loss == OnNodeLoss::End);
        self.find_lost(false).filter(|_| ends).map(|lost| JobEnd::Lost { lost })
    }

    /// The member that is lost, if one is: the one that was heard from longest ago. While the round runs, that includes a member
    /// that runs nothing any more without having been asked to stop: it was without contact for too long.
    pub(crate) fn find_lost(&self, running: bool) -> Option<LostNode> {
        let round = self.state.round;
        let gave_up =
            |node: &CoordinatorNode| matches!(node.record.status, NodeStatus::Ready { seen } if seen >= round);
        let is_lost = |member: &RoundMember| self.nodes.get(&member.id).is_none_or(|node| running && gave_up(node));
        let age = |member: &RoundMember| self.ages.get(&member.id).copied().unwrap_or_default();
        let lost = self.members.iter().enumerate().filter(|(_, member)| is_lost(member));
        let (node, member) = lost.max_by_key(|(node, member)| (age(member), Reverse(*node)))?;
        let NodeInfo { host, address, .. } = member.info.clone();
        Some(LostNode { node, host, address, age_ms: millis(age(member)) })
    }

    /// What this coordinator has not seen itself: members of a round that was not over, and whose leases have lapsed before it took
    /// over, and ranks that the coordinator before was waiting for.
    pub(crate) fn note_missing_members(&mut self, now: Duration) {
        let departure = Departure::Lapsed { age: Duration::ZERO };
        let Some(longest) = self.rules().and_then(|rules| departure.ranks_run_for(rules)) else { return };
        let ranks_end = now + longest;
        if let JobPhase::Running | JobPhase::Stopping { .. } = self.state.phase {
            let missing = self.members.iter().filter(|member| !self.nodes.contains_key(&member.id));
            self.may_run.extend(missing.map(|member| (member.id.clone(), ranks_end)));
        }
        if self.state.ranks_may_run {
            self.may_run.insert(UNKNOWN.to_owned(), ranks_end);
        }
    }

    /// Notes for a later coordinator whether ranks are waited for. Whether that is new.
    pub(crate) fn note_lingering_ranks(&mut self) -> bool {
        let may_run = !self.may_run.is_empty();
        std::mem::replace(&mut self.state.ranks_may_run, may_run) != may_run
    }

    /// Whether a node may run ranks, or may be about to start those of the round.
    pub(crate) fn has_ranks(&self, id: &str, record: &NodeRecord) -> bool {
        let is_member = || self.members.iter().any(|member| member.id == id);
        match record.status {
            NodeStatus::Runs { .. } | NodeStatus::Stops { .. } => true,
            _ if record.info.is_paddle_launcher => false,
            ref status => status.stopped_in() < Some(self.state.round) && is_member(),
        }
    }

    /// When ranks of nodes that are gone have ended.
    pub(crate) fn ranks_gone_at(&self) -> Duration {
        self.may_run.values().copied().fold(self.not_before, Duration::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::record::FORMAT;
    use crate::protocol::state::JobState;

    const RUNS: NodeStatus = NodeStatus::runs(2);
    const DONE: NodeStatus = NodeStatus::done(2);
    const LEAVES: NodeStatus = NodeStatus::Leaves { signal: 15 };
    const STOPS: NodeStatus = NodeStatus::Stops { round: 2, why: NodeStop::Signal { signal: 15 } };

    fn record(id: &str, rules: &JobRules, status: NodeStatus) -> NodeRecord {
        let info = NodeInfo { host: format!("host-{id}"), rules: rules.clone(), ..NodeInfo::default() };
        NodeRecord { format: FORMAT, info, status }
    }

    /// In round 2, whose members are a, b and c, as many as there are statuses. A member without a status is gone.
    fn running(rules: &JobRules, statuses: &[Option<NodeStatus>]) -> Coordinator {
        let nodes = || ["a", "b", "c"].into_iter().zip(statuses);
        let member = |id: &str| RoundMember { id: id.into(), info: record(id, rules, RUNS).info };
        let state = JobState { round: 2, phase: JobPhase::Running, ..Coordinator::new(Duration::ZERO).state().clone() };
        let mut coordinator = Coordinator::resume(state, nodes().map(|(id, _)| member(id)).collect(), Duration::ZERO);
        for (id, status) in nodes() {
            if let Some(status) = status {
                coordinator.record(id, record(id, rules, status.clone()), Duration::ZERO);
            }
        }
        coordinator
    }

    fn failure(process: &str) -> RankFailure {
        RankFailure { process: process.into(), lost_peer: process == "felt it", ..RankFailure::default() }
    }

    fn failed(round: u64, process: &str) -> NodeStatus {
        NodeStatus::Failed { round, failure: failure(process) }
    }

    fn lost(node: usize, id: &str) -> LostNode {
        LostNode { node, host: format!("host-{id}"), ..LostNode::default() }
    }

    #[test]
    fn the_cause_is_what_happened_first_not_what_was_reported_first() {
        let stops = |round| NodeStatus::Stops { round, why: NodeStop::Failure { failure: failure("own") } };
        let by_failure = |process: &str| Some(RoundStopCause::Failed { failure: failure(process) });
        let by_signal = |id: &str| Some(RoundStopCause::Stopped { host: format!("host-{id}"), signal: 15 });
        let by_loss = |node, id: &str| Some(RoundStopCause::Lost { lost: lost(node, id) });
        for (statuses, cause) in [
            ([Some(RUNS), Some(RUNS)], None),
            ([Some(failed(1, "own")), Some(RUNS)], None),
            ([Some(stops(1)), Some(RUNS)], None),
            ([Some(RUNS), Some(failed(2, "own"))], by_failure("own")),
            ([Some(stops(2)), Some(RUNS)], by_failure("own")),
            ([Some(failed(2, "felt it")), Some(failed(2, "own"))], by_failure("own")),
            ([Some(LEAVES), Some(failed(2, "own"))], by_failure("own")),
            ([None, Some(failed(2, "own"))], by_failure("own")),
            ([Some(failed(2, "felt it")), Some(LEAVES)], by_signal("b")),
            ([None, Some(STOPS)], by_signal("b")),
            ([Some(failed(2, "felt it")), None], by_loss(1, "b")),
            ([None, None], by_loss(0, "a")),
            ([Some(failed(2, "felt it")), Some(RUNS)], by_failure("felt it")),
        ] {
            assert_eq!(running(&JobRules::default(), &statuses).find_cause(true), cause, "{statuses:?}");
        }
        let gave_up = running(&JobRules::default(), &[Some(NodeStatus::Ready { seen: 2 }), Some(RUNS)]);
        assert_eq!((gave_up.find_cause(true), gave_up.find_cause(false)), (by_loss(0, "a"), None));
        let not_begun = running(&JobRules::default(), &[Some(NodeStatus::Ready { seen: 1 }), Some(RUNS)]);
        assert_eq!(not_begun.find_cause(true), None);
        let mut left = running(&JobRules::default(), &[Some(RUNS), Some(LEAVES)]);
        left.gone("b", Departure::Left, Duration::ZERO);
        assert_eq!(left.find_cause(true), by_signal("b"), "it has gone since");
    }

    #[test]
    fn a_failure_ends_the_job_as_the_rules_say() {
        let again = RankFailure { again: true, ..failure("own") };
        let no_restart = RankFailure { no_restart: Some("it says so".into()), ..failure("own") };
        let text = |text: &str| Some(Some(text.to_owned()));
        for (failure, on_failure, restarts, used, ends) in [
            (&again, OnFailure::End, 0, 0, None),
            (&again, OnFailure::Restart, 0, 0, None),
            (&failure("own"), OnFailure::End, 5, 0, Some(None)),
            (&failure("own"), OnFailure::Hold, 0, 0, None),
            (&failure("own"), OnFailure::Restart, 0, 0, Some(None)),
            (&failure("own"), OnFailure::Restart, 2, 1, None),
            (&failure("own"), OnFailure::Restart, 2, 2, text("2 of 2 restarts used")),
            (&no_restart, OnFailure::Restart, 2, 0, text("it says so")),
        ] {
            let rules = JobRules { on_failure, restarts, ..JobRules::default() };
            let mut coordinator = running(&rules, &[Some(RUNS)]);
            coordinator.state.failures = used;
            let end = coordinator.end_by(&rules, &RoundStopCause::Failed { failure: failure.clone() });
            let expected = ends.map(|no_restart| JobEnd::Failed { failure: failure.clone(), no_restart });
            assert_eq!(end, expected, "{failure:?}, {on_failure:?}, {used} of {restarts}");
        }
    }

    #[test]
    fn a_job_goes_on_without_a_lost_node_unless_another_has_finished() {
        for (on_loss, status, ends) in [
            (OnNodeLoss::End, RUNS, true),
            (OnNodeLoss::Regroup, RUNS, false),
            (OnNodeLoss::Regroup, DONE, true),
            (OnNodeLoss::Regroup, NodeStatus::done(1), false),
        ] {
            let rules = JobRules { on_loss, ..JobRules::default() };
            let coordinator = running(&rules, &[None, Some(status.clone())]);
            let end = coordinator.end_by(&rules, &RoundStopCause::Lost { lost: lost(0, "a") });
            assert_eq!(end, ends.then(|| JobEnd::Lost { lost: lost(0, "a") }), "{on_loss:?}, {status:?}");
        }
    }

    #[test]
    fn a_node_that_received_a_signal_leaves_alone_only_while_enough_nodes_stay() {
        let (end, regroup) = (OnNodeLoss::End, OnNodeLoss::Regroup);
        for (min, max, on_loss, statuses, ends) in [
            (1, 2, regroup, &[LEAVES, RUNS][..], false),
            (1, 2, end, &[LEAVES, RUNS], true),
            (1, 2, regroup, &[LEAVES, DONE], true),
            (2, 2, regroup, &[LEAVES, RUNS], true),
            (2, 3, regroup, &[LEAVES, RUNS], true),
            (2, 3, regroup, &[LEAVES, RUNS, RUNS], false),
            (2, 3, regroup, &[STOPS, RUNS, RUNS], false),
            (2, 3, regroup, &[STOPS, LEAVES, RUNS], true),
        ] {
            let rules = JobRules { min, max, on_loss, ..JobRules::default() };
            let coordinator = running(&rules, &statuses.iter().cloned().map(Some).collect::<Vec<_>>());
            let why = RoundStopCause::Stopped { host: "host-a".into(), signal: 15 };
            let expected = ends.then(|| JobEnd::Stopped { host: "host-a".into(), signal: 15 });
            assert_eq!(coordinator.end_by(&rules, &why), expected, "{min}:{max}, {on_loss:?}, {statuses:?}");
        }
    }

    /// There are restarts left, but ranks of the lost node may outlive its lease.
    #[test]
    fn where_a_lost_node_ends_the_job_no_restart_follows_while_one_is_lost() {
        let lost = JobPhase::Ended { end: JobEnd::Lost { lost: lost(1, "b") } };
        for (on_loss, phase) in [(OnNodeLoss::End, lost), (OnNodeLoss::Regroup, JobPhase::Gathering)] {
            let rules = JobRules {
                min: 2,
                max: 2,
                join_ms: 60_000,
                on_failure: OnFailure::Restart,
                restarts: 5,
                on_loss,
                ..JobRules::default()
            };
            let mut coordinator = running(&rules, &[Some(failed(2, "own")), None]);
            coordinator.turn(Duration::ZERO);
            assert_eq!(coordinator.state.phase, phase, "{on_loss:?}");
        }
    }

    #[test]
    fn the_final_report_of_a_failure_is_one_that_differs_from_the_first() {
        for (status, differs) in
            [(failed(2, "all known"), true), (failed(2, "own"), false), (failed(1, "all known"), false), (RUNS, false)]
        {
            let coordinator = running(&JobRules::default(), &[Some(status.clone()), Some(RUNS)]);
            let last = coordinator.final_failure(&failure("own"));
            assert_eq!(last, differs.then(|| failure("all known")), "{status:?}");
        }
    }

    #[test]
    fn a_node_has_ranks_while_it_runs_or_may_begin_the_round() {
        let coordinator = running(&JobRules::default(), &[Some(RUNS)]);
        for (id, is_paddle_launcher, status, has_ranks) in [
            ("a", false, RUNS, true),
            ("a", false, STOPS, true),
            ("stranger", false, RUNS, true),
            ("stranger", false, STOPS, true),
            ("a", false, NodeStatus::Ready { seen: 1 }, true),
            ("a", false, NodeStatus::done(1), true),
            ("a", false, NodeStatus::Ready { seen: 2 }, false),
            ("a", false, DONE, false),
            ("a", false, LEAVES, false),
            ("stranger", false, NodeStatus::Ready { seen: 1 }, false),
            ("a", true, NodeStatus::Ready { seen: 0 }, false),
        ] {
            let mut record = record(id, &JobRules::default(), status);
            record.info.is_paddle_launcher = is_paddle_launcher;
            assert_eq!(coordinator.has_ranks(id, &record), has_ranks, "{id}: {record:?}");
        }
    }
}
