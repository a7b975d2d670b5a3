//! What can happen, and what is to be done about it.

use super::{NoRestart, Report};
use crate::model::Exit;
use std::time::Duration;

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
    /// These have ended, as far as can be told at the same time: of those that failed the first is the
    /// one to blame.
    Exited(Vec<(ChildId, Exit)>),
    /// Somebody asks the job to stop, with this signal.
    Stop(i32),
    /// The nodes of the job have changed, or one of the others has failed: what runs here has to stop. Whether and with
    /// whom it goes on is decided elsewhere.
    Regroup,
    /// The same, and there is no time left: whoever still runs is killed.
    RegroupNow,
    /// A signal that is only passed on.
    Notify(i32),
    /// The user has put the job to sleep (Ctrl-Z). A second time changes nothing.
    Suspend,
    /// The user has woken it (`fg`, `bg`). A second time changes nothing.
    Resume,
    /// The process that stands in front of this one for the user was killed.
    HostLost,
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
    /// Stop the child and all that belongs to it, until `Thaw`.
    Freeze(ChildId),
    /// Let it go on.
    Thaw(ChildId),
    /// The child does not end: forget it. Whatever is heard of it later changes nothing.
    Abandon(ChildId),
    /// End everything that is left of the job, before the next effect: the first `Spawn` of a restart.
    Sweep,
    /// Say something to whoever watches.
    Note(Note),
    /// It is over: nobody is alive who was not abandoned. Comes once, last.
    Finish(Report),
}

/// What is worth saying while the job stops, or starts again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// All that is waited for has ended well; these servers are asked to stop.
    Finishing {
        /// Who lives.
        living: Vec<usize>,
    },
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
    /// These are still there long after SIGKILL, and are left behind.
    Unkillable {
        /// Who.
        living: Vec<usize>,
    },
    /// The attempt has failed and is over; another follows.
    Restarting {
        /// The number of the attempt that follows, 1 for the first restart.
        attempt: u32,
        /// How many restarts there may be (within the window, if there is one).
        of: u32,
        /// The local rank that failed first.
        culprit: usize,
        /// How that ended.
        exit: Exit,
        /// How long until then.
        delay: Duration,
    },
    /// Restarts were asked for, but none follows this failure.
    NotRestarting {
        /// Why.
        why: NoRestart,
    },
}
