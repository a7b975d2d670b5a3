//! State of one supervised child.

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
    pub started: Duration,
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
        Self { lifecycle, state: ChildState::Waiting, signalled: false, killed: false, started: Duration::ZERO }
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
