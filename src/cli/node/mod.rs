//! Runs this node's part of a job: launcher process, supervisor process, records, reports.

pub mod build_failure_report;
mod explain_failure;
pub mod frontend;
pub mod job_record;
pub mod preload;
pub mod progress_messages;
mod requeue;
pub mod restart_policy;
pub mod run_node;
pub mod slurm;
