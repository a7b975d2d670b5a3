//! rlaunch starts and supervises the processes of a distributed training job.
//!
//! *Ask → plan → supervise → report.* A [`spec`] (what the user asked for) and a [`plan::LaunchContext`] (facts of this
//! process and machine) give a [`plan::Plan`] (which process runs where, with which environment). The
//! [`supervise::Supervisor`], a pure state machine, turns events into effects; [`run::engine`] carries them out; a
//! [`supervise::NodeReport`] remains.
//!
//! Folders are floors. A module uses strictly lower floors only (`tests/it/architecture/` checks it). Floors 0 to 4 are
//! pure: no clock, no environment, no files, no network, no threads. `docs/architecture/` explains each.
//!
//! | floor | folder | contents |
//! |---|---|---|
//! | 0 | [`model`] | exit statuses, env deltas, endpoints, roles |
//! | 1 | [`framework`] | the environment variables that each framework reads, and the table of them |
//! | 2 | [`spec`] | option tables, checked requests, their errors |
//! | 3 | [`plan`] | which process runs where, with which devices and environment |
//! | 4 | [`supervise`] | what happens next on this node |
//! | 4 | [`protocol`] | rounds of nodes: participants, the coordinator |
//! | 4 | [`report`] | log lines, failure reports, what killed a rank |
//! | 5 | [`sys`] | the operating system; the only `unsafe` |
//! | 6 | [`net`], [`probe`] | the bounded non-blocking server; facts of the machine |
//! | 7 | [`rendezvous`] | rendezvous backends, and the server of torch's store |
//! | 8 | [`run`] | the driver: event loop, ranks, logs, records |
//! | 9 | [`cli`] | the command lines |
//! | 10 | `python` | the extension module `rlaunch._lib` |

pub mod cli;
pub mod framework;
pub mod model;
pub mod net;
pub mod plan;
pub mod probe;
pub mod protocol;
#[cfg(feature = "python")]
mod python;
pub mod rendezvous;
pub mod report;
pub mod run;
pub mod spec;
pub mod supervise;
pub mod sys;
