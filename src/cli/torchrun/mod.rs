//! `python -m rlaunch.run`: the drop-in for `torchrun`.

pub mod events;
pub mod extra_frameworks;
pub mod frontend;
pub mod parse;
pub mod rendezvous;
pub mod report;
pub mod run;
mod said_today;
pub mod static_rendezvous;
