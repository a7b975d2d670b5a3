//! Why a round stops, and what follows.

use super::coordinator::{Coordinator, Node};
use super::record::{Failure, Offer, OnFailure, OnLoss, Record, Rules, Standing, Stops, millis};
use super::state::{End, Lost, Member, Why};
use std::cmp::Reverse;

impl Coordinator {
    /// The round's members that are here.
    pub(super) fn of_members(&self) -> impl Iterator<Item = &Node> {
        self.members.iter().filter_map(|member| self.nodes.get(&member.id))
    }

    /// The records of the round's members that are here.
    pub(super) fn of_round(&self) -> impl Iterator<Item = &Record> {
        self.of_members().map(|node| &node.record)
    }

    /// How many of them have ended well.
    pub(super) fn done(&self) -> usize {
        let round = self.state.round;
        self.of_round().filter(|record| record.standing == Standing::Done { round }).count()
    }

    /// Why the round stops, if its members give a reason. Whose peer was gone failed later than that, whoever was heard
    /// first. `running`: nobody has told them to stop yet.
    pub(super) fn cause(&self, running: bool) -> Option<Why> {
        let round = self.state.round;
        let failures = || {
            self.of_round().filter_map(move |record| match &record.standing {
                Standing::Failed { round: its, failure } if *its == round => Some(failure),
                Standing::Stops { round: its, why: Stops::Failure { failure } } if *its == round => Some(failure),
                _ => None,
            })
        };
        let failed = |failure: &Failure| Why::Failed { failure: failure.clone() };
        let own = || failures().find(|failure| !failure.lost_peer).map(failed);
        let lost = || self.lost(running).map(|lost| Why::Lost { lost });
        own().or_else(|| self.stopped()).or_else(lost).or_else(|| failures().next().map(failed))
    }

    /// The same failure as its node tells it now that all its ranks have ended, if it tells it differently.
    pub(super) fn known_better(&self, failure: &Failure) -> Option<Failure> {
        let node = self.nodes.get(&self.members.get(failure.node)?.id)?;
        match &node.record.standing {
            Standing::Failed { round, failure: known } if *round == self.state.round && known != failure => {
                Some(known.clone())
            }
            _ => None,
        }
    }

    /// Who of the round was stopped from outside.
    pub(super) fn stopped(&self) -> Option<Why> {
        let signal = |member: &Member| match self.nodes.get(&member.id).map(|node| &node.record.standing) {
            Some(Standing::Leaves { signal }) => Some(*signal),
            Some(Standing::Stops { why: Stops::Signal { signal }, .. }) => Some(*signal),
            Some(_) => None,
            // He has gone since.
            None => self.left.get(&member.id).copied(),
        };
        let why = |member: &Member| Some(Why::Stopped { host: member.offer.host.clone(), signal: signal(member)? });
        self.members.iter().find_map(why)
    }

    /// How the job ends by that, if it does.
    pub(super) fn follows(&self, rules: &Rules, why: &Why) -> Option<End> {
        match why {
            Why::Failed { failure } if failure.again => None,
            Why::Failed { failure } => {
                let failed = |no_restart| Some(End::Failed { failure: failure.clone(), no_restart });
                let (used, most) = (self.state.failures, rules.restarts);
                match rules.on_failure {
                    OnFailure::End => failed(None),
                    OnFailure::Hold => None,
                    OnFailure::Restart if failure.no_restart.is_some() => failed(failure.no_restart.clone()),
                    OnFailure::Restart if most == 0 => failed(None),
                    OnFailure::Restart if used >= most => failed(Some(format!("there have been {used} already"))),
                    OnFailure::Restart => None,
                }
            }
            Why::Lost { lost } => {
                (rules.on_loss == OnLoss::End || self.done() > 0).then(|| End::Lost { lost: lost.clone() })
            }
            // Where nodes may come and go, one that is stopped goes, while enough are left.
            Why::Stopped { host, signal } => {
                let goes = |standing: &Standing| {
                    matches!(standing, Standing::Leaves { .. } | Standing::Stops { why: Stops::Signal { .. }, .. })
                };
                let stays = |record: &&Record| !goes(&record.standing);
                let enough = rules.min < rules.max && self.of_round().filter(stays).count() >= rules.min;
                let goes_on = rules.on_loss == OnLoss::Regroup && enough && self.done() == 0;
                (!goes_on).then(|| End::Stopped { host: host.clone(), signal: *signal })
            }
            Why::More { .. } => None,
        }
    }

    /// The member that has gone, if one has: the one that was heard of longest ago. While they run also one that runs nothing
    /// any more though nobody has told it to stop: it has lost its contact for too long.
    pub(super) fn lost(&self, running: bool) -> Option<Lost> {
        let round = self.state.round;
        let gave_up = |node: &Node| matches!(node.record.standing, Standing::Ready { seen } if seen >= round);
        let is_lost = |member: &Member| self.nodes.get(&member.id).is_none_or(|node| running && gave_up(node));
        let age = |member: &Member| self.ages.get(&member.id).copied().unwrap_or_default();
        let lost = self.members.iter().enumerate().filter(|(_, member)| is_lost(member));
        let (node, member) = lost.max_by_key(|(node, member)| (age(member), Reverse(*node)))?;
        let Offer { host, address, .. } = member.offer.clone();
        Some(Lost { node, host, address, age_ms: millis(age(member)) })
    }
}
