//! Exit statuses of `python -m rlaunch`. Documented in its help and in the README.

use crate::run::launch::Launched;
use crate::run::together::Parting;
use crate::supervise::{Outcome, Report};

/// Every rank ended well.
pub const OK: i32 = 0;
/// The command line or an overriding variable cannot be used.
pub const USAGE: i32 = 2;
/// Something that the job needs is not there: the script, the log folder, a port, open files.
pub const PREFLIGHT: i32 = 66;
/// The launcher itself is at fault.
pub const INTERNAL: i32 = 70;
/// The system would not start a rank.
pub const START_FAILED: i32 = 71;

/// The process that supervises the ranks was killed.
pub const SUPERVISOR_LOST: i32 = 72;

/// The nodes of the job did not find each other.
pub const RENDEZVOUS: i32 = 73;

/// Node 0's store, or whoever coordinates the nodes, went out of reach while ranks ran here.
pub const STORE_LOST: i32 = 74;

/// Another node of the job was lost.
pub const NODE_LOST: i32 = 75;

/// The table that `--help` shows.
pub const HELP: &str = "\
Exit status:
  0        every rank ended well
  N        the first rank that failed exited with N
  128+N    signal N ended the first rank that failed, or stopped the job
  2        the command line or an overriding variable cannot be used
  66       the script, the log folder, a port or a limit is not as the job needs it
  70       an error of the launcher itself
  71       the system would not start a rank
  72       something killed the launcher's supervisor process
  73       the nodes of the job did not find each other
  74       node 0's store, etcd or the master went away while ranks ran here
  75       another node of the job was lost";

/// The exit status of a job that has run.
pub fn after(launched: &Launched) -> i32 {
    match (&launched.parting, &launched.report.outcome) {
        (Parting::StoreGone, Outcome::Stopped { .. }) => STORE_LOST,
        (Parting::Stopped(signal), _) => 128 + signal,
        (Parting::FrontLost, _) => 128 + libc::SIGKILL,
        _ => of(&launched.report),
    }
}

/// The exit status for a report.
pub fn of(report: &Report) -> i32 {
    match report.outcome {
        // Its end is the job's, which is not known here.
        Outcome::Completed | Outcome::Regrouped => OK,
        Outcome::Failed { exit, .. } => exit.shell_status(),
        Outcome::NotStarted { .. } => START_FAILED,
        Outcome::Stopped { signal } => 128 + signal,
        Outcome::HostLost => 128 + libc::SIGKILL,
    }
}
