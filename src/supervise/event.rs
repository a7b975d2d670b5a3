//! Events that the supervisor receives and effects that it returns.

use super::report::{FailedRank, NodeReport};
use super::restart::NoRestart;
use crate::model::Exit;
use std::time::Duration;

/// How the ranks of this node stop when a round is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankStop {
    /// The other nodes wait for them: they get the grace period.
    WithGrace,
    /// The other nodes may continue without this one: they are killed.
    AtOnce,
}

/// Identifies a child. The attempt keeps a late event of an earlier attempt from being applied to a new child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChildId {
    /// Number of the attempt: 0 for the first run, 1 for the first restart.
    pub attempt: u32,
    /// Number of the child on this node.
    pub local_rank: usize,
}

/// Input of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorEvent {
    /// Begin the first attempt.
    Start,
    /// The child runs its program.
    Spawned(ChildId),
    /// The child could not be started; the text says why.
    SpawnFailed(ChildId, String),
    /// The child was not started, because its attempt stops.
    SpawnCancelled(ChildId),
    /// Children that were observed to have ended at the same time.
    Exited(Vec<(ChildId, Exit)>),
    /// The answer to `Effect::Judge`.
    Judged(FailedRank),
    /// The stop signal went to the child's main process alone: the answer to `Recipients::MainProcessFirst`.
    SignalledAlone(ChildId, MainProcess),
    /// The child was asked to stop, and its main process has ended. Other processes of its group live: it counts as alive.
    MainProcessEnded(ChildId),
    /// The ranks are to stop: a stop signal came from outside, or the launcher wants it, as after a notice of preemption. Ranks that stop
    /// by such a request already keep their time.
    Stop(i32),
    /// A second request of a user, who has waited: ranks that stop by a request are killed.
    StopAgain(i32),
    /// The nodes of the job have changed, or another node has failed: the ranks of this node stop. The rendezvous
    /// decides whether the job goes on, and with which nodes.
    Regroup(RankStop),
    /// A signal that is only forwarded to the ranks.
    ForwardSignal(i32),
    /// These children hold up the others: those that are alive receive SIGABRT, and SIGKILL after the grace period. While the job is
    /// suspended, or no attempt runs, it changes nothing.
    Abort {
        /// The children.
        ranks: Vec<ChildId>,
        /// Why.
        reason: AbortReason,
    },
    /// A later stop has at most this grace period. If the attempt stops already, its ranks have at most this time from now on.
    LimitGrace(Duration),
    /// A user asks for another attempt, which counts as no restart. During such a stop: only the grace period may change.
    Restart {
        /// The grace period of the present attempt, at most that of the policy; `None`: that of the policy.
        grace: Option<Duration>,
    },
    /// The ranks are to end soon, by themselves: no restart follows a failure from now on.
    ForbidRestarts,
    /// The user suspends the job (Ctrl-Z). A second one changes nothing.
    Suspend,
    /// The user resumes the job (`fg`, `bg`). A second one changes nothing.
    Resume,
    /// The launcher process, the parent of this one, was killed.
    LauncherKilled,
}

/// What the main process of a child is that handles the stop signal itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MainProcess {
    /// A program. The other processes of its group are its helpers: once it has ended, they have `last_call` to end.
    Program,
    /// A shell. It may end without its programs, which do the work: they have the rest of the grace period.
    Shell,
}

/// Which processes of a child's group a signal is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipients {
    /// The main process alone if it handles the signal, and then the answer is `SignalledAlone`. Otherwise all.
    MainProcessFirst,
    /// All but the main process.
    Rest,
    /// All.
    Group,
}

/// Why ranks are aborted while the others run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortReason {
    /// The job hangs.
    Hang {
        /// What the ranks wait for.
        why: String,
        /// Since when no rank has written anything.
        silent_since: Duration,
    },
    /// The rank failed so long ago and does not exit.
    StuckExit(Duration),
    /// The ranks still run so long after the first one has exited successfully.
    Straggler {
        /// The rank that exited successfully first.
        first: usize,
        /// The time that the others had.
        limit: Duration,
    },
}

/// What the supervisor wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start this child and answer with `Spawned` or `SpawnFailed`. Other events may come first; if the attempt stops before
    /// the child is started, the answer is `SpawnCancelled`.
    Spawn(ChildId),
    /// Send a signal that ends the child.
    Kill {
        /// The child.
        child: ChildId,
        /// SIGTERM, a forwarded stop signal or SIGKILL.
        signal: i32,
        /// To which of its processes.
        to: Recipients,
    },
    /// The time is over for the processes that are left of a child whose main process has ended: kill them.
    EndLeftovers(ChildId),
    /// Send a signal to the child alone.
    ForwardSignal {
        /// The child.
        child: ChildId,
        /// The signal that the launcher received and forwards, or one that ends an aborted rank.
        signal: i32,
    },
    /// Stop the child and all its descendants (SIGSTOP) until `Resume`.
    Suspend(ChildId),
    /// Continue the child and all its descendants (SIGCONT).
    Resume(ChildId),
    /// The child does not end after SIGKILL: forget it. Later events of it are ignored.
    Abandon(ChildId),
    /// End every remaining process of the job before the next effect, which is the first `Spawn` of a restart.
    Sweep,
    /// All children of an attempt have ended in which this local rank failed first, as far as the supervisor sees: find the rank that is
    /// to blame, and answer with `Judged`. Until then neither another attempt nor the end follows.
    Judge(usize, Exit),
    /// Report progress to the user.
    Note(ProgressNote),
    /// The node is finished: only abandoned children are alive. Comes once, last.
    Finish(NodeReport),
}

/// Progress worth reporting while a job stops or restarts. `living` lists local ranks that are alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgressNote {
    /// All children but the servers have exited successfully; the servers receive SIGTERM.
    Finishing {
        /// The servers that are alive.
        living: Vec<usize>,
    },
    /// All children but the servers have exited successfully; the job waits for the servers.
    AwaitingServers {
        /// The servers that are alive.
        living: Vec<usize>,
        /// How long; `None`: no limit.
        limit: Option<Duration>,
    },
    /// A stop signal came; these ranks have the grace period to end.
    Stopping {
        /// The signal.
        signal: i32,
        /// The ranks that are alive.
        living: Vec<usize>,
        /// The time that they have.
        grace: Duration,
    },
    /// A second stop signal came.
    Forced {
        /// The ranks that are alive.
        living: Vec<usize>,
    },
    /// These ranks receive SIGABRT, and SIGKILL after the grace period.
    Aborting {
        /// The ranks.
        ranks: Vec<usize>,
        /// Why.
        reason: AbortReason,
    },
    /// These ranks were sent SIGABRT, do not end by it, and receive SIGKILL.
    AbortIgnored {
        /// The ranks that are alive.
        living: Vec<usize>,
    },
    /// These ranks receive SIGKILL.
    Killing {
        /// The ranks that are alive.
        living: Vec<usize>,
    },
    /// These ranks are alive `KILL_PATIENCE` after SIGKILL and are abandoned.
    Unkillable {
        /// The ranks that are alive.
        living: Vec<usize>,
    },
    /// The attempt has failed and another one follows.
    Restarting {
        /// Number of the next attempt.
        attempt: u32,
        /// Number of this restart among those that count, from 1.
        restart: u32,
        /// Maximum number of restarts (within the window, if there is one).
        of: u32,
        /// The rank that failed first.
        culprit: FailedRank,
        /// Delay until the next attempt.
        delay: Duration,
    },
    /// A user has asked for another attempt; the ranks are asked to end.
    RestartRequested {
        /// Number of the next attempt.
        attempt: u32,
        /// The ranks that are alive.
        living: Vec<usize>,
        /// The grace period.
        grace: Duration,
    },
    /// Restarts are enabled, but none follows this failure.
    NotRestarting {
        /// The reason.
        why: NoRestart,
    },
}
