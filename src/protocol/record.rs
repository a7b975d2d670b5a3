//! A node's record: the document in which the node says what it offers and where it stands. Only the node writes it.

use crate::model::exit::START_FAILED;
use crate::model::fingerprint::Fingerprint;
use crate::model::{Exit, ProcessLabel, Role};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The version of records and states. Nodes with another version are refused.
pub const FORMAT: u32 = 5;

/// Whole milliseconds, as documents have times.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A node's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// `FORMAT`.
    pub format: u32,
    /// What it offers.
    pub info: NodeInfo,
    /// Where it stands.
    pub status: NodeStatus,
}

/// What a node offers to a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    /// The name of its launcher, by which nodes without numbers are ordered.
    pub name: String,
    /// The number that the user gives it.
    pub rank: Option<usize>,
    /// The host name of its machine, only for people.
    pub host: String,
    /// The address at which other nodes reach it.
    pub address: String,
    /// How that address was found, for people.
    pub address_from: String,
    /// How many ranks it has.
    pub ranks: usize,
    /// The kind of their devices: `cpu`, `gpu` and so on.
    pub device: String,
    /// Where rank 0's store listens if this is the first node.
    pub master: String,
    /// Where its ranks listen, one endpoint each, if they do.
    pub endpoints: Vec<String>,
    /// How many of these are parameter servers', which come first; 0: the job has none.
    #[serde(skip_serializing_if = "is_zero")]
    pub servers: usize,
    /// The rules of the job as this node was given them.
    #[serde(skip_serializing_if = "JobRules::are_default")]
    pub rules: JobRules,
    /// The version of its launcher.
    pub version: String,
    /// Versions of what its ranks run.
    #[serde(skip_serializing_if = "Fingerprint::is_empty")]
    pub fingerprint: Fingerprint,
    /// The time of its clock when it joined, in milliseconds since 1970; 0 in its later records.
    pub clock_ms: u64,
    /// Whether it serves the master: the job ends when it leaves.
    pub serves_master: bool,
    /// Whether it is Paddle's own launcher, which writes nothing else and never receives a request to stop.
    pub is_paddle_launcher: bool,
    /// The role of its ranks, as torch's agents name it.
    pub role: String,
    /// What else front ends exchange.
    pub more: BTreeMap<String, String>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The order of nodes without numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeOrder {
    /// By name; the node that serves the master is first (Paddle's `aaaaaa`).
    #[default]
    Name,
    /// By address.
    Address,
}

/// What follows when a rank has failed. All ranks stop in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFailure {
    /// The job ends.
    #[default]
    End,
    /// The node of the failed rank leaves, and the others wait for another in its place.
    Hold,
    /// All ranks start again, while there are restarts left.
    Restart,
}

/// What follows when a node is lost. All ranks stop in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnNodeLoss {
    /// The job ends.
    #[default]
    End,
    /// The job continues with the nodes that are left, or that join.
    Regroup,
}

/// What has to be the same on all nodes. Times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRules {
    /// The front end, which sets the variables of the ranks: `paddle`, `torch`.
    pub frontend: String,
    /// The fewest nodes of a round.
    pub min: usize,
    /// The most.
    pub max: usize,
    /// How long more nodes are waited for once there are enough, since a node last joined or left.
    pub last_call_ms: u64,
    /// With this many nodes, and later with as many as the last round had, a round begins without a last call. `None`: only with
    /// the most. The first node decides for all.
    pub no_last_call_at: Option<usize>,
    /// How long a round may take to gather.
    pub join_ms: u64,
    /// The time without a heartbeat before a node is considered lost; 0: unknown.
    pub lease_ms: u64,
    /// How much longer than their node's lease ranks may run where the job ends with a lost node.
    pub loss_ms: u64,
    /// What follows a failure.
    pub on_failure: OnFailure,
    /// What follows a loss.
    pub on_loss: OnNodeLoss,
    /// The exit status by which a rank asks for a restart of all; it is not a failure, and uses up no restart.
    pub again: Option<i32>,
    /// How many times a failed job is restarted.
    pub restarts: u32,
    /// How long a round runs before it is stopped for nodes that have joined since.
    pub min_round_ms: u64,
    /// How many failures in a row exclude a node from a job that can continue without it; 0: none do.
    pub node_failure_limit: u32,
    /// How many nodes beyond the most wait to replace one that is lost. Further ones are refused. `None`: any number waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spares: Option<usize>,
    /// The words of `--require_same`, separated by commas: nodes that differ from the first in these are refused.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub require_same: String,
    /// The order of nodes without numbers.
    pub order: NodeOrder,
    /// The name of what the ranks run, where nodes have to agree on it because the user has not named the job; empty: not compared.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub script: String,
}

impl JobRules {
    /// Whether a rank that exits with this status asks for a restart of all.
    pub fn ask_for_restart(&self, exit_status: i32) -> bool {
        self.again == Some(exit_status)
    }

    /// Whether nodes beyond the maximum, or that join later, are a part of such a job: it has other nodes than at its begin.
    pub fn are_elastic(&self) -> bool {
        self.min < self.max || self.spares.is_some_and(|spares| spares > 0)
    }

    /// Whether a node that joins later can take the place of one that is lost.
    pub fn replace_nodes(&self) -> bool {
        self.on_loss == OnNodeLoss::Regroup
    }

    /// Whether there are none, as in members' lists.
    fn are_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Where a node stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is")]
pub enum NodeStatus {
    /// It runs nothing, has nothing left to do in any round up to this one, and would take part in the next.
    Ready {
        /// 0: it has taken part in none.
        seen: u64,
    },
    /// Its ranks run.
    Runs {
        /// In this round.
        round: u64,
        /// How they hang, if they do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hang: Option<RankHang>,
        /// Whether they are to stop soon, at a common step (`rlaunch.should_stop`).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_noticed: bool,
    },
    /// It stops its ranks for a reason of its own. Their outcome is reported when all have ended.
    Stops {
        /// In this round.
        round: u64,
        /// Why.
        why: NodeStop,
    },
    /// Its ranks have exited successfully.
    Done {
        /// In this round.
        round: u64,
        /// The step at which they were asked to stop before (`rlaunch.should_stop`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stopped_at: Option<u64>,
    },
    /// A rank has failed, and all ranks have ended.
    Failed {
        /// In this round.
        round: u64,
        /// Which rank, and how.
        failure: RankFailure,
    },
    /// It leaves, because it received a signal; its ranks have ended.
    Leaves {
        /// The signal.
        signal: i32,
    },
}

/// What the ranks of a node do that hang: none has written anything for `--hang_timeout`, and no stack moves. A node whose ranks hang
/// in another way says nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is")]
pub enum RankHang {
    /// All of them wait for other ranks.
    Waits,
    /// Some have been idle since their start, at another place.
    Stuck {
        /// The place, for people.
        place: String,
        /// How many looks in a row have found them so.
        #[serde(default)]
        looks: u32,
    },
}

/// A node's own reason to stop its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for")]
pub enum NodeStop {
    /// A rank has failed.
    Failure {
        /// Which, as far as it is known.
        failure: RankFailure,
    },
    /// The node received a signal.
    Signal {
        /// The signal.
        signal: i32,
    },
}

impl NodeStatus {
    /// That of a node whose ranks run in this round, and do not hang.
    pub const fn runs(round: u64) -> Self {
        NodeStatus::Runs { round, hang: None, is_noticed: false }
    }

    /// That of a node whose ranks have exited successfully in this round.
    pub const fn done(round: u64) -> Self {
        NodeStatus::Done { round, stopped_at: None }
    }

    /// The last round that it knows of and in which none of its ranks runs any more; `None` while some do.
    pub fn stopped_in(&self) -> Option<u64> {
        match self {
            NodeStatus::Ready { seen } => Some(*seen),
            NodeStatus::Done { round, .. } | NodeStatus::Failed { round, .. } => Some(*round),
            NodeStatus::Leaves { .. } => Some(u64::MAX),
            NodeStatus::Runs { .. } | NodeStatus::Stops { .. } => None,
        }
    }
}

/// A rank's failure, as all nodes report it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankFailure {
    /// The machine of its node.
    pub host: String,
    /// The number of its node in the round.
    pub node: usize,
    /// The rank's name for people: `rank 3`.
    pub process: String,
    /// How it ended: `exit code 3`, `SIGKILL`; `an error` if it was stopped while it was still exiting.
    pub outcome: String,
    /// The last line of its error, empty if it has none.
    pub message: String,
    /// The exit status of the job.
    pub status: i32,
    /// Whether the rank says that it failed because another rank had gone: then it is not the first to fail.
    pub lost_peer: bool,
    /// Whether the rank asks for a restart of all, which is not a failure and uses up no restart.
    pub again: bool,
    /// Whether its node could not begin the round: no rank has run there.
    pub cannot_begin: bool,
    /// Whether its node has joined lately, its ranks hang at their start, and it is excluded because of that. Then `again` is set too.
    pub hangs: bool,
    /// Why the job is not restarted, if its node's rules say so.
    pub no_restart: Option<String>,
    /// Milliseconds to wait before the restart.
    pub delay_ms: u64,
    /// The same for programs.
    pub details: Box<FailureDetails>,
}

impl RankFailure {
    /// The failure of a rank that could not be started, for this reason.
    pub fn not_started(label: ProcessLabel, why: &str) -> Self {
        Self {
            process: label.to_string(),
            outcome: "no start".into(),
            message: why.chars().take(FailureDetails::MOST_TEXT).collect(),
            status: START_FAILED,
            details: Box::new(FailureDetails::of_process(label, None).with_text(why)),
            ..Self::default()
        }
    }
}

/// The process that failed, and its error, as `result.json` of every node has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailureDetails {
    /// Its role; `None`: the launcher itself failed.
    pub role: Option<Role>,
    /// Its number among the processes of its role, in the job.
    pub rank: Option<usize>,
    /// How it ended; `None`: it could not be started, or was still exiting when it was stopped.
    pub exit: Option<Exit>,
    /// The type of the exception that it printed.
    pub exception: Option<String>,
    /// The message of its error in a line, shortened.
    pub text: Option<String>,
    /// Its log file on its machine.
    pub log: Option<String>,
}

impl FailureDetails {
    /// Characters of `text`.
    const MOST_TEXT: usize = 1000;

    /// Those of a process of which no error is known.
    pub fn of_process(label: ProcessLabel, exit: Option<Exit>) -> Self {
        Self { role: Some(label.role), rank: Some(label.number), exit, ..Self::default() }
    }

    /// The same with the message of an error, whose lines become one; an empty one changes nothing.
    pub fn with_text(self, text: &str) -> Self {
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let text: String = lines.join(" ").chars().take(Self::MOST_TEXT).collect();
        Self { text: (!text.is_empty()).then_some(text), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_milliseconds_and_the_longest_stays_the_longest() {
        assert_eq!(millis(Duration::from_micros(1_999)), 1);
        assert_eq!(millis(Duration::from_secs(2)), 2_000);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }

    #[test]
    fn a_rank_that_could_not_be_started_is_named_with_the_reason() {
        let label = ProcessLabel { role: Role::Trainer, number: 3 };
        let why = format!("fork: Resource\ntemporarily {}", "x".repeat(2000));
        let failure = RankFailure::not_started(label, &why);
        assert_eq!((failure.process.as_str(), failure.status), ("rank 3", START_FAILED));
        assert_eq!(failure.message.len(), FailureDetails::MOST_TEXT);
        assert_eq!((failure.details.rank, failure.details.exit), (Some(3), None));
        assert!(failure.details.text.is_some_and(|text| text.starts_with("fork: Resource temporarily")));
    }

    #[test]
    fn only_the_exit_status_of_the_rules_asks_for_a_restart() {
        for (again, exit_status, asks) in [(Some(101), 101, true), (Some(101), 1, false), (None, 101, false)] {
            let rules = JobRules { again, ..JobRules::default() };
            assert_eq!(rules.ask_for_restart(exit_status), asks, "{again:?}, {exit_status}");
        }
    }

    #[test]
    fn rules_are_written_unless_there_are_none() {
        let text = |max| {
            let info = NodeInfo { rules: JobRules { max, ..JobRules::default() }, ..NodeInfo::default() };
            serde_json::to_value(info).map(|json| json["rules"]["max"].as_u64()).ok()
        };
        assert_eq!((text(0), text(2)), (Some(None), Some(Some(2))));
    }

    #[test]
    fn records_of_launchers_that_report_no_hangs_are_read() {
        let read = |text: &str| serde_json::from_str::<NodeStatus>(text).ok();
        assert_eq!(read(r#"{"is":"Runs","round":4}"#), Some(NodeStatus::runs(4)));
        let text = |status: &NodeStatus| serde_json::to_string(status).unwrap_or_default();
        assert_eq!(text(&NodeStatus::runs(4)), r#"{"is":"Runs","round":4}"#);
        for hang in [RankHang::Waits, RankHang::Stuck { place: "rank 2 is in load".into(), looks: 3 }] {
            let status = NodeStatus::Runs { round: 4, hang: Some(hang), is_noticed: true };
            assert_eq!(read(&text(&status)), Some(status));
        }
    }

    #[test]
    fn a_node_has_stopped_in_the_last_round_that_it_reports() {
        let failure = RankFailure::default;
        for (status, stopped_in) in [
            (NodeStatus::Ready { seen: 0 }, Some(0)),
            (NodeStatus::Ready { seen: 4 }, Some(4)),
            (NodeStatus::runs(4), None),
            (NodeStatus::Stops { round: 4, why: NodeStop::Failure { failure: failure() } }, None),
            (NodeStatus::done(4), Some(4)),
            (NodeStatus::Failed { round: 4, failure: failure() }, Some(4)),
            (NodeStatus::Leaves { signal: 15 }, Some(u64::MAX)),
        ] {
            assert_eq!(status.stopped_in(), stopped_in, "{status:?}");
        }
    }
}
