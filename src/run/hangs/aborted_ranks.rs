//! Ranks that were sent SIGABRT because they hang. A handler of that signal may hang as well: then SIGKILL follows.

use std::time::Duration;

/// The aborted ranks of one attempt.
#[derive(Debug, Default)]
pub struct AbortedRanks {
    attempt: u32,
    /// Local ranks, and when each is killed (`clock::now`).
    kill_at: Vec<(usize, Duration)>,
}

impl AbortedRanks {
    /// A rank of this attempt was sent SIGABRT, and is killed at `kill_at` (`clock::now`).
    pub fn add(&mut self, attempt: u32, local_rank: usize, kill_at: Duration) {
        if self.attempt != attempt {
            *self = Self { attempt, kill_at: Vec::new() };
        }
        self.kill_at.push((local_rank, kill_at));
    }

    /// When `take_due` is to be called next.
    pub fn due(&self) -> Option<Duration> {
        self.kill_at.iter().map(|(_, at)| *at).min()
    }

    /// Takes the ranks that are to be killed now. `running`: the attempt that runs, also one that is suspended; one that stops has a grace
    /// period of its own.
    pub fn take_due(&mut self, now: Duration, running: Option<u32>) -> Vec<usize> {
        if running != Some(self.attempt) {
            self.kill_at.clear();
        }
        self.kill_at.extract_if(.., |(_, at)| *at <= now).map(|(local_rank, _)| local_rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_killed_once_and_only_in_its_attempt() {
        let at = Duration::from_secs;
        let mut ranks = AbortedRanks::default();
        ranks.add(1, 3, at(10));
        ranks.add(1, 4, at(12));
        assert_eq!(ranks.due(), Some(at(10)));
        assert!(ranks.take_due(at(9), Some(1)).is_empty());
        assert_eq!(ranks.take_due(at(11), Some(1)), [3]);
        assert!(ranks.take_due(at(20), Some(2)).is_empty());
        assert_eq!(ranks.due(), None);
    }
}
