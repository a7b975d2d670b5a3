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
//! A round begins only when every node of the one before has said that it has stopped, or has gone: so no two run at once.

mod admission;
pub mod coordinator;
pub mod node;
pub mod order;
pub mod record;
pub mod state;
mod words;

pub use coordinator::Coordinator;
pub use node::{Seat, Step, step};
pub use record::{Failure, Offer, OnFailure, OnLoss, Order, Record, Rules, Standing};
pub use state::{End, Member, Phase, Roll, State, Why};
pub use words::as_paddle_says_it;
