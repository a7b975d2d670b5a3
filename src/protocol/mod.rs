//! The protocol of rounds: which nodes a job runs on, and when. Pure, in virtual time, for any rendezvous backend.
//!
//! Every node keeps one *record*, which vanishes with the node. One of the nodes, or the master, *coordinates*: it reads the records
//! and writes the job's *state*, which all nodes read. Both are whole documents, so the next one makes up for a document that is
//! lost, late, doubled or overtaken.
//!
//! ```text
//!              enough are ready             all have exited successfully
//!  Gathering ───────────────────► Running ──────────────────────────────► Ended
//!   ▲  │ too few joined in time    │  one failed, was lost or received    ▲ ▲
//!   │  └───────────────────────────┼─ a signal; others joined ────────────┼─┘
//!   │                              ▼                                      │
//!   └──────────────────────────  Stopping ────────────────────────────────┘
//!     all members have stopped: again            or not
//! ```
//!
//! A round begins only when every member of the round before has reported that it has stopped, or is gone, and no node that is here
//! reports that its ranks still run. So no two rounds run at once.
//!
//! # Guarantees
//!
//! Whichever documents are lost, late, doubled or overtaken (`tests/it/protocol`):
//!
//! - All nodes that run a round have received the same members' list. Rounds and serials only grow.
//! - Two nodes never run two rounds at once, also not those of another job of the same name. A node without contact kills its ranks
//!   before its record expires (`LeaseTerms`); where the job ends with a lost node (`OnNodeLoss::End`), at most `loss_ms` later, and
//!   for so long no round begins.
//! - While a node is here, gathering takes `join_ms` at most, plus the pause after a failure, plus the time for which
//!   ranks of lost nodes may run, plus the time for which a node that
//!   has come back stops its ranks. A stop takes the longest grace period, plus the lease of nodes that are lost meanwhile. A node
//!   beyond the maximum waits as long as the job runs, and receives its end.
//! - The end is final, and the same for all nodes. Its cause is a rank that failed by itself, before one that was stopped, before a
//!   lost node, before a rank that failed because a peer had gone. What is known when all have stopped counts.
//! - Only failures use up restarts; a failure that turns out to follow from a loss does not.
//! - A job none of whose members is left begins anew with the nodes that are here, with all restarts.
//!
//! # Requirements
//!
//! - There is one coordinator at a time, or a fence: only the leader publishes a state, and only as the successor of the last one
//!   that it knows (`JobState::serial`). A state that begins a round, or gives up the members of the last one, is published only if
//!   the leader knows of all nodes whose records are there: a node whose record had expired may be back, and may have read the
//!   state before.
//! - The coordinator receives the records of each node in order. Some may be left out, but not the last.
//! - A node may receive states in any order (`NodeState::note_state`), but always the last one, and with it the members of its round
//!   if it does not have them. A node that has lost contact reads the newest state before it reports its status again.
//! - `join_ms` is longer than a state takes to a node and the node's record to the coordinator. Otherwise each round may begin without
//!   the nodes of the one before, whose records then stop it, for as long as ranks end while another node joins. No two rounds run
//!   at once then either.
//! - A node keeps its record until it has received an end, is refused, or its patience is over.

pub mod admission;
mod clocks;
pub mod codec;
pub mod coordinator;
pub mod coordinator_logic;
mod lease;
pub mod member_list;
pub mod node;
pub mod order;
pub mod record;
pub mod state;
pub mod stop_step;

pub use crate::protocol::codec::{paddle_entry, read_paddle_payload};
pub use crate::protocol::coordinator::Coordinator;
pub use crate::protocol::coordinator_logic::{CoordinatorLogic, Departure, Publication};
pub use crate::protocol::lease::LeaseTerms;
pub use crate::protocol::node::{NodeState, NodeStep, next_step};
pub use crate::protocol::record::{
    FailureDetails, JobRules, NodeInfo, NodeOrder, NodeRecord, NodeStatus, NodeStop, OnFailure, OnNodeLoss,
    RankFailure, RankHang, millis,
};
pub use crate::protocol::state::{JobEnd, JobPhase, JobState, Participants, RoundMember, RoundStopCause};
