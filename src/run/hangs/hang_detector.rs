//! Looks at ranks that have been silent for long, by a reader process, and finds out whether the job hangs.

use crate::report::stacks::{self, StackDump};
use crate::run::stacks::collector::StacksUnavailable;
use crate::run::stacks::look::{HangQuestion, RankTarget, StackAnswer, StackRequest, WrittenBytes};
use crate::run::stacks::polled_reader::PolledReader;
use crate::supervise::{HangAction, HangEvent, HangLook, HangWatch};
use crate::sys::clock;
use std::time::Duration;
use tracing::{debug, warn};

/// For how long no stack may move.
pub const WATCHED: Duration = Duration::from_secs(5);

/// A job that hangs.
#[derive(Clone, Debug)]
pub struct FoundHang {
    /// How long no rank has written anything.
    pub silence: Duration,
    /// For how long the stacks were watched.
    pub watched: Duration,
    /// The stacks.
    pub dump: StackDump,
}

impl FoundHang {
    /// The ranks to be aborted: those that hold up the others and are idle; or all of them, if none stands out and all wait for each
    /// other. `has_other_nodes`: then ranks that wait may wait for those of other nodes, which may work.
    pub fn ranks_to_abort(&self, has_other_nodes: bool) -> Vec<usize> {
        let groups = stacks::group(&self.dump);
        let all = || self.dump.ranks.iter().map(|rank| rank.local_rank);
        let is_idle = |local: usize| {
            let rank = self.dump.ranks.iter().find(|rank| rank.local_rank == local);
            rank.is_some_and(|rank| rank.is_idle(self.watched))
        };
        match stacks::find_odd_ranks(&groups, &[]) {
            odd if !odd.ranks().is_empty() => odd.ranks().iter().copied().filter(|local| is_idle(*local)).collect(),
            _ if has_other_nodes => Vec::new(),
            _ if groups.iter().all(|group| group.waits_in.is_some()) || all().all(is_idle) => all().collect(),
            _ => Vec::new(),
        }
    }
}

/// Looks for hangs of the present attempt.
pub struct HangDetector<'a> {
    watch: HangWatch,
    question: HangQuestion,
    reader: PolledReader<'a>,
    /// The attempt that is watched.
    attempt: Option<u32>,
    /// What each rank had written in all when it was last looked at.
    written: WrittenBytes,
    has_warned: bool,
}

impl<'a> HangDetector<'a> {
    /// `timeout`: how long no rank has to write anything; `None`: never looks.
    pub fn new(timeout: Option<Duration>, reader: PolledReader<'a>) -> Self {
        let silent = timeout.unwrap_or(Duration::MAX);
        let question =
            HangQuestion { silent_seconds: silent.as_secs_f64(), watched_seconds: WATCHED.min(silent).as_secs_f64() };
        Self {
            watch: HangWatch::new(timeout),
            question,
            reader,
            attempt: None,
            written: WrittenBytes::new(),
            has_warned: false,
        }
    }

    /// When `turn` has something to do, if nothing happens before.
    pub fn due(&self) -> Option<Duration> {
        self.reader.until().or_else(|| self.watch.due())
    }

    /// Whether a hang has been reported, and nothing has been seen to move since.
    pub fn is_reported(&self) -> bool {
        self.watch.is_reported()
    }

    /// Continues. `attempt`: the one whose ranks run, and neither stop nor are suspended; `targets`: those ranks.
    pub fn turn(&mut self, attempt: Option<u32>, targets: impl FnOnce() -> Vec<RankTarget>) -> Option<FoundHang> {
        let now = clock::now();
        if attempt != self.attempt {
            self.attempt = attempt;
            self.watch.handle(now, HangEvent::NotRunning);
            self.written.clear();
            self.reader.give_up();
            if attempt.is_some() {
                self.watch.handle(now, HangEvent::Running);
            }
        }
        if let Some(answer) = self.reader.receive() {
            let (look, found) = self.judge(answer);
            debug!("no rank has written anything for --hang_timeout: {look:?}");
            let action = self.watch.handle(now, HangEvent::Looked(look));
            return found.filter(|_| action == Some(HangAction::Report));
        }
        if self.watch.due().is_some_and(|at| now >= at)
            && self.watch.handle(now, HangEvent::Due) == Some(HangAction::Look)
        {
            let mut ranks = targets();
            for rank in &mut ranks {
                rank.written_before = self.written.get(&rank.local_rank).copied();
            }
            if ranks.is_empty() {
                self.watch.handle(now, HangEvent::Looked(HangLook::Moved));
                return None;
            }
            let request = StackRequest { ranks, hang: Some(self.question) };
            if let Err(error) = self.reader.start(request) {
                // One of the attempt before may not be over.
                if !matches!(error, StacksUnavailable::Busy) {
                    self.warn(&error);
                }
                self.watch.handle(now, HangEvent::Looked(HangLook::Failed));
            }
        }
        None
    }

    fn judge(&mut self, answer: Result<StackAnswer, StacksUnavailable>) -> (HangLook, Option<FoundHang>) {
        match answer {
            Ok(StackAnswer::NotSilent { seconds, written }) => {
                self.written = written;
                (HangLook::NotSilent(duration(seconds)), None)
            }
            Ok(StackAnswer::Still { seconds, watched, dump }) => {
                let found = FoundHang { silence: duration(seconds), watched: duration(watched), dump };
                (HangLook::Still, Some(found))
            }
            Ok(StackAnswer::Moved | StackAnswer::Stacks(_)) => (HangLook::Moved, None),
            Err(error) => {
                self.warn(&error);
                (HangLook::Failed, None)
            }
        }
    }

    fn warn(&mut self, error: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.has_warned, true) {
            warn!("cannot find out whether the job hangs: {error}");
        }
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
