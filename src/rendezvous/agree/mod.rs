//! Which nodes a job runs on, and when: pure, in virtual time, whoever carries the words.
//!
//! Every node keeps one *record* of itself, which vanishes with it; one of them, or the master, *coordinates*: it reads the
//! records and writes the job's *state*, which all read. Both are whole documents: a lost, late, doubled or overtaken one
//! is put right by the next.
//!
//! ```text
//!              enough are ready                 all have ended well
//!  Gathering ───────────────────► Running ──────────────────────────────► Ended
//!   ▲  │ too few came in time      │  one failed, was lost, was told      ▲ ▲
//!   │  └───────────────────────────┼─ to stop; others came ───────────────┼─┘
//!   │                              ▼                                      │
//!   └──────────────────────────  Stopping ────────────────────────────────┘
//!     all of the round have stopped: again           or not
//! ```
//!
//! A round begins only when every node of the one before has said that it has stopped, or has gone, and nobody who is here
//! says that he still runs: so no two run at once.
//!
//! # What holds
//!
//! Whatever is lost, late, doubled or overtaken on the way (`tests/agree.rs`):
//!
//! - All nodes that run a round were told the same members of it. Rounds and serials only grow.
//! - Two nodes never run two rounds at once, unless the record of one has lapsed since its round was formed: the others have
//!   gone on without it. It stops within its grace once it hears how things stand, or gives up its contact. If it is back
//!   before the next round begins, that waits for it.
//! - While somebody is here, nobody gathers longer than `join_ms`, but for the pause after a failure and for one that is back
//!   and still stops; a stop takes the longest grace, and the lease of those that are lost meanwhile. Who is too many waits for
//!   as long as the job runs, and is told its end.
//! - An end is for good, and one for all. It is blamed on who failed of himself rather than on who was stopped, on him
//!   rather than on who was lost, and last on who failed because a peer had gone; what is known when all have stopped counts.
//! - Only failures use up restarts; one that turns out to come of a loss does not.
//! - A job none of whose members is here begins anew with those that are, without what was used up.
//!
//! # What it takes
//!
//! - One coordinator at a time, or a fence: a state is published only by who leads, and only after that which it knows
//!   (`State::serial`).
//! - Of each node the coordinator is told the records in their order; some may be left out, but not the last.
//! - A node may be told states in any order (`Seat::hear`), but the last one always, and with it the members of its round if
//!   it has not heard them. Who has lost contact reads the newest state before it says again where it stands.
//! - A node leaves its record there until it has been told an end, is refused, or loses patience.

mod admission;
mod cause;
mod clocks;
pub mod coordinator;
pub mod node;
pub mod order;
pub mod record;
pub mod state;
mod words;

pub use coordinator::Coordinator;
pub use node::{Seat, Step, step};
pub use record::{Failure, Offer, OnFailure, OnLoss, Order, Record, Rules, Standing, Stops, millis};
pub use state::{End, Member, Phase, Roll, State, Why};
pub use words::as_paddle_says_it;
