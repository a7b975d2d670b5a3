//! Supervision policy: grace period, deadline, restarts and signal forwarding.

use super::restart::RestartPolicy;
use std::time::Duration;

/// How a job is stopped, and when it is restarted.
#[derive(Clone, Debug, Default)]
pub struct SupervisionPolicy {
    /// Grace period: time between the stop signal and SIGKILL.
    pub grace: Duration,
    /// Time, on the clock of the events, at which the scheduler kills the launcher. The grace period ends no later.
    pub stop_by: Option<Duration>,
    /// How long after the first SIGTERM further ones are the same request: a scheduler sends several.
    pub same_sigterm: Duration,
    /// Restarts.
    pub restart: RestartPolicy,
    /// Number of the first attempt; not 0 if earlier rounds had attempts.
    pub first_attempt: u32,
    /// Whether the rendezvous decides what follows an attempt that a user wants to be restarted.
    pub in_rounds: bool,
    /// Time that the other `Main` children may run after the first one has exited successfully; `None`: no limit.
    pub straggler_timeout: Option<Duration>,
    /// Time that awaited servers may run after the work; `None`: no limit.
    pub server_timeout: Option<Duration>,
    /// Whether ranks stopped by an external signal receive that signal. All other stops send SIGTERM.
    pub repeats_signal: bool,
}

impl SupervisionPolicy {
    /// A policy with a grace period, without a deadline or restarts.
    pub fn with_grace(grace: Duration) -> Self {
        Self { grace, ..Self::default() }
    }
}
