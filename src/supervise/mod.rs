//! Supervisor of the ranks of one node: a pure state machine that decides what happens next.
//! Events go in, effects come out, time is an argument. It reads no clock, starts no process and sends no
//! signal: `run::engine` carries out the effects.
//!
//! ```text
//!            Start            the work is done, no server is alive
//!  Pending ────────► Running ───────────────────────────────────► Finished
//!                    ▲  │ a rank failed, a start failed,           ▲  ▲
//!                    │  │ a stop signal; the work is               │  │
//!                    │  │ done and servers are alive               │  │
//!                    │  ▼            grace over, 2nd signal        │  │
//!                    │ Stopping ─────────────────► Killing         │  │
//!                    │  │ last rank ended             │ the same,   │  │
//!                    │  │                             │ or abandoned│  │
//!                    │  ▼                             ▼             │  │
//!                    │  is a restart due? ──────────────── no ──────┘  │
//!                    │  │ yes                                          │
//!     delay over     │  ▼            a stop signal                     │
//!                    └─ Backoff ───────────────────────────────────────┘
//! ```
//!
//! The work is done when all children but the servers (`Lifecycle`) have exited successfully. The event
//! `LauncherKilled` leads to Killing from every phase, except from Stopping by a signal, whose grace period goes on. Suspension is not
//! a phase: it pauses the timer of the current phase.

mod child;
mod event;
mod hang;
mod lifecycle;
mod policy;
mod report;
mod restart;
mod round;
mod stop;
mod supervisor;
mod timer;

pub use event::{AbortReason, ChildId, Effect, MainProcess, ProgressNote, RankStop, Recipients, SupervisorEvent};
pub use hang::{HangAction, HangEvent, HangLook, HangWatch};
pub use lifecycle::Lifecycle;
pub use policy::SupervisionPolicy;
pub use report::{AttemptReport, FailedRank, NodeOutcome, NodeReport, RankReport};
pub use restart::{NoRestart, RestartBackoff, RestartCounter, RestartPolicy};
pub use round::{RoundAction, RoundEvent, RoundPhase};
pub use stop::{KILL_PATIENCE, StopReason, last_call};
pub use supervisor::Supervisor;
