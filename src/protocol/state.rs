//! The job's state: the document that all nodes receive. Only the coordinator writes it.

use crate::protocol::record::{NodeInfo, RankFailure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often waiting nodes receive the participants, and the pause before the first time: most nodes join at once.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(10);
pub(crate) const FIRST_REPORT: Duration = Duration::from_millis(1500);

/// The job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    /// `record::FORMAT`.
    pub format: u32,
    /// Grows with every change: an older state never replaces a newer one.
    pub serial: u64,
    /// The last round that was formed; 0: none yet.
    pub round: u64,
    /// How many times the job was restarted because a rank had failed (`OnFailure::Restart`).
    pub failures: u32,
    /// Where it stands.
    pub phase: JobPhase,
    /// Ids of nodes that harmed the job, and why each takes part no more.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub excluded: BTreeMap<String, String>,
    /// The node whose ranks failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failed: Option<FailingNode>,
    /// Ids of members of the last round that have joined lately: they are excluded if their ranks hang at their start. The first few.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub newcomers: BTreeSet<String>,
    /// The failure whose node leaves while the others wait for another in its place (`OnFailure::Hold`).
    #[serde(default)]
    pub held_failure: Option<RankFailure>,
    /// Ids of nodes that took part in no round when the job ended, and still have to receive the end.
    #[serde(default)]
    pub to_receive_end: BTreeSet<String>,
    /// Ids of nodes that cannot take part, and why; the first few.
    pub refused: BTreeMap<String, String>,
    /// Warnings for people.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Whether the next round waits for the end of ranks on nodes that are gone.
    #[serde(default)]
    pub ranks_may_run: bool,
    /// The step at which the ranks were asked to stop, if the job has ended by that (`rlaunch.should_stop`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<u64>,
    /// The nodes that have joined, while others are waited for.
    pub participants: Option<Participants>,
}

/// A node whose ranks fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingNode {
    /// Its id.
    pub id: String,
    /// How many of the job's last failures are its own, without another in between.
    pub in_a_row: u32,
}

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is")]
pub enum JobPhase {
    /// Nodes join.
    Gathering,
    /// The members run the round. Their list is a document of its own (`Vec<RoundMember>`): it is long, and is sent once.
    Running,
    /// The members stop.
    Stopping {
        /// Why.
        why: RoundStopCause,
        /// The end that follows; `None`: another round follows.
        end: Option<JobEnd>,
    },
    /// The job is over.
    Ended {
        /// How.
        end: JobEnd,
    },
}

/// Why a round stops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "because")]
pub enum RoundStopCause {
    /// A rank has failed.
    Failed {
        /// Which.
        failure: RankFailure,
    },
    /// A node is lost.
    Lost {
        /// Which.
        lost: LostNode,
    },
    /// More nodes have joined.
    More {
        /// Their machines.
        hosts: Vec<String>,
    },
    /// A node received a signal.
    Stopped {
        /// Its machine.
        host: String,
        /// The signal.
        signal: i32,
    },
}

/// A node that is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostNode {
    /// Its number in the round.
    pub node: usize,
    /// Its machine.
    pub host: String,
    /// Its address.
    pub address: String,
    /// Milliseconds since it was last heard from; 0 if its end was seen.
    pub age_ms: u64,
}

/// How a job has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by")]
pub enum JobEnd {
    /// All ranks of all nodes have exited successfully.
    Completed,
    /// A rank has failed.
    Failed {
        /// Which.
        failure: RankFailure,
        /// Why the job was not restarted, if it might have been.
        no_restart: Option<String>,
    },
    /// A node is lost.
    Lost {
        /// Which.
        lost: LostNode,
    },
    /// Too few nodes have joined in time.
    TooFew {
        /// Those that have.
        participants: Participants,
        /// How long they were waited for, in milliseconds.
        waited_ms: u64,
    },
    /// A node received a signal, and all others stopped with it.
    Stopped {
        /// Its machine.
        host: String,
        /// The signal.
        signal: i32,
    },
}

/// The nodes that have joined, while others are waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participants {
    /// How many are ready.
    pub ready: usize,
    /// How many are needed.
    pub min: usize,
    /// How many there may be.
    pub max: usize,
    /// The first few of them, as `host (address)`, with their numbers where users have given some.
    pub here: Vec<String>,
    /// The first few numbers that no node has, where nodes are numbered.
    pub missing: Vec<usize>,
    /// How long more are waited for, in milliseconds.
    pub left_ms: u64,
}

/// A node of a round. A members' list is in the order of the nodes' numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundMember {
    /// Its id.
    pub id: String,
    /// What it offers, as far as the others need it (`list`).
    pub info: NodeInfo,
}

impl RoundMember {
    /// The list of these nodes, with what others need to know of each. The rules are the job's. The names of all nodes, and the stores
    /// of those after the first, are for rounds with Paddle's launchers, which are shown the same entries.
    pub fn list<'a>(nodes: impl Iterator<Item = (&'a str, &'a NodeInfo)> + Clone) -> Vec<Self> {
        let has_paddle_launcher = nodes.clone().any(|(_, info)| info.is_paddle_launcher);
        let member = |(number, (id, info)): (usize, (&str, &NodeInfo))| {
            let store_counts = number == 0 || has_paddle_launcher;
            let info = NodeInfo {
                name: if has_paddle_launcher { info.name.clone() } else { String::new() },
                rank: info.rank,
                host: info.host.clone(),
                address: info.address.clone(),
                ranks: info.ranks,
                master: if store_counts { info.master.clone() } else { String::new() },
                endpoints: info.endpoints.clone(),
                servers: info.servers,
                is_paddle_launcher: info.is_paddle_launcher,
                role: info.role.clone(),
                more: info.more.clone(),
                ..NodeInfo::default()
            };
            Self { id: id.to_owned(), info }
        };
        nodes.enumerate().map(member).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::record::JobRules;

    /// With what only the coordinator needs to know of it.
    fn info(number: usize, is_paddle_launcher: bool) -> NodeInfo {
        NodeInfo {
            address_from: "an option".into(),
            device: "gpu".into(),
            rules: JobRules { max: 2, ..JobRules::default() },
            version: "1.0".into(),
            fingerprint: BTreeMap::from([("git".to_owned(), "1".to_owned())]),
            clock_ms: 9,
            ..listed(number, is_paddle_launcher)
        }
    }

    fn listed(number: usize, is_paddle_launcher: bool) -> NodeInfo {
        NodeInfo {
            name: format!("name{number}"),
            rank: Some(number),
            host: format!("host{number}"),
            address: format!("10.0.0.{number}"),
            ranks: 2,
            master: format!("10.0.0.{number}:1"),
            endpoints: vec![format!("10.0.0.{number}:2"), format!("10.0.0.{number}:3")],
            servers: 1,
            is_paddle_launcher,
            role: "trainer".into(),
            more: BTreeMap::from([("key".to_owned(), "value".to_owned())]),
            ..NodeInfo::default()
        }
    }

    #[test]
    fn a_list_has_what_the_others_need_to_know_of_each_member() {
        let list = |infos: [NodeInfo; 2]| {
            let list = RoundMember::list(["a", "b"].into_iter().zip(&infos));
            assert!(list.iter().map(|member| member.id.as_str()).eq(["a", "b"]));
            list.into_iter().map(|member| member.info).collect::<Vec<_>>()
        };
        let without_name = |number| NodeInfo { name: String::new(), ..listed(number, false) };
        let second = NodeInfo { master: String::new(), ..without_name(1) };
        assert_eq!(
            list([info(0, false), info(1, false)]),
            [without_name(0), second],
            "only the first one's store counts"
        );
        let with_paddle = [listed(0, false), listed(1, true)];
        assert_eq!(list([info(0, false), info(1, true)]), with_paddle, "the names and stores of all");
    }
}
