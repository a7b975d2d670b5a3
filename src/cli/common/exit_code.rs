//! Exit statuses of a job's launchers. The help and `docs/reference/exit-status.md` show them.

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
pub use crate::model::exit::START_FAILED;
/// The process that supervises the ranks was killed.
pub const SUPERVISOR_LOST: i32 = 72;
/// The nodes of the job did not find each other, or this one was refused; no rank has run here.
pub const RENDEZVOUS: i32 = 73;
/// Node 0's store, or the rendezvous backend, became unreachable after ranks had run here, or the job went on without this node.
pub const STORE_LOST: i32 = 74;
/// Another node of the job was lost, or too few nodes were left after ranks had run here.
pub const NODE_LOST: i32 = 75;
/// The job failed on another node.
pub const FAILED_ELSEWHERE: i32 = 76;
/// The job was stopped on another node.
pub const STOPPED_ELSEWHERE: i32 = 77;

/// All ranks exited successfully because `rlaunch.should_stop` asked them to: the job is to go on later.
pub const PREEMPTED: i32 = 78;

/// Every failure under torchrun, except for a command line that cannot be used.
const TORCHRUN_FAILED: i32 = 1;

/// The table that `--help` shows.
pub const HELP: &str = "\
Exit status:
  0        every rank exited successfully
  N        the first rank that failed, on this node, exited with N
  128+N    signal N ended that rank, or stopped this launcher
  2        an option, or a variable that sets one, is invalid
  66       before the start: the script or log folder cannot be used, a port is
           taken, or a limit of the system is too low
  70       an error of the launcher itself
  71       the system refused to start a rank (processes, memory, open files),
           or --preload failed
  72       the launcher's supervisor process was killed, or did not stop in time
  73       before a rank ran here: the nodes of the job did not find each
           other, or this one was refused
  74       after ranks ran here: node 0's store, etcd or the master went away,
           or the job went on without this node
  75       another node of the job was lost, or too few were left
  76       the job failed on another node, whose launcher has the status of the
           failure; under srun and mpirun this launcher has it too
  77       the job was stopped on another node
  78       the job was preempted: all ranks stopped at one step, by
           rlaunch.should_stop, and exited successfully";

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

/// What this node had to do with the end of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePart {
    /// No rank has run here.
    None,
    /// Its ranks were stopped, or had exited successfully.
    Ran,
    /// The job failed by one of its ranks, or by its launcher.
    Culprit,
}

/// The exit status of a job with this outcome (`--exit-code-compat` and legacy elastic jobs map it); `report`: that of this node's
/// ranks. `has_one_status`: as for `of_outcome`.
pub fn of_job(outcome: &JobOutcome, report: &NodeReport, has_one_status: bool) -> i32 {
    match (outcome, &report.outcome) {
        (JobOutcome::AsReported, _) => of_node(report),
        // A rank may have failed just before.
        (JobOutcome::StoreLost, outcome) if !matches!(outcome, NodeOutcome::Stopped { .. }) => of_node(report),
        (outcome, _) => of_outcome(outcome, NodePart::Ran, has_one_status),
    }
}

/// The exit status of a job that ended in this way while no rank ran here any more. `has_one_status`: one command has started the
/// launchers of all nodes, and exits with one of their statuses (srun: the highest; mpirun: the first but 0). Then all have that of
/// the job, for that command's caller.
pub fn of_outcome(outcome: &JobOutcome, part: NodePart, has_one_status: bool) -> i32 {
    let is_elsewhere = part != NodePart::Culprit && !has_one_status;
    match outcome {
        JobOutcome::AsReported | JobOutcome::Ended(JobEnd::Completed) => OK,
        JobOutcome::Preempted(_) => PREEMPTED,
        JobOutcome::Ended(JobEnd::Failed { .. }) if is_elsewhere => FAILED_ELSEWHERE,
        // A record may come from anywhere.
        JobOutcome::Ended(JobEnd::Failed { failure, .. }) => failure.status.clamp(1, 255),
        JobOutcome::Ended(JobEnd::Lost { .. }) => NODE_LOST,
        JobOutcome::Ended(JobEnd::TooFew { .. }) if part != NodePart::None => NODE_LOST,
        JobOutcome::Ended(JobEnd::TooFew { .. }) | JobOutcome::Refused(_) | JobOutcome::NeverReached(_) => RENDEZVOUS,
        JobOutcome::Unreachable(_) | JobOutcome::StoreLost => STORE_LOST,
        JobOutcome::Ended(JobEnd::Stopped { .. }) if is_elsewhere => STOPPED_ELSEWHERE,
        JobOutcome::Ended(JobEnd::Stopped { signal, .. }) | JobOutcome::Stopped(signal) => 128 + signal.clamp(&1, &64),
        JobOutcome::LauncherKilled => 128 + libc::SIGKILL,
        JobOutcome::SupervisorLost => SUPERVISOR_LOST,
    }
}

/// The exit status for the report of this node's ranks.
pub fn of_node(report: &NodeReport) -> i32 {
    match report.outcome {
        // Whether the job succeeded is decided by all nodes.
        NodeOutcome::Completed | NodeOutcome::Regrouped => OK,
        NodeOutcome::Failed(failed) => failed.decisive.shell_status(),
        NodeOutcome::NotStarted { .. } => START_FAILED,
        NodeOutcome::Stopped { signal } => 128 + signal,
        NodeOutcome::LauncherKilled => 128 + libc::SIGKILL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Participants, RankFailure};

    #[test]
    fn a_failure_has_its_status_on_its_own_node_alone_unless_one_command_has_started_all() {
        let failure = RankFailure { status: 7, ..RankFailure::default() };
        let failed = JobOutcome::Ended(JobEnd::Failed { failure, no_restart: None });
        let stopped = JobOutcome::Ended(JobEnd::Stopped { host: "b".into(), signal: 15 });
        let too_few = JobOutcome::Ended(JobEnd::TooFew { participants: Participants::default(), waited_ms: 1 });
        for (outcome, part, has_one_status, status) in [
            (&failed, NodePart::Culprit, false, 7),
            (&failed, NodePart::Ran, false, FAILED_ELSEWHERE),
            (&failed, NodePart::None, false, FAILED_ELSEWHERE),
            (&failed, NodePart::Ran, true, 7),
            (&stopped, NodePart::Ran, false, STOPPED_ELSEWHERE),
            (&stopped, NodePart::Ran, true, 143),
            (&JobOutcome::Stopped(15), NodePart::Ran, false, 143),
            (&too_few, NodePart::None, false, RENDEZVOUS),
            (&too_few, NodePart::Ran, false, NODE_LOST),
            (&too_few, NodePart::Ran, true, NODE_LOST),
        ] {
            assert_eq!(of_outcome(outcome, part, has_one_status), status, "{outcome:?}, {part:?}, {has_one_status}");
        }
    }
}
