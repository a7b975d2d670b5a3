//! State of one supervised child.

use super::event::MainProcess;
use super::lifecycle::Lifecycle;
use super::report::RankReport;
use super::timer::Timer;
use crate::model::Exit;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct SupervisedChild {
    pub lifecycle: Lifecycle,
    pub state: ChildState,
    /// The supervisor has signalled it: its exit status is then no failure of its own.
    pub signalled: bool,
    pub killed: bool,
    pub group: GroupState,
    pub started: Duration,
}

/// How far the stop of a child's process group is.
#[derive(Clone, Copy, Debug)]
pub(super) enum GroupState {
    /// Nothing is held back from it.
    Reached,
    /// The main process alone has the stop signal.
    HeldBack(MainProcess),
    /// The main process has ended, and the others have the signal, and this time.
    Leftover(Timer),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ChildState {
    Waiting,
    Starting,
    Alive,
    Ended { exit: Exit, lived: Duration },
    Abandoned,
    NotStarted(String),
}

/// A rank that was sent SIGABRT and is alive. A stop of the attempt forgets it.
#[derive(Debug)]
pub(super) struct AbortedRank {
    pub local_rank: usize,
    pub was_killed: bool,
    /// The grace period until SIGKILL, and then `KILL_PATIENCE`.
    pub timer: Timer,
}

impl SupervisedChild {
    pub fn new(lifecycle: Lifecycle) -> Self {
        let (state, group) = (ChildState::Waiting, GroupState::Reached);
        Self { lifecycle, state, signalled: false, killed: false, group, started: Duration::ZERO }
    }

    /// When its leftovers are killed, if its main process has ended.
    pub fn leftover_due(&self) -> Option<Duration> {
        match (&self.state, self.group) {
            (ChildState::Alive, GroupState::Leftover(timer)) => timer.due(),
            _ => None,
        }
    }

    pub fn exited_successfully(&self) -> bool {
        matches!(self.state, ChildState::Ended { exit, .. } if exit.is_success())
    }

    pub fn report(&self) -> RankReport {
        let (exit, lived) = match self.state {
            ChildState::Ended { exit, lived } => (Some(exit), Some(lived)),
            _ => (None, None),
        };
        let abandoned = self.state == ChildState::Abandoned;
        RankReport {
            exit,
            start_error: if let ChildState::NotStarted(why) = &self.state { Some(why.clone()) } else { None },
            signalled: self.signalled,
            killed: self.killed,
            abandoned,
            started_at: (exit.is_some() || abandoned).then_some(self.started),
            lived,
        }
    }
}
