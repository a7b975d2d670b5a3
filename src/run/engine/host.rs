//! What the engine acts on: starts, signals and reaps of children.

use crate::model::Exit;
use crate::supervise::{ChildId, FailedRank, MainProcess, ProgressNote};
use crate::sys::process::child::Child;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why a host could not start a child.
pub type StartError = Box<dyn std::error::Error + Send + Sync>;

/// How far the start of a child is.
pub enum RankStart {
    /// The child runs.
    Started(Arc<Child>),
    /// Another process starts it and has not replied yet.
    Pending,
}

/// How far the stop of an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptState {
    /// It does not stop.
    Running,
    /// Its ranks were asked to stop.
    Stopping,
    /// The grace period is over: its ranks were sent SIGKILL.
    Killing,
}

/// What the engine acts on.
pub trait RankHost {
    /// Starts a child. Never waits for another process.
    fn start(&mut self, id: ChildId) -> Result<RankStart, StartError>;
    /// Continues a pending start: called once a turn. While the child's attempt stops, the start has to succeed soon or fail, and
    /// once its ranks are killed, at once. A start that fails then counts as cancelled.
    fn continue_start(&mut self, _id: ChildId, _attempt: AttemptState) -> Result<RankStart, StartError> {
        Ok(RankStart::Pending)
    }
    /// When a pending start is to be continued (`clock::now`), if no event comes before.
    fn start_due(&self) -> Option<Duration> {
        None
    }
    /// Whether other members of a child's process group are alive after the child was asked to stop and has ended. They
    /// get more time: a shell dies of a signal at once, the program that it ran saves its work.
    fn group_lingers(&self, _pid: i32) -> bool {
        false
    }
    /// Whether one of them may end by this signal: none gets more time if all ignore it.
    fn group_heeds(&self, _pid: i32, _signal: i32) -> bool {
        true
    }
    /// Until when the next attempt has to wait at most, although its delay is over (`clock::now`); `None`: it has not.
    fn delays_restart(&self) -> Option<Duration> {
        None
    }
    /// These children's process groups are about to be ended by a signal.
    fn before_kill(&mut self, _pids: &[i32]) {}
    /// Sends a stop signal to a child alone if the child leads a group and handles the signal, and says so. Otherwise to its group.
    fn ask_to_stop(&mut self, child: &Child, signal: i32) -> Option<MainProcess> {
        // A rank that may not be signalled (it changed its user) ends by itself, or is abandoned after the grace period.
        let _ = self.signal(child, signal);
        None
    }
    /// Sends a signal to a child, or to its process group if it leads one.
    fn signal(&mut self, child: &Child, signal: i32) -> io::Result<()> {
        child.signal(signal)
    }
    /// Sends a signal to the members of a child's process group but the child.
    fn signal_rest(&mut self, _child: &Child, _signal: i32) -> io::Result<()> {
        Ok(())
    }
    /// A child that leads a session has ended and is about to be reaped.
    fn before_reap(&mut self, _end: &PendingExit<'_>) {}
    /// A child has been reaped. `signalled`: it had been sent a signal to end.
    fn reaped(&mut self, _id: ChildId, _child: &Child, _exit: Exit, _signalled: bool) {}
    /// Whether the output of a failed child says that it lost a peer.
    fn has_lost_peer(&mut self, _id: ChildId) -> bool {
        false
    }
    /// A child has failed; the others are about to be asked to stop.
    fn before_stop(&mut self) {}
    /// All children of an attempt have ended that this child's failure ended, as far as the order of the ends says. Returns the one that
    /// is to blame.
    fn judge(&mut self, (local_rank, exit): (usize, Exit)) -> FailedRank {
        FailedRank::ended_first(local_rank, exit)
    }
    /// Ends all remaining processes of the job, before a new attempt.
    fn sweep_job(&mut self) {}
    /// Reports the progress of a stop or a restart.
    fn report_progress(&mut self, note: ProgressNote);
}

/// A child that has ended and has not been reaped.
pub struct PendingExit<'a> {
    /// The child.
    pub id: ChildId,
    /// Its process id: still the number of its session and of its process group.
    pub pid: i32,
    /// Whether SIGKILL was sent to its process group.
    pub killed: bool,
    /// The process ids of all children that have not been reaped.
    pub unreaped: &'a BTreeSet<i32>,
}
