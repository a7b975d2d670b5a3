//! Finds ranks whose program has failed, as their Python says (`uncaught_file.rs`), and that do not exit: they wait for a thread, or
//! in the framework's clean-up, and the other ranks wait for them.

use crate::report::stacks::{ExitState, StackDump};
use crate::run::hangs::hang_detector::WATCHED;
use crate::run::stacks::collector::StacksUnavailable;
use crate::run::stacks::look::{HangQuestion, RankTarget, StackAnswer, StackRequest};
use crate::run::stacks::polled_reader::PolledReader;
use crate::sys::clock;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tracing::warn;

const UNKNOWN: &str = "cannot find out whether a rank that has failed will exit";

/// A rank that uses a CPU is ended once its Python has not moved for so many times the timeout: it may save, or upload.
const BUSY_TIMEOUTS: u32 = 10;

/// A rank that does not exit.
#[derive(Clone, Debug)]
pub struct StuckExit {
    /// Its number on this node.
    pub local_rank: usize,
    /// Since when its failure is known (`clock::now`).
    pub failed_at: Duration,
    /// Its stacks, if they are still.
    pub dump: StackDump,
    /// Its state.
    pub state: ExitState,
}

/// Watches the ranks of the present attempt.
pub struct ExitDetector<'a> {
    timeout: Option<Duration>,
    reader: PolledReader<'a>,
    /// When each rank failed, and when it is looked at next.
    failed: BTreeMap<usize, (Duration, Duration)>,
    /// Those that use a CPU, which has been reported: since when their Python has not moved, and their stacks.
    busy: BTreeMap<usize, (Duration, StackDump)>,
    /// Those whose Python runs, which has been reported.
    working: BTreeSet<usize>,
    /// The rank that is looked at.
    looked_at: usize,
    /// The attempt that is watched.
    attempt: Option<u32>,
}

impl<'a> ExitDetector<'a> {
    /// `timeout`: how long a rank may take to exit after its failure; `None`: any time.
    pub fn new(timeout: Option<Duration>, reader: PolledReader<'a>) -> Self {
        let (failed, busy, working) = Default::default();
        Self { timeout, reader, failed, busy, working, looked_at: 0, attempt: None }
    }

    /// Whether the end of this rank is waited for already, or never.
    pub fn knows(&self, local_rank: usize) -> bool {
        self.timeout.is_none() || self.failed.contains_key(&local_rank)
    }

    /// The main program of this rank has failed, whose process lives.
    pub fn has_failed(&mut self, local_rank: usize) {
        let now = clock::now();
        if let Some(timeout) = self.timeout {
            self.failed.entry(local_rank).or_insert((now, now.saturating_add(timeout)));
        }
    }

    /// When `turn` has something to do, if nothing happens before.
    pub fn due(&self) -> Option<Duration> {
        self.reader.until().or_else(|| self.failed.values().map(|(_, look_at)| *look_at).min())
    }

    /// Continues. `attempt`: the one whose ranks run and do not stop; `target`: a rank, if it lives.
    pub fn turn(&mut self, attempt: Option<u32>, target: impl Fn(usize) -> Option<RankTarget>) -> Option<StuckExit> {
        if attempt != self.attempt {
            self.attempt = attempt;
            self.failed.clear();
            self.busy.clear();
            self.working.clear();
            self.reader.give_up();
        }
        let (now, timeout) = (clock::now(), self.timeout.unwrap_or(Duration::MAX));
        if let Some(answer) = self.reader.receive() {
            return self.judge(answer, now.saturating_add(timeout));
        }
        if self.reader.until().is_some() {
            return None;
        }
        let next = self.failed.iter().find(|(_, (_, look_at))| *look_at <= now).map(|(local_rank, _)| *local_rank);
        let local_rank = next?;
        let Some(target) = target(local_rank) else {
            self.failed.remove(&local_rank);
            return None;
        };
        let watched_seconds = WATCHED.min(timeout).as_secs_f64();
        let hang = Some(HangQuestion { silent_seconds: 0.0, watched_seconds, is_exiting: true });
        self.looked_at = local_rank;
        match self.reader.start(StackRequest { ranks: vec![target], hang }) {
            Ok(()) => {}
            // One of the attempt before is not over.
            Err(StacksUnavailable::Busy) => {
                self.failed.entry(local_rank).and_modify(|(_, look_at)| *look_at = now.saturating_add(timeout));
            }
            Err(error) => {
                warn!("{UNKNOWN}: {error}");
                self.failed.remove(&local_rank);
            }
        }
        None
    }

    /// What the answer says about the rank that was looked at, which otherwise is looked at again at this time.
    fn judge(&mut self, answer: Result<StackAnswer, StacksUnavailable>, again: Duration) -> Option<StuckExit> {
        let local_rank = self.looked_at;
        let (failed_at, look_at) = self.failed.get_mut(&local_rank)?;
        *look_at = again;
        match answer {
            Ok(StackAnswer::Still { watched, dump, .. }) => {
                let watched = Duration::try_from_secs_f64(watched).unwrap_or_default();
                let is_busy = !dump.ranks.iter().all(|rank| rank.is_idle(watched));
                let most = self.timeout.unwrap_or(Duration::MAX).saturating_mul(BUSY_TIMEOUTS);
                let before = self.busy.remove(&local_rank);
                let is_reported = before.is_some();
                let still_since = before.filter(|(_, stacks)| !dump.has_moved_at_exit(stacks)).map(|(since, _)| since);
                let still_since = still_since.unwrap_or_else(clock::now);
                let is_spared = is_busy && clock::now().saturating_sub(still_since) < most;
                if is_spared {
                    self.busy.insert(local_rank, (still_since, dump.clone()));
                    if is_reported {
                        return None;
                    }
                } else {
                    // It is aborted, and looked at no more.
                    *look_at = Duration::MAX;
                }
                let state = if is_busy { ExitState::Spins { is_spared } } else { ExitState::Waits };
                Some(StuckExit { local_rank, failed_at: *failed_at, dump, state })
            }
            // Its Python moves.
            Ok(_) => {
                self.busy.entry(local_rank).and_modify(|(since, _)| *since = clock::now());
                let (is_new, failed_at) = (self.working.insert(local_rank), *failed_at);
                let (dump, state) = (StackDump::default(), ExitState::Works);
                is_new.then_some(StuckExit { local_rank, failed_at, dump, state })
            }
            Err(error) => {
                warn!("{UNKNOWN}: {error}");
                None
            }
        }
    }
}
