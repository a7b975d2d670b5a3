//! The trait by which a rendezvous backend drives a coordinator: records and states are JSON text.

use crate::protocol::record::{JobRules, OnNodeLoss};
use std::time::Duration;

/// How a node has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It said that it leaves: its ranks have ended.
    Left,
    /// Its connection has broken. It was last heard from this long ago, and its ranks may run until its lease has lapsed.
    Disconnected {
        /// The time since then.
        age: Duration,
    },
    /// Its lease has lapsed, and its ranks have ended before. It was last heard from this long ago.
    Lapsed {
        /// The time since then.
        age: Duration,
    },
}

impl Departure {
    /// For how long the node's ranks may still run, under these rules of the job; `None`: they have ended.
    pub fn ranks_run_for(self, rules: &JobRules) -> Option<Duration> {
        let lease = Duration::from_millis(rules.lease_ms);
        let longer = match rules.on_loss {
            OnNodeLoss::End => Duration::from_millis(rules.loss_ms),
            // Then the lease is so much longer.
            OnNodeLoss::Regroup => Duration::ZERO,
        };
        match self {
            Self::Left => None,
            Self::Disconnected { age } => Some((lease + longer).saturating_sub(age)),
            Self::Lapsed { .. } => Some(longer).filter(|longer| !longer.is_zero()),
        }
    }

    /// For how long the node was silent before; zero if its end, or that of its connection, was seen.
    pub fn silence(self) -> Duration {
        match self {
            Self::Lapsed { age } => age,
            Self::Left | Self::Disconnected { .. } => Duration::ZERO,
        }
    }
}

/// Decides for a job. [`Coordinator`](crate::protocol::Coordinator) implements it.
pub trait CoordinatorLogic: Send {
    /// Continues where another coordinator stopped: the last state and the list of its round's members, as published.
    fn resume(&mut self, state: Option<&str>, members: Option<&str>, now: Duration);
    /// A node has a new record.
    fn record(&mut self, id: &str, record: &str, now: Duration);
    /// A node is gone.
    fn gone(&mut self, id: &str, departure: Departure, now: Duration);
    /// What all nodes are to receive, if anything. To be called after each of the above and when `next_deadline` has come.
    fn turn(&mut self, now: Duration) -> Option<Publication>;
    /// When `turn` is to be called next, if ever.
    fn next_deadline(&self) -> Option<Duration>;
    /// Whether the job has ended and all its members have left, so that no node needs a coordinator.
    fn is_over(&self) -> bool;
    /// The nodes as Paddle's own launchers see them: their keys below `/{job}/info` and their payloads.
    fn shown_to_paddle(&self) -> Vec<(String, String)>;
}

/// What all nodes receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// `JobState`.
    pub state: String,
    /// The list of members (`member_list`), with the state that begins a round, and with a coordinator's first one.
    pub members: Option<String>,
    /// Whether a round begins with this state, or the members of the last one are given up. Then the leader has to know all nodes
    /// whose records are there: one that had been lost may be back, and may have read the state before.
    pub requires_all_nodes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_node_that_is_gone_may_run_as_its_lease_and_the_rules_say() {
        let age = Duration::from_secs(1);
        let (left, broken, lapsed) = (Departure::Left, Departure::Disconnected { age }, Departure::Lapsed { age });
        for (departure, on_loss, loss_ms, seconds) in [
            (left, OnNodeLoss::End, 60_000, None),
            (left, OnNodeLoss::Regroup, 60_000, None),
            (broken, OnNodeLoss::End, 60_000, Some(69)),
            (broken, OnNodeLoss::Regroup, 60_000, Some(9)),
            (lapsed, OnNodeLoss::End, 60_000, Some(60)),
            (lapsed, OnNodeLoss::End, 0, None),
            (lapsed, OnNodeLoss::Regroup, 60_000, None),
        ] {
            let rules = JobRules { lease_ms: 10_000, loss_ms, on_loss, ..JobRules::default() };
            let run_for = departure.ranks_run_for(&rules);
            assert_eq!(run_for, seconds.map(Duration::from_secs), "{departure:?}, {on_loss:?}, {loss_ms}");
        }
        assert_eq!([left, broken, lapsed].map(Departure::silence), [Duration::ZERO, Duration::ZERO, age]);
    }
}
