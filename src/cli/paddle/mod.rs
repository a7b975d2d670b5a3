//! `python -m rlaunch`: the drop-in for `python -m paddle.distributed.launch`.

pub mod build_plan;
pub mod built_plan;
pub mod final_report;
pub mod frontend;
pub mod parse;
pub mod peer_command;
pub mod rendezvous;
pub mod shown_logs;
