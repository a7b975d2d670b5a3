//! Finds ranks that an exception has ended, as their Python says (`uncaught_file.rs`), and that do not exit: they wait for a thread, or
//! in the framework's clean-up, and the other ranks wait for them.

use crate::report::stacks::StackDump;
use crate::run::hang_detector::BUSY;
use crate::run::stacks::collector::{StackCollector, StackReader};
use crate::run::stacks::look::{HangQuestion, RankTarget, StackAnswer, StackRequest};
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tracing::warn;

/// For how long the stacks of such a rank may not move: one that still works, to save something, is left alone.
const WATCHED: Duration = Duration::from_secs(5);

/// A rank that does not exit.
#[derive(Clone, Debug)]
pub struct StuckExit {
    /// Its number on this node.
    pub local_rank: usize,
    /// Since when its exception is known (`clock::now`).
    pub failed_at: Duration,
    /// Its stacks.
    pub dump: StackDump,
}

/// Watches the ranks of the present attempt.
pub struct ExitDetector<'a> {
    timeout: Option<Duration>,
    reader: &'a StackReader,
    /// When each rank failed, and when it is looked at next.
    failed: BTreeMap<usize, (Duration, Duration)>,
    looking: Option<(usize, StackCollector)>,
    /// The attempt that is watched.
    attempt: Option<u32>,
}

impl<'a> ExitDetector<'a> {
    /// `timeout`: how long a rank may take to exit after its exception; `None`: any time.
    pub fn new(timeout: Option<Duration>, reader: &'a StackReader) -> Self {
        Self { timeout, reader, failed: BTreeMap::new(), looking: None, attempt: None }
    }

    /// Whether the end of this rank is waited for already, or never.
    pub fn knows(&self, local_rank: usize) -> bool {
        self.timeout.is_none() || self.failed.contains_key(&local_rank)
    }

    /// An exception has ended the main program of this rank, whose process lives.
    pub fn has_failed(&mut self, local_rank: usize) {
        let now = clock::now();
        if let Some(timeout) = self.timeout {
            self.failed.entry(local_rank).or_insert((now, now.saturating_add(timeout)));
        }
    }

    /// When `turn` has something to do, if nothing happens before.
    pub fn due(&self) -> Option<Duration> {
        let looking = self.looking.as_ref().map(|(_, collector)| collector.until());
        looking.or_else(|| self.failed.values().map(|(_, look_at)| *look_at).min())
    }

    /// Continues. `attempt`: the one whose ranks run and do not stop; `target`: a rank, if it lives; `token`: reported by `poll` when an
    /// answer arrives.
    pub fn turn(
        &mut self,
        attempt: Option<u32>,
        target: impl Fn(usize) -> Option<RankTarget>,
        (poll, token): (&Poller, u64),
    ) -> io::Result<Option<StuckExit>> {
        if attempt != self.attempt {
            self.attempt = attempt;
            self.failed.clear();
            self.end_look(poll)?;
        }
        let (now, timeout) = (clock::now(), self.timeout.unwrap_or(Duration::MAX));
        if let Some((local_rank, collector)) = &mut self.looking {
            let (local_rank, answer) = (*local_rank, collector.receive());
            if matches!(answer, Ok(None)) {
                return Ok(None);
            }
            self.end_look(poll)?;
            let Some((failed_at, look_at)) = self.failed.get_mut(&local_rank) else { return Ok(None) };
            *look_at = now.saturating_add(timeout);
            return Ok(match answer {
                // One that works in C code does not move.
                Ok(Some(StackAnswer::Still { watched, dump, .. }))
                    if dump.ranks.iter().all(|rank| rank.cpu_share(Duration::from_secs_f64(watched)) < BUSY) =>
                {
                    let stuck = StuckExit { local_rank, failed_at: *failed_at, dump };
                    // It is aborted, and looked at no more.
                    *look_at = Duration::MAX;
                    Some(stuck)
                }
                Ok(_) => None,
                Err(error) => {
                    warn!("cannot find out whether a rank that has failed will exit: {error}");
                    None
                }
            });
        }
        let next = self.failed.iter().find(|(_, (_, look_at))| *look_at <= now).map(|(local_rank, _)| *local_rank);
        let Some(local_rank) = next else { return Ok(None) };
        let Some(target) = target(local_rank) else {
            self.failed.remove(&local_rank);
            return Ok(None);
        };
        let watched_seconds = WATCHED.min(timeout).as_secs_f64();
        let hang = Some(HangQuestion { silent_seconds: 0.0, watched_seconds });
        match self.reader.start(&StackRequest { ranks: vec![target], hang }) {
            Ok(collector) => {
                poll.readable(&collector, token)?;
                self.looking = Some((local_rank, collector));
            }
            Err(error) => {
                warn!("cannot find out whether a rank that has failed will exit: {error}");
                self.failed.remove(&local_rank);
            }
        }
        Ok(None)
    }

    fn end_look(&mut self, poll: &Poller) -> io::Result<()> {
        match self.looking.take() {
            Some((_, collector)) => poll.forget(&collector),
            None => Ok(()),
        }
    }
}
