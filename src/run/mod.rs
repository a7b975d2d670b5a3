//! Floor 6: the loop that acts on what the supervisor says, and what it acts with.

pub mod console;
pub mod contact;
pub mod engine;
pub mod front;
pub mod gpu_log;
pub mod journal;
pub mod launch;
pub mod legacy;
pub mod logs;
pub mod membership;
pub mod output;
pub mod pre_hook;
pub mod preflight;
pub mod request;
pub mod result;
pub mod rotate;
pub mod run_folder;
pub mod screens;
pub mod start;
pub mod store;
pub mod sweep;
pub mod temporary;
pub mod together;
pub mod zygote;

/// Variables that the launcher is told and nothing that it starts is to know.
pub const SECRETS: [&str; 2] = ["RLAUNCH_JOB_KEY", "RLAUNCH_ETCD_USER"];
