//! Pauses between attempts.

use crate::sys::random;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The pause before the next attempt. It doubles, and is random, so that not all nodes try at once.
#[derive(Clone, Debug)]
pub struct RetryDelay(Duration);

impl Default for RetryDelay {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl RetryDelay {
    pub fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        pause.mul_f64(0.75 + random::rng().f64() / 2.0)
    }
}

/// When something that has failed is tried again, and since when it fails.
#[derive(Debug, Default)]
pub struct RetryTimer {
    at: Duration,
    delay: RetryDelay,
    failing_since: Option<Duration>,
}

impl RetryTimer {
    /// When it is tried again, if it has failed.
    pub fn next(&self) -> Option<Duration> {
        (!self.at.is_zero()).then_some(self.at)
    }

    /// It is tried again at once.
    pub fn expedite(&mut self) {
        self.at = Duration::ZERO;
    }

    /// It has failed; returns for how long it has.
    pub fn note_failure(&mut self, now: Duration) -> Duration {
        self.at = now + self.delay.next();
        now.saturating_sub(*self.failing_since.get_or_insert(now))
    }

    /// It is tried again at once, and failures before do not count.
    pub fn restart(&mut self) {
        (self.at, self.failing_since) = (Duration::ZERO, None);
    }

    /// It works for now; the next pause is as long as if it had not.
    pub fn note_contact(&mut self) {
        self.failing_since = None;
    }

    /// It has succeeded.
    pub fn note_success(&mut self) {
        *self = Self::default();
    }
}
