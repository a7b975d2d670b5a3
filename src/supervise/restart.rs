//! Restart policy: whether another attempt follows a failed one, and after which delay.

use crate::model::Exit;
use std::collections::BTreeSet;
use std::time::Duration;

/// When a failed job is restarted. The default is never.
#[derive(Clone, Debug, Default)]
pub struct RestartPolicy {
    /// Maximum number of restarts.
    pub max_restart: u32,
    /// Exit statuses that allow a restart, as a shell shows them (128 + N for signal N). `None`: all.
    pub restart_on: Option<BTreeSet<i32>>,
    /// Exit statuses that never allow a restart.
    pub never_restart_on: BTreeSet<i32>,
    /// Delay before a restart.
    pub backoff: RestartBackoff,
    /// Restarts older than this do not count. `None`: all count.
    pub window: Option<Duration>,
    /// No restart follows once the same rank has failed with the same exit this many times in a row.
    pub same_failure_limit: Option<u32>,
}

/// Exponential backoff with jitter: `base`, doubled at each restart up to `max`, less a random part of up to half,
/// so that many jobs that fail at once do not restart at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestartBackoff {
    /// Full delay before the first restart.
    pub base: Duration,
    /// Maximum of the full delay.
    pub max: Duration,
    /// Seed of the jitter.
    pub seed: u64,
}

impl RestartBackoff {
    /// Delay before attempt `attempt`, which is restart number `nth` (from 1) of those that count:
    /// between half of the full delay and all of it.
    pub fn delay(&self, attempt: u32, nth: u32) -> Duration {
        let doubled = 2u32.saturating_pow(nth.saturating_sub(1));
        let half = self.base.saturating_mul(doubled).min(self.max) / 2;
        half + half / 1024 * (splitmix64(self.seed.wrapping_add(attempt.into())) % 1025) as u32
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): neighbouring inputs give unrelated outputs.
fn splitmix64(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Why a failed job was not restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRestart {
    /// This exit status is in `never_restart_on`.
    Never(i32),
    /// This exit status is not in `restart_on`.
    NotListed(i32),
    /// The same rank has failed with the same exit this many times in a row.
    SameFailure(u32),
    /// This many restarts have been made, which is the maximum.
    UsedUp(u32),
    /// A rank could not be started.
    StartFailed,
    /// A stop signal came from outside.
    Stopped,
    /// The launcher process was killed.
    LauncherKilled,
    /// A rank of the failed attempt could not be killed.
    Unkillable,
}

/// A restart policy and the restarts made so far.
#[derive(Debug)]
pub struct RestartCounter {
    /// The policy.
    pub policy: RestartPolicy,
    /// When the restarts that count were decided.
    recent: Vec<Duration>,
    /// The last failure.
    last: Option<(usize, Exit)>,
    /// How many times in a row it has occurred.
    times: u32,
}

impl RestartCounter {
    /// A counter without restarts.
    pub fn new(policy: RestartPolicy) -> Self {
        Self { policy, recent: Vec::new(), last: None, times: 0 }
    }

    /// Whether the policy allows no restart.
    pub fn is_disabled(&self) -> bool {
        self.policy.max_restart == 0
    }

    /// How many restarts count now.
    pub fn made(&self) -> u32 {
        u32::try_from(self.recent.len()).unwrap_or(u32::MAX)
    }

    /// Counts a failure and decides whether attempt number `attempt` follows, and after which delay.
    pub fn decide(&mut self, now: Duration, attempt: u32, culprit: usize, exit: Exit) -> Result<Duration, NoRestart> {
        let RestartPolicy { max_restart, restart_on, never_restart_on, backoff, window, same_failure_limit } =
            &self.policy;
        self.times = if self.last == Some((culprit, exit)) { self.times.saturating_add(1) } else { 1 };
        self.last = Some((culprit, exit));
        self.recent.retain(|at| window.is_none_or(|window| now.saturating_sub(*at) < window));
        let status = exit.shell_status();
        let nth = self.made();
        if never_restart_on.contains(&status) {
            return Err(NoRestart::Never(status));
        }
        if restart_on.as_ref().is_some_and(|list| !list.contains(&status)) {
            return Err(NoRestart::NotListed(status));
        }
        if same_failure_limit.is_some_and(|limit| self.times >= limit) {
            return Err(NoRestart::SameFailure(self.times));
        }
        if nth >= *max_restart {
            return Err(NoRestart::UsedUp(nth));
        }
        let delay = backoff.delay(attempt, nth + 1);
        self.recent.push(now);
        Ok(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy(max_restart: u32) -> RestartPolicy {
        RestartPolicy { max_restart, ..RestartPolicy::default() }
    }

    #[test]
    fn the_delay_doubles_up_to_its_maximum_less_a_random_half() {
        let backoff = RestartBackoff { base: SECOND, max: 10 * SECOND, seed: 7 };
        for (nth, full) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (40, 10), (u32::MAX, 10)] {
            let all: BTreeSet<_> = (0..64).map(|attempt| backoff.delay(attempt, nth)).collect();
            assert!(all.iter().all(|d| (full * SECOND / 2..=full * SECOND).contains(d)), "{nth}: {all:?}");
            assert!(all.len() > 50, "no jitter: {all:?}");
            let spread = *all.last().unwrap() - *all.first().unwrap();
            assert!(spread > full * SECOND / 3, "a narrow jitter: {spread:?}");
        }
        assert_eq!(RestartBackoff::default().delay(1, 1), Duration::ZERO);
        let endless = RestartBackoff { base: Duration::MAX, max: Duration::MAX, seed: 0 };
        assert!(endless.delay(9, 9) >= Duration::MAX / 2);
    }

    #[test]
    fn the_jitter_is_splitmix64() {
        // The first three outputs of the reference generator from the seed 0.
        let golden = 0x9e37_79b9_7f4a_7c15u64;
        let outputs = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        for (n, output) in (0..).zip(outputs) {
            assert_eq!(splitmix64(golden.wrapping_mul(n)), output);
        }
        let backoff = |seed| RestartBackoff { base: SECOND, max: SECOND, seed };
        assert_eq!(backoff(4).delay(2, 1), backoff(5).delay(1, 1), "the sum of seed and attempt is the input");
    }

    #[test]
    fn only_restarts_within_the_window_count() {
        let mut restarts = RestartCounter::new(RestartPolicy { window: Some(10 * SECOND), ..policy(2) });
        let mut at = |seconds: u32| restarts.decide(seconds * SECOND, 1, 0, Exit::Code(1));
        assert!(at(0).is_ok());
        assert!(at(9).is_ok());
        assert_eq!(at(9), Err(NoRestart::UsedUp(2)));
        assert!(at(10).is_ok(), "the first is as old as the window");
        assert_eq!(at(18), Err(NoRestart::UsedUp(2)));
        assert!(at(60).is_ok());
    }

    #[test]
    fn a_long_run_resets_the_delay() {
        let backoff = RestartBackoff { base: SECOND, max: 60 * SECOND, seed: 1 };
        let policy = RestartPolicy { window: Some(100 * SECOND), backoff, ..policy(9) };
        let mut restarts = RestartCounter::new(policy);
        let mut at = |seconds: u32| restarts.decide(seconds * SECOND, 3, 0, Exit::Code(1)).unwrap();
        let short = at(0);
        assert_eq!((at(1), at(2)), (backoff.delay(3, 2), backoff.delay(3, 3)));
        assert_eq!(at(500), short);
    }

    #[test]
    fn the_same_failure_in_a_row_ends_restarts() {
        let mut restarts = RestartCounter::new(RestartPolicy { same_failure_limit: Some(3), ..policy(99) });
        let mut after = |culprit, exit| restarts.decide(SECOND, 1, culprit, exit);
        let (one, two) = (Exit::Code(1), Exit::Signal(1));
        for (culprit, exit) in [(0, one), (0, one), (0, two), (0, one), (1, one), (1, one)] {
            assert!(after(culprit, exit).is_ok());
        }
        assert_eq!(after(1, one), Err(NoRestart::SameFailure(3)));
    }

    #[test]
    fn lists_contain_shell_exit_statuses() {
        let lists = RestartPolicy { restart_on: Some([1, 137, 3].into()), never_restart_on: [3].into(), ..policy(99) };
        let mut restarts = RestartCounter::new(lists);
        let mut after = |exit| restarts.decide(SECOND, 1, 0, exit);
        assert!(after(Exit::Code(1)).is_ok());
        assert!(after(Exit::Signal(9)).is_ok());
        assert!(after(Exit::Code(137)).is_ok());
        assert_eq!(after(Exit::Code(3)), Err(NoRestart::Never(3)));
        assert_eq!(after(Exit::Signal(11)), Err(NoRestart::NotListed(139)));
        assert_eq!(after(Exit::Lost), Err(NoRestart::NotListed(255)));
    }
}
