//! A timer of the supervisor, which suspension pauses.

use std::time::Duration;

/// Off, running or paused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timer {
    paused: bool,
    /// When it is due; while paused, the time that is left.
    due: Option<Duration>,
}

impl Timer {
    /// Makes it due this long from now; while paused, this long from the end of the pause.
    pub fn arm(&mut self, now: Duration, after: Duration) {
        self.due = Some(if self.paused { after } else { now.saturating_add(after) });
    }

    /// If it is armed: makes it due no later than this long from now.
    pub fn limit(&mut self, now: Duration, most: Duration) {
        let latest = if self.paused { most } else { now.saturating_add(most) };
        self.due = self.due.map(|due| due.min(latest));
    }

    pub fn disarm(&mut self) {
        self.due = None;
    }

    /// Another one, which is paused if this one is.
    pub fn unarmed(&self) -> Self {
        Self { due: None, ..*self }
    }

    pub fn is_armed(&self) -> bool {
        self.due.is_some()
    }

    /// The time that is left; `None` if it is not armed.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        self.due.map(|due| if self.paused { due } else { due.saturating_sub(now) })
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// When it is due; `None` also while it is paused.
    pub fn due(&self) -> Option<Duration> {
        self.due.filter(|_| !self.paused)
    }

    pub fn pause(&mut self, now: Duration) {
        self.due = self.due().map(|at| at.saturating_sub(now));
        self.paused = true;
    }

    /// Continues with the time that was left, but is due no later than `latest`.
    pub fn resume(&mut self, now: Duration, latest: Option<Duration>) {
        self.paused = false;
        let latest = latest.unwrap_or(Duration::MAX).max(now);
        self.due = self.due.map(|left| now.saturating_add(left).min(latest));
    }
}
