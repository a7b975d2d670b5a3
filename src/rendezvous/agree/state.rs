//! What all nodes are told: one document, which the coordinator alone writes.

use super::record::{Failure, Offer};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// `record::FORMAT`.
    pub format: u32,
    /// Grows with every change: an older state never replaces a newer one.
    pub serial: u64,
    /// The round that was formed last; 0: none yet.
    pub round: u64,
    /// How many times the job was started again because a rank had failed (`OnFailure::Restart`).
    pub failures: u32,
    /// Where it stands.
    pub phase: Phase,
    /// Whose failure this is goes, and the others wait for another in its place (`OnFailure::Hold`).
    #[serde(default)]
    pub goes: Option<Failure>,
    /// Ids of nodes that had no part in any round when the job ended, and are to be told all the same.
    #[serde(default)]
    pub waited: BTreeSet<String>,
    /// Ids of nodes that cannot take part, and why; the first few.
    pub refused: BTreeMap<String, String>,
    /// What people should know of the round, which changes nothing.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Who is waited for.
    pub roll: Option<Roll>,
}

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is")]
pub enum Phase {
    /// Nodes come.
    Gathering,
    /// They run the round. Who they are is a document of its own (`Vec<Member>`): it is long, and told once.
    Running,
    /// They are to stop.
    Stopping {
        /// Why.
        why: Why,
        /// What follows: the end, or another round.
        end: Option<End>,
    },
    /// It is over.
    Ended {
        /// How.
        end: End,
    },
}

/// Why a round stops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "because")]
pub enum Why {
    /// A rank has failed.
    Failed {
        /// Which.
        failure: Failure,
    },
    /// A node has gone.
    Lost {
        /// Which.
        lost: Lost,
    },
    /// Nodes have come that are to take part.
    More {
        /// Their machines.
        hosts: Vec<String>,
    },
    /// Somebody has stopped a node.
    Stopped {
        /// Its machine.
        host: String,
        /// By this signal.
        signal: i32,
    },
}

/// A node that has gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Its number in the round.
    pub node: usize,
    /// Its machine.
    pub host: String,
    /// Its address.
    pub address: String,
    /// How long ago it was last heard of, in milliseconds; 0 if it was seen to go.
    pub age_ms: u64,
}

/// How a job has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by")]
pub enum End {
    /// All ranks of all nodes have ended well.
    Completed,
    /// A rank has failed.
    Failed {
        /// Which.
        failure: Failure,
        /// Why it was not started again, if it might have been.
        no_restart: Option<String>,
    },
    /// A node has gone.
    Lost {
        /// Which.
        lost: Lost,
    },
    /// Too few nodes have come in time.
    TooFew {
        /// Who had.
        roll: Roll,
        /// How long they were waited for, in milliseconds.
        waited_ms: u64,
    },
    /// Somebody has stopped a node, and all others stopped with it.
    Stopped {
        /// Its machine.
        host: String,
        /// By this signal.
        signal: i32,
    },
}

/// Who is here while nodes are waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roll {
    /// How many are ready.
    pub ready: usize,
    /// How many are needed.
    pub min: usize,
    /// How many there may be.
    pub max: usize,
    /// The first few of them, as `host (address)`, with their number where they have been given one.
    pub here: Vec<String>,
    /// Numbers that were given to nobody, where nodes are numbered; the first few.
    pub missing: Vec<usize>,
    /// How long they are still waited for, in milliseconds.
    pub left_ms: u64,
}

/// A node of a round, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its id.
    pub id: String,
    /// What it brings; its rules are the job's, and left out.
    pub offer: Offer,
}
