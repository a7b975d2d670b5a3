//! Pauses between attempts.

use crate::sys::random;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

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
