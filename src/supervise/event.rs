//! What can happen, and what is to be done about it.

use super::Report;
use crate::model::Exit;

/// A child: a late event of an old attempt can never be taken for one of a new child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChildId {
    /// Which restart it belongs to, 0 for the first run.
    pub attempt: u32,
    /// Its number on this node.
    pub local_rank: usize,
}

/// Everything that can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Begin.
    Start,
    /// The child runs its program.
    Spawned(ChildId),
    /// It could not be started, and why.
    SpawnFailed(ChildId, String),
    /// It has ended.
    Exited(ChildId, Exit),
    /// Somebody asks the job to stop, with this signal.
    Stop(i32),
    /// A signal that is only passed on.
    Notify(i32),
}

/// Everything that can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start this child and answer with `Spawned` or `SpawnFailed`.
    Spawn(ChildId),
    /// Send a signal to the child and all that belongs to it.
    Kill {
        /// Whom.
        child: ChildId,
        /// SIGTERM or SIGKILL.
        signal: i32,
    },
    /// Pass a signal on to the child alone.
    Tell {
        /// Whom.
        child: ChildId,
        /// The signal that came.
        signal: i32,
    },
    /// Say something to whoever watches.
    Note(Note),
    /// It is over: nobody is alive. Comes once, last.
    Finish(Report),
}

/// What is worth saying while the job stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A stop signal came; these local ranks are waited for.
    Stopping {
        /// The signal.
        signal: i32,
        /// Who lives.
        living: Vec<usize>,
    },
    /// A second stop signal came.
    Forced {
        /// Who lives.
        living: Vec<usize>,
    },
    /// SIGKILL goes to these.
    Killing {
        /// Who lives.
        living: Vec<usize>,
    },
}
