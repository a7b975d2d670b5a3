//! Counts stop signals. The same signal may reach the supervisor process by two routes, and then means one request: a
//! stop that is sent to every process of the job (systemd.kill(5) with KillMode=control-group; `pkill`) reaches it
//! directly and through the launcher process.

use crate::supervise::SupervisorEvent;
use crate::sys::signals::STOP;
use std::collections::BTreeSet;
use std::time::Duration;

/// Tells a scheduler's repetitions of SIGTERM from further requests.
#[derive(Debug)]
pub struct SchedulerSigterm {
    /// How long after the first one they come.
    within: Duration,
    first: Option<Duration>,
}

impl SchedulerSigterm {
    /// None has come. `within`: how long after the first one the scheduler repeats it; zero: never.
    pub fn new(within: Duration) -> Self {
        Self { within, first: None }
    }

    /// Whether this signal repeats an earlier one.
    pub fn repeats(&mut self, signal: i32, now: Duration) -> bool {
        if signal != libc::SIGTERM {
            return false;
        }
        match self.first {
            Some(first) => now.saturating_sub(first) < self.within,
            None => {
                self.first = Some(now);
                false
            }
        }
    }
}

/// How a signal reached the supervisor process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRoute {
    /// Sent to the supervisor process itself.
    Directly,
    /// Sent to the launcher process, which passed it on.
    Requested,
}

/// Whether a signal asks the job to stop. `forwarded`: signals that stop nothing.
pub fn is_stop(signal: i32, forwarded: &BTreeSet<i32>) -> bool {
    STOP.contains(&signal) && !forwarded.contains(&signal)
}

/// The stop signals so far.
#[derive(Debug, Default)]
pub struct StopRequests {
    stopped_directly: bool,
    requested_to_stop: bool,
    first: Option<i32>,
    /// The next stop says what the ranks have obeyed already, if it is SIGTERM.
    forgives_sigterm: bool,
    /// Such a SIGTERM has come, and has not been taken.
    has_forgiven: bool,
}

impl StopRequests {
    /// Whether a stop signal has come, by either route.
    pub fn is_stopped(&self) -> bool {
        self.stopped_directly || self.requested_to_stop
    }

    /// The first stop signal.
    pub fn stopped_by(&self) -> Option<i32> {
        self.first
    }

    /// The stop that came last was a notice of preemption (`event_loop/preempt.rs`): it does not end this node's part of the job.
    pub fn forgive(&mut self) {
        self.first = None;
    }

    /// The ranks of this node have stopped because another node received a notice. A SIGTERM that this node's own launcher receives
    /// later is the same notice.
    pub fn forgive_next_sigterm(&mut self) {
        self.forgives_sigterm = !self.is_stopped();
    }

    /// Whether such a SIGTERM has come since the last call.
    pub fn take_forgiven(&mut self) -> bool {
        std::mem::take(&mut self.has_forgiven)
    }

    /// Ranks are about to run: signals are for them.
    pub fn begin_ranks(&mut self) {
        self.forgives_sigterm = false;
    }

    /// What a signal means to the supervisor, if anything. `forwarded`: signals that stop nothing. Of those sent
    /// directly only the first stop counts, and it is the same request as the first that is passed on. A second one comes
    /// from a user who presses Ctrl-C again, and that reaches the launcher process.
    pub fn event(&mut self, signal: i32, route: SignalRoute, forwarded: &BTreeSet<i32>) -> Option<SupervisorEvent> {
        match (signal, route) {
            (libc::SIGCHLD, _) | (libc::SIGWINCH, SignalRoute::Directly) => None,
            (libc::SIGTSTP, _) => Some(SupervisorEvent::Suspend),
            (libc::SIGCONT, _) => Some(SupervisorEvent::Resume),
            (_, SignalRoute::Directly) if forwarded.contains(&signal) => None,
            (_, SignalRoute::Requested) if forwarded.contains(&signal) => Some(SupervisorEvent::ForwardSignal(signal)),
            (_, SignalRoute::Directly) => {
                let is_first = !self.stopped_directly && !self.requested_to_stop;
                self.stopped_directly = true;
                is_first.then(|| self.note_stop(signal)).flatten()
            }
            (_, SignalRoute::Requested) => {
                let is_counted = self.stopped_directly && !self.requested_to_stop;
                self.requested_to_stop = true;
                (!is_counted).then(|| self.note_stop(signal)).flatten()
            }
        }
    }

    fn note_stop(&mut self, signal: i32) -> Option<SupervisorEvent> {
        if std::mem::take(&mut self.forgives_sigterm) && signal == libc::SIGTERM {
            self.has_forgiven = true;
            return None;
        }
        self.first.get_or_insert(signal);
        Some(SupervisorEvent::Stop(signal))
    }
}

#[cfg(test)]
mod tests {
    use super::SignalRoute::{Directly, Requested};
    use super::*;

    fn stops(routes: &[SignalRoute]) -> Vec<bool> {
        let mut requests = StopRequests::default();
        routes.iter().map(|route| requests.event(15, *route, &BTreeSet::new()).is_some()).collect()
    }

    #[test]
    fn a_stop_by_both_routes_counts_once() {
        assert_eq!(stops(&[Directly, Requested]), [true, false]);
        assert_eq!(stops(&[Requested, Directly]), [true, false]);
        assert_eq!(stops(&[Directly, Directly, Requested]), [true, false, false]);
    }

    #[test]
    fn a_second_stop_from_a_user_counts() {
        assert_eq!(stops(&[Requested, Requested]), [true, true]);
        assert_eq!(stops(&[Directly, Requested, Requested, Directly]), [true, false, true, false]);
        assert_eq!(stops(&[Requested, Directly, Directly, Requested]), [true, false, false, true]);
    }

    #[test]
    fn a_notice_by_both_routes_is_forgiven_and_a_later_stop_counts() {
        let mut requests = StopRequests::default();
        let none = BTreeSet::new();
        assert!(requests.event(15, Directly, &none).is_some());
        assert_eq!(requests.stopped_by(), Some(15));
        requests.forgive();
        assert!(requests.event(15, Requested, &none).is_none());
        assert_eq!((requests.stopped_by(), requests.is_stopped()), (None, true));
        assert!(requests.event(2, Requested, &none).is_some());
        assert_eq!(requests.stopped_by(), Some(2));
    }

    #[test]
    fn a_late_sigterm_of_a_notice_is_forgiven_once() {
        let (none, stop) = (BTreeSet::new(), |signal| Some(SupervisorEvent::Stop(signal)));
        let mut requests = StopRequests::default();
        requests.forgive_next_sigterm();
        assert!(!requests.take_forgiven());
        assert_eq!([Directly, Requested].map(|route| requests.event(15, route, &none)), [None, None]);
        assert_eq!([requests.take_forgiven(), requests.take_forgiven()], [true, false]);
        assert_eq!((requests.stopped_by(), requests.event(15, Requested, &none)), (None, stop(15)));
        let mut requests = StopRequests::default();
        requests.forgive_next_sigterm();
        assert_eq!([2, 15].map(|signal| requests.event(signal, Requested, &none)), [stop(2), stop(15)]);
        // It had its notice before.
        requests.forgive_next_sigterm();
        assert_eq!(requests.event(15, Requested, &none), stop(15));
        let mut requests = StopRequests::default();
        requests.forgive_next_sigterm();
        requests.begin_ranks();
        assert_eq!(requests.event(15, Requested, &none), stop(15));
    }

    #[test]
    fn a_schedulers_sigterm_is_one_request() {
        let at = Duration::from_millis;
        let mut sigterm = SchedulerSigterm::new(at(5000));
        let came = [(15, 7), (18, 8), (15, 330), (2, 400), (15, 5006), (15, 5008)];
        assert_eq!(came.map(|(signal, ms)| sigterm.repeats(signal, at(ms))), [false, false, true, false, true, false]);
        let mut users = SchedulerSigterm::new(Duration::ZERO);
        assert_eq!([1, 2].map(|ms| users.repeats(15, at(ms))), [false, false]);
    }

    #[test]
    fn forwarded_signals_are_forwarded_once() {
        let forwarded = BTreeSet::from([10]);
        let mut requests = StopRequests::default();
        assert!(requests.event(10, Directly, &forwarded).is_none());
        assert!(matches!(requests.event(10, Requested, &forwarded), Some(SupervisorEvent::ForwardSignal(10))));
        assert!(requests.event(libc::SIGCHLD, Directly, &forwarded).is_none());
        assert!(requests.event(libc::SIGWINCH, Directly, &forwarded).is_none());
        assert!(matches!(requests.event(libc::SIGTSTP, Directly, &forwarded), Some(SupervisorEvent::Suspend)));
        assert!(matches!(requests.event(libc::SIGCONT, Directly, &forwarded), Some(SupervisorEvent::Resume)));
    }
}
