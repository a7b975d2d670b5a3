//! What a node says of itself: one document, which it alone writes.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The version of records and states. Nodes of another are refused.
pub const FORMAT: u32 = 1;

/// Whole milliseconds, as documents have times.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A node's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// `FORMAT`.
    pub format: u32,
    /// What it would bring.
    pub offer: Offer,
    /// Where it stands.
    pub standing: Standing,
}

/// What a node would bring to a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offer {
    /// Its launcher's name, by which nodes without numbers are ordered.
    pub name: String,
    /// The number that the user gives it.
    pub rank: Option<usize>,
    /// What its machine calls itself, for people alone.
    pub host: String,
    /// The address that others reach it by.
    pub address: String,
    /// How that was found, for people.
    pub address_from: String,
    /// How many ranks it has.
    pub ranks: usize,
    /// What kind of device they have: `cpu`, `gpu` and so on.
    pub device: String,
    /// Where rank 0's store would listen, if this were the first node.
    pub master: String,
    /// Where its ranks listen, one each, if they do.
    pub endpoints: Vec<String>,
    /// What it takes the rules of the job to be.
    #[serde(skip_serializing_if = "Rules::are_left_out")]
    pub rules: Rules,
    /// The version of its launcher.
    pub version: String,
    /// What its clock said when it wrote this, in milliseconds since 1970.
    pub clock_ms: u64,
    /// Whether it is a launcher that only says this: Paddle's own. It is never told to stop.
    pub foreign: bool,
    /// What torch's agents call its ranks.
    pub role: String,
    /// What else the doors want to know of each other.
    pub more: BTreeMap<String, String>,
}

/// In which order nodes that nobody numbers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// By name; the one that serves the master is first (Paddle's `aaaaaa`).
    #[default]
    Name,
    /// By address.
    Address,
}

/// What follows when a rank has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFailure {
    /// All stop, and the job ends.
    #[default]
    End,
    /// All stop, the node whose rank it was goes, the others wait for another in its place.
    Hold,
    /// All stop and start again, while there are restarts left.
    Restart,
}

/// What follows when a node is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnLoss {
    /// All stop, and the job ends.
    #[default]
    End,
    /// All stop, and go on with who is left, or who comes.
    Regroup,
}

/// What has to be the same on all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// Whose words the ranks are told: `paddle`, `torch`.
    pub door: String,
    /// The least nodes.
    pub min: usize,
    /// The most.
    pub max: usize,
    /// How long more are waited for once there are enough, in milliseconds since the last one came or went.
    pub last_call_ms: u64,
    /// With as many nodes as this, or later as many as in the last round, no more are waited for; `None`: with the most
    /// alone. Who came first says it for all.
    pub at_once: Option<usize>,
    /// How long a round may take to come together, in milliseconds.
    pub join_ms: u64,
    /// After what silence a node is taken for lost, in milliseconds; 0: nobody says.
    pub lease_ms: u64,
    /// After a failure.
    pub on_failure: OnFailure,
    /// After a loss.
    pub on_loss: OnLoss,
    /// The exit status of a rank that is no failure, but the wish that all be started again, which uses nothing up.
    pub again: Option<i32>,
    /// How many times a failed job is started again.
    pub restarts: u32,
    /// The order of the nodes.
    pub order: Order,
}

impl Rules {
    /// Whether a rank that ends so asks that all be started again.
    pub fn are_asked_again(&self, exit_status: i32) -> bool {
        self.again == Some(exit_status)
    }

    /// Whether there are none, as in lists of members.
    fn are_left_out(&self) -> bool {
        *self == Self::default()
    }
}

/// Where a node stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is")]
pub enum Standing {
    /// It runs nothing, has nothing left to do in any round up to this one, and would take part in the next.
    Ready {
        /// 0: in none.
        seen: u64,
    },
    /// Its ranks run.
    Runs {
        /// In this round.
        round: u64,
    },
    /// They are being stopped, and that began here; what they become is said once all have ended.
    Stops {
        /// In this round.
        round: u64,
        /// Why.
        why: Stops,
    },
    /// They have ended well.
    Done {
        /// In this round.
        round: u64,
    },
    /// One has failed, and all of them have ended.
    Failed {
        /// In this round.
        round: u64,
        /// Which, and how.
        failure: Failure,
    },
    /// It goes, because somebody stopped it. Said at once, though its ranks may still be stopping: no other round follows
    /// that which they run.
    Leaves {
        /// With this signal.
        signal: i32,
    },
}

/// Why a node stops its ranks of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for")]
pub enum Stops {
    /// One has failed.
    Failure {
        /// Which, as far as it is known.
        failure: Failure,
    },
    /// Somebody has stopped the node.
    Signal {
        /// With this signal.
        signal: i32,
    },
}

impl Standing {
    /// The last round that it has heard of and in which none of its ranks runs any more; `None` while some do.
    pub fn stopped_in(&self) -> Option<u64> {
        match self {
            Standing::Ready { seen } => Some(*seen),
            Standing::Done { round } | Standing::Failed { round, .. } => Some(*round),
            Standing::Leaves { .. } => Some(u64::MAX),
            Standing::Runs { .. } | Standing::Stops { .. } => None,
        }
    }
}

/// A rank's failure, as all nodes tell it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// Its node's machine.
    pub host: String,
    /// Its node's number in the round.
    pub node: usize,
    /// What people call it: `rank 3`.
    pub who: String,
    /// How it ended: `exit code 3`, `SIGKILL`.
    pub how: String,
    /// Its own last words, one line; empty if there are none.
    pub words: String,
    /// The exit status that comes of it.
    pub status: i32,
    /// Whether it says that it failed because another rank had gone: then it is not the first.
    pub lost_peer: bool,
    /// Whether it is none, but the wish that all be started again, which uses nothing up.
    pub again: bool,
    /// Why the job is not to be started again, if its node's rules say so.
    pub no_restart: Option<String>,
    /// How long to wait before it is, in milliseconds.
    pub delay_ms: u64,
}
