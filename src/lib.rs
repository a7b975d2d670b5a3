//! rlaunch starts and supervises the processes of a distributed training job.
//!
//! *Ask → plan → supervise → report.* A [`spec::LaunchSpec`] (what was asked) and
//! [`plan::HostFacts`] (what is there) give a [`plan::Plan`] (who runs, where, with which
//! environment); a [`supervise::Supervisor`], a pure machine, turns events into effects;
//! [`run::engine`] does the effects; a [`supervise::Report`] remains.
//!
//! Folders are floors. A module uses strictly lower floors only (`tests/architecture.rs` checks it);
//! floors 0 to 4 are pure: no clock, no environment, no files, no `unsafe`.
//!
//! | floor | folder | what is in it |
//! |---|---|---|
//! | 0 | [`model`] | the words: exit, environment patch, endpoint |
//! | 1 | [`dialect`] | how each framework tells a process who it is; the table of variables |
//! | 2 | [`spec`] | what was asked, checked: options, their sources, errors with a way out |
//! | 3 | [`plan`] | who runs, where, with which devices and environment |
//! | 4 | [`supervise`], [`log`] | what happens next; what is seen of it |
//! | 5 | [`sys`], [`probe`] | the operating system (the only `unsafe`); facts of the machine |
//! | 5 | [`rendezvous`] | where processes of a job meet: the server of torch's store |
//! | 6 | [`run`] | the loop that acts; logs and console; checks before the start |
//! | 7 | [`cli`] | the door for people |
//! | 8 | `python` | the door for Python: one private module, `rlaunch._lib` |

pub mod cli;
pub mod dialect;
pub mod log;
pub mod model;
pub mod plan;
pub mod probe;
#[cfg(feature = "python")]
mod python;
pub mod rendezvous;
pub mod run;
pub mod spec;
pub mod supervise;
pub mod sys;
