//! Whether another attempt follows a failed one, and after how long.

use crate::model::Exit;
use std::collections::BTreeSet;
use std::time::Duration;

/// When a failed job is started again. By default never.
#[derive(Clone, Debug, Default)]
pub struct RestartPolicy {
    /// How many restarts there may be.
    pub max_restart: u32,
    /// Only after these exit statuses, as a shell shows them (128 + N for signal N). `None`: after any.
    pub restart_on: Option<BTreeSet<i32>>,
    /// Never after these.
    pub never_restart_on: BTreeSet<i32>,
    /// How long to wait.
    pub backoff: Backoff,
    /// Restarts longer ago than this no longer count. `None`: all count.
    pub window: Option<Duration>,
    /// No restart once the same rank has ended in the same way this many times in a row.
    pub same_failure_limit: Option<u32>,
}

/// How long to wait before a restart: `base`, then twice as long each time up to `max`, of which a
/// random half is taken off, so that many jobs that fail at once do not come back at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    /// Before the first.
    pub base: Duration,
    /// The most.
    pub max: Duration,
    /// Where the randomness comes from.
    pub seed: u64,
}

impl Backoff {
    /// The wait before attempt `attempt`, when it is restart number `nth` (from 1) of those that count:
    /// between half of the full time and all of it.
    pub fn delay(&self, attempt: u32, nth: u32) -> Duration {
        let doubled = 2u32.saturating_pow(nth.saturating_sub(1));
        let half = self.base.saturating_mul(doubled).min(self.max) / 2;
        half + half / 1024 * (mixed(self.seed.wrapping_add(attempt.into())) % 1025) as u32
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): neighbouring numbers come out unrelated.
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Why a failed job was not started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRestart {
    /// This exit status is among those that are never followed by a restart.
    Never(i32),
    /// This exit status is not among those that are.
    NotListed(i32),
    /// The same rank has ended in the same way this many times in a row.
    SameFailure(u32),
    /// There have been as many as there may be.
    UsedUp(u32),
    /// A rank could not be started.
    StartFailed,
    /// Somebody asked the job to stop.
    Stopped,
    /// The process in front was killed.
    HostLost,
    /// A rank of the failed attempt is still there.
    Unkillable,
}

/// A policy and what has come of it so far.
#[derive(Debug)]
pub struct Restarts {
    /// What was asked for.
    pub policy: RestartPolicy,
    /// When restarts were decided, those that count.
    recent: Vec<Duration>,
    /// The last failure, and how often it has come in a row.
    last: Option<(usize, Exit)>,
    times: u32,
}

impl Restarts {
    /// Of which none has been used.
    pub fn new(policy: RestartPolicy) -> Self {
        Self { policy, recent: Vec::new(), last: None, times: 0 }
    }

    /// Whether there are none at all.
    pub fn are_off(&self) -> bool {
        self.policy.max_restart == 0
    }

    /// What follows a failure: attempt number `attempt` after this delay, or nothing.
    pub fn decide(&mut self, now: Duration, attempt: u32, culprit: usize, exit: Exit) -> Result<Duration, NoRestart> {
        let RestartPolicy { max_restart, restart_on, never_restart_on, backoff, window, same_failure_limit } =
            &self.policy;
        self.times = if self.last == Some((culprit, exit)) { self.times.saturating_add(1) } else { 1 };
        self.last = Some((culprit, exit));
        self.recent.retain(|at| window.is_none_or(|window| now.saturating_sub(*at) < window));
        let status = exit.shell_status();
        let nth = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
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
    fn the_wait_doubles_up_to_its_most_less_a_random_half() {
        let backoff = Backoff { base: SECOND, max: 10 * SECOND, seed: 7 };
        for (nth, full) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (40, 10), (u32::MAX, 10)] {
            let all: BTreeSet<_> = (0..64).map(|attempt| backoff.delay(attempt, nth)).collect();
            assert!(all.iter().all(|d| (full * SECOND / 2..=full * SECOND).contains(d)), "{nth}: {all:?}");
            assert!(all.len() > 50, "no jitter: {all:?}");
            let spread = *all.last().unwrap() - *all.first().unwrap();
            assert!(spread > full * SECOND / 3, "a narrow jitter: {spread:?}");
        }
        assert_eq!(Backoff::default().delay(1, 1), Duration::ZERO);
        let endless = Backoff { base: Duration::MAX, max: Duration::MAX, seed: 0 };
        assert!(endless.delay(9, 9) >= Duration::MAX / 2);
    }

    #[test]
    fn the_jitter_is_splitmix64() {
        // The first three outputs of the reference generator from the seed 0.
        let golden = 0x9e37_79b9_7f4a_7c15u64;
        let outputs = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        for (n, output) in (0..).zip(outputs) {
            assert_eq!(mixed(golden.wrapping_mul(n)), output);
        }
        let backoff = |seed| Backoff { base: SECOND, max: SECOND, seed };
        assert_eq!(backoff(4).delay(2, 1), backoff(5).delay(1, 1), "seed and attempt make the number");
    }

    #[test]
    fn only_restarts_within_the_window_count() {
        let mut restarts = Restarts::new(RestartPolicy { window: Some(10 * SECOND), ..policy(2) });
        let mut at = |seconds: u32| restarts.decide(seconds * SECOND, 1, 0, Exit::Code(1));
        assert!(at(0).is_ok());
        assert!(at(9).is_ok());
        assert_eq!(at(9), Err(NoRestart::UsedUp(2)));
        assert!(at(10).is_ok(), "the first is as old as the window");
        assert_eq!(at(18), Err(NoRestart::UsedUp(2)));
        assert!(at(60).is_ok());
    }

    #[test]
    fn a_long_good_run_makes_the_wait_short_again() {
        let backoff = Backoff { base: SECOND, max: 60 * SECOND, seed: 1 };
        let policy = RestartPolicy { window: Some(100 * SECOND), backoff, ..policy(9) };
        let mut restarts = Restarts::new(policy);
        let mut at = |seconds: u32| restarts.decide(seconds * SECOND, 3, 0, Exit::Code(1)).unwrap();
        let short = at(0);
        assert_eq!((at(1), at(2)), (backoff.delay(3, 2), backoff.delay(3, 3)));
        assert_eq!(at(500), short);
    }

    #[test]
    fn the_same_failure_in_a_row_is_no_accident() {
        let mut restarts = Restarts::new(RestartPolicy { same_failure_limit: Some(3), ..policy(99) });
        let mut after = |culprit, exit| restarts.decide(SECOND, 1, culprit, exit);
        let (one, two) = (Exit::Code(1), Exit::Signal(1));
        for (culprit, exit) in [(0, one), (0, one), (0, two), (0, one), (1, one), (1, one)] {
            assert!(after(culprit, exit).is_ok());
        }
        assert_eq!(after(1, one), Err(NoRestart::SameFailure(3)));
    }

    #[test]
    fn lists_hold_statuses_as_a_shell_shows_them() {
        let lists = RestartPolicy { restart_on: Some([1, 137, 3].into()), never_restart_on: [3].into(), ..policy(99) };
        let mut restarts = Restarts::new(lists);
        let mut after = |exit| restarts.decide(SECOND, 1, 0, exit);
        assert!(after(Exit::Code(1)).is_ok());
        assert!(after(Exit::Signal(9)).is_ok());
        assert!(after(Exit::Code(137)).is_ok());
        assert_eq!(after(Exit::Code(3)), Err(NoRestart::Never(3)));
        assert_eq!(after(Exit::Signal(11)), Err(NoRestart::NotListed(139)));
        assert_eq!(after(Exit::Lost), Err(NoRestart::NotListed(255)));
    }
}
