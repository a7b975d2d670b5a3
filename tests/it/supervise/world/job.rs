//! A history before it is simulated: a job, the manners of its children, its happenings.

use rlaunch::model::Exit;
use rlaunch::supervise::{Lifecycle, MainProcess, SupervisionPolicy};
use std::time::Duration;

/// How one child behaves: times in virtual milliseconds.
#[derive(Clone, Debug)]
pub struct Manners {
    pub starts: bool,
    /// How long starting it takes.
    pub start_takes: u64,
    pub lives: Option<u64>,
    pub exit: Exit,
    /// How long after SIGTERM it goes, and how; `None`: it ignores it.
    pub on_term: Option<(u64, Exit)>,
    /// How long after SIGKILL it goes; `None`: the kernel does not let it.
    pub on_kill: Option<u64>,
    /// It handles SIGTERM, and so gets it alone.
    pub handles: Option<MainProcess>,
    pub helpers: Helpers,
    /// It ends even while it is frozen (another process kills it, or its end is seen late).
    pub dies_frozen: Option<Exit>,
}

/// The other processes of its group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Helpers {
    None,
    /// They go so long after SIGTERM.
    Leave(u64),
    /// They stay until they are killed.
    Stay,
}

/// It runs well for a while.
pub const GOOD: Manners = Manners {
    starts: true,
    start_takes: 0,
    lives: Some(100),
    exit: Exit::Code(0),
    on_term: Some((5, Exit::Signal(15))),
    on_kill: Some(0),
    handles: None,
    helpers: Helpers::None,
    dies_frozen: None,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Happening {
    /// A user's request, after others a second one.
    Stop,
    /// A request that shortens no time.
    OtherStop,
    Notify,
    Suspend,
    Resume,
    CutOff,
    HostLost,
    /// Of the ranks whose bits are set.
    Abort(u8),
    /// With this grace period in milliseconds.
    Restart(Option<u64>),
}

/// A job and all that befalls it.
#[derive(Clone, Debug)]
pub struct Job {
    pub policy: SupervisionPolicy,
    /// By local rank.
    pub parts: Vec<Lifecycle>,
    pub adopted: bool,
    /// When it is started or adopted.
    pub begins: u64,
    /// By attempt and local rank; beyond these all are `GOOD`.
    pub manners: Vec<Vec<Manners>>,
    /// In order of time.
    pub happenings: Vec<(u64, Happening)>,
    /// Happenings come before the ends of the same moment, not after them.
    pub happens_first: bool,
    /// Mixes the ends that are seen together, and puts among them what is no news.
    pub mix: u64,
}

/// Ends that were seen together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together {
    pub at: Duration,
    pub ended: usize,
    /// Unsuccessfully and by themselves, with a code or by a signal.
    pub failed: usize,
    pub by_signal: usize,
    pub signalled: usize,
    /// The work was done with them.
    pub done: bool,
    /// All slept then; a rank was being started.
    pub asleep: bool,
    pub starting: bool,
    /// Of other attempts, of the dead, said twice.
    pub no_news: usize,
    /// There had been an attempt before.
    pub again: bool,
}
