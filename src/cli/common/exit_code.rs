//! Exit statuses of `python -m rlaunch`. The help and `docs/reference/exit-status.md` show them.

use crate::cli::common::error::CliError;
use crate::protocol::JobEnd;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::supervise::{NodeOutcome, NodeReport};

/// Every rank exited successfully.
pub const OK: i32 = 0;
/// The command line or an overriding variable cannot be used.
pub const USAGE: i32 = 2;
/// Something that the job needs is missing: the script, the log folder, a port, open files.
pub const PREFLIGHT: i32 = 66;
/// An error of the launcher itself.
pub const INTERNAL: i32 = 70;
/// The system would not start a rank.
pub const START_FAILED: i32 = 71;
/// The process that supervises the ranks was killed.
pub const SUPERVISOR_LOST: i32 = 72;
/// The nodes of the job did not find each other.
pub const RENDEZVOUS: i32 = 73;
/// Node 0's store, or the rendezvous backend, became unreachable after ranks had run here, or the job went on without this node.
pub const STORE_LOST: i32 = 74;
/// Another node of the job was lost.
pub const NODE_LOST: i32 = 75;

/// Every failure under torchrun, except for a command line that cannot be used.
const TORCHRUN_FAILED: i32 = 1;

/// The table that `--help` shows.
pub const HELP: &str = "\
Exit status:
  0        every rank exited successfully
  N        the first rank that failed exited with N
  128+N    signal N ended the first rank that failed, or stopped the job
  2        an option, or a variable that sets one, is invalid
  66       the script or log folder cannot be used, a port is taken, or a
           limit of the system is too low
  70       an error of the launcher itself
  71       a rank could not be started: a limit of the system, or --preload
           failed
  72       the launcher's supervisor process was killed
  73       the nodes of the job did not find each other, or too few were left
  74       node 0's store, etcd or the master went away after ranks had run
           here, or the job went on without this node
  75       another node of the job was lost";

/// The exit status for an error.
pub fn of_error(error: &CliError) -> i32 {
    match error {
        CliError::CommandLine(_) | CliError::VariableNotUtf8 { .. } | CliError::Usage(_) => USAGE,
        CliError::Preflight(_) | CliError::System { .. } => PREFLIGHT,
        CliError::Rendezvous(error) if error.is_preflight() => PREFLIGHT,
        CliError::Rendezvous(_) => RENDEZVOUS,
        CliError::SupervisorNotStarted(_) => START_FAILED,
        CliError::SignalHandlers(_) | CliError::SupervisorWatch(_) | CliError::EventLoop(_) => INTERNAL,
        CliError::AsTorchrun(error) => match of_error(error) {
            USAGE => USAGE,
            _ => TORCHRUN_FAILED,
        },
    }
}

/// torchrun's exit status for a job that ended with this one.
pub fn as_torchrun(status: i32) -> i32 {
    if status == OK { OK } else { TORCHRUN_FAILED }
}

/// The exit status of a job with this outcome (`--exit-code-compat` and legacy elastic jobs map it); `report`: that of this node's ranks.
pub fn of_job(outcome: &JobOutcome, report: &NodeReport) -> i32 {
    match (outcome, &report.outcome) {
        (JobOutcome::AsReported, _) => of_node(report),
        // A rank may have failed just before.
        (JobOutcome::StoreLost, outcome) if !matches!(outcome, NodeOutcome::Stopped { .. }) => of_node(report),
        (outcome, _) => of_outcome(outcome),
    }
}

/// The exit status of a job that ended in this way while no rank ran here.
pub fn of_outcome(outcome: &JobOutcome) -> i32 {
    match outcome {
        JobOutcome::AsReported | JobOutcome::Ended(JobEnd::Completed) => OK,
        JobOutcome::Ended(JobEnd::Failed { failure, .. }) => failure.status,
        JobOutcome::Ended(JobEnd::Lost { .. }) => NODE_LOST,
        JobOutcome::Ended(JobEnd::TooFew { .. }) | JobOutcome::Refused(_) | JobOutcome::NeverReached(_) => RENDEZVOUS,
        JobOutcome::Unreachable(_) | JobOutcome::StoreLost => STORE_LOST,
        JobOutcome::Ended(JobEnd::Stopped { signal, .. }) | JobOutcome::Stopped(signal) => 128 + signal,
        JobOutcome::LauncherKilled => 128 + libc::SIGKILL,
        JobOutcome::SupervisorLost => SUPERVISOR_LOST,
    }
}

/// The exit status for the report of this node's ranks.
pub fn of_node(report: &NodeReport) -> i32 {
    match report.outcome {
        // Whether the job succeeded is decided by all nodes.
        NodeOutcome::Completed | NodeOutcome::Regrouped => OK,
        NodeOutcome::Failed { exit, .. } => exit.shell_status(),
        NodeOutcome::NotStarted { .. } => START_FAILED,
        NodeOutcome::Stopped { signal } => 128 + signal,
        NodeOutcome::LauncherKilled => 128 + libc::SIGKILL,
    }
}
