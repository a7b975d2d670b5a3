//! What counts as a request to stop. One request may reach a launcher as several signals: by two routes (systemd.kill(5) with
//! KillMode=control-group; `pkill`), from a wrapper that passes on what its group receives too (`uv run`, GNU timeout), or from a
//! scheduler that repeats it. Only the same signal again at human speed is a second request.

use crate::supervise::SupervisorEvent;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long after the first signal of a kind on a route further ones are the same request.
pub const SAME_REQUEST: Duration = Duration::from_millis(1500);

/// How a request reached the supervisor process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopRoute {
    /// A signal that was sent to the supervisor process itself.
    Directly,
    /// A signal that was sent to the launcher process, which passed it on.
    PassedOn,
    /// `rlaunch stop`, by the control socket.
    User,
}

/// What a stop signal means after those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCount {
    /// The first request.
    First,
    /// An earlier signal once more: by another route, or too soon to come from a user who has waited.
    Same,
    /// Another signal than those before: the next step of a platform that has not waited for the end (notebooks and CI send SIGINT, then
    /// SIGHUP or SIGTERM), which leaves the grace period as it is.
    Other,
    /// An earlier signal again, at human speed: the ranks are killed at once.
    Again,
}

impl StopCount {
    /// The word for it in `events.jsonl`.
    pub fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Same => "same",
            Self::Other => "other",
            Self::Again => "again",
        }
    }
}

/// When signals of a kind came first, by route: one of the processes may have been stopped while the signal came.
#[derive(Clone, Debug)]
struct SeenSignal {
    signal: i32,
    first: BTreeMap<StopRoute, Duration>,
}

/// Tells further requests from the first one. Both processes of a launch have one.
#[derive(Clone, Debug, Default)]
pub struct StopTable {
    /// How long after the first SIGTERM a scheduler repeats it; zero: never.
    same_sigterm: Duration,
    seen: Vec<SeenSignal>,
}

impl StopTable {
    /// A table without a signal. `same_sigterm`: how long after the first SIGTERM a scheduler repeats it.
    pub fn new(same_sigterm: Duration) -> Self {
        Self { same_sigterm, seen: Vec::new() }
    }

    /// Notes a stop signal that came at this time.
    pub fn count(&mut self, signal: i32, route: StopRoute, at: Duration) -> StopCount {
        let is_first = self.seen.is_empty();
        let Some(seen) = self.seen.iter_mut().find(|seen| seen.signal == signal) else {
            self.seen.push(SeenSignal { signal, first: BTreeMap::from([(route, at)]) });
            return if is_first { StopCount::First } else { StopCount::Other };
        };
        let window = if signal == libc::SIGTERM { SAME_REQUEST.max(self.same_sigterm) } else { SAME_REQUEST };
        let first = *seen.first.entry(route).or_insert(at);
        // `rlaunch stop` says itself how long it gives the ranks.
        let is_same = route == StopRoute::User || at.saturating_sub(first) < window;
        if is_same { StopCount::Same } else { StopCount::Again }
    }

    fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

/// A signal or a request, and what it means to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The signal.
    pub signal: i32,
    /// How it came.
    pub route: StopRoute,
    /// How it counts, if it asks the job to stop.
    pub count: Option<StopCount>,
    /// What it means to the supervisor, if anything.
    pub event: Option<SupervisorEvent>,
}

impl Arrival {
    /// Whether it stops the job, or ends the grace period of a stop.
    pub fn is_stop(&self) -> bool {
        matches!(self.event, Some(SupervisorEvent::Stop(_) | SupervisorEvent::StopAgain(_)))
    }
}

/// The requests so far.
#[derive(Debug, Default)]
pub struct StopRequests {
    table: StopTable,
    first: Option<i32>,
    ranks_run: bool,
    /// The next stop says what the ranks have obeyed already, if it is SIGTERM.
    forgives_sigterm: bool,
    /// Such a SIGTERM has come, and has not been taken.
    has_forgiven: bool,
    is_suspended: bool,
}

impl StopRequests {
    /// No request yet. `same_sigterm`: as for `StopTable`.
    pub fn new(same_sigterm: Duration) -> Self {
        Self { table: StopTable::new(same_sigterm), ..Self::default() }
    }

    /// Whether a stop has been requested.
    pub fn is_stopped(&self) -> bool {
        !self.table.is_empty()
    }

    /// The first stop signal.
    pub fn stopped_by(&self) -> Option<i32> {
        self.first
    }

    /// Whether the user has suspended the job.
    pub fn is_suspended(&self) -> bool {
        self.is_suspended
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
        (self.forgives_sigterm, self.ranks_run) = (false, true);
    }

    /// The ranks have ended.
    pub fn end_ranks(&mut self) {
        self.ranks_run = false;
    }

    /// What a signal means that came at this time. `forwarded`: signals that stop nothing.
    pub fn handle(&mut self, signal: i32, route: StopRoute, at: Duration, forwarded: &BTreeSet<i32>) -> Arrival {
        let (mut count, is_passed_on) = (None, route == StopRoute::PassedOn);
        let event = match signal {
            libc::SIGTSTP => {
                self.is_suspended = true;
                Some(SupervisorEvent::Suspend)
            }
            libc::SIGCONT => {
                self.is_suspended = false;
                Some(SupervisorEvent::Resume)
            }
            // It reaches ranks once, though a signal to both processes comes twice.
            _ if route != StopRoute::User && forwarded.contains(&signal) => {
                is_passed_on.then_some(SupervisorEvent::ForwardSignal(signal))
            }
            libc::SIGWINCH => None,
            _ => {
                let counted = self.table.count(signal, route, at);
                count = Some(counted);
                self.is_stop(signal, counted, route).then(|| {
                    self.is_suspended = false;
                    self.first.get_or_insert(signal);
                    match counted {
                        StopCount::Again => SupervisorEvent::StopAgain(signal),
                        _ => SupervisorEvent::Stop(signal),
                    }
                })
            }
        };
        Arrival { signal, route, count, event }
    }

    fn is_stop(&mut self, signal: i32, count: StopCount, route: StopRoute) -> bool {
        if std::mem::take(&mut self.forgives_sigterm) && signal == libc::SIGTERM && route != StopRoute::User {
            self.has_forgiven = true;
            return false;
        }
        // After a notice nothing is left to be stopped but the wait for other nodes.
        let ends_wait =
            !self.ranks_run && self.first.is_none() && (count == StopCount::Other || route == StopRoute::User);
        matches!(count, StopCount::First | StopCount::Again) || ends_wait
    }
}

#[cfg(test)]
mod tests {
    use super::StopCount::{Again, First, Other, Same};
    use super::StopRoute::{Directly, PassedOn, User};
    use super::*;
    use proptest::prelude::*;

    const TERM: i32 = libc::SIGTERM;
    const INT: i32 = libc::SIGINT;
    const HUP: i32 = libc::SIGHUP;
    const QUIT: i32 = libc::SIGQUIT;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn counts(same_sigterm: u64, came: &[(i32, StopRoute, u64)]) -> Vec<StopCount> {
        let mut table = StopTable::new(at(same_sigterm));
        came.iter().map(|(signal, route, millis)| table.count(*signal, *route, at(*millis))).collect()
    }

    fn passed_on(same_sigterm: u64, came: &[(i32, u64)]) -> Vec<StopCount> {
        let came: Vec<_> = came.iter().map(|(signal, millis)| (*signal, PassedOn, *millis)).collect();
        counts(same_sigterm, &came)
    }

    #[test]
    fn senders_that_send_twice_are_one_request() {
        for (sender, came) in [
            ("uv run; supervisord with stopasgroup; GNU timeout", &[(TERM, 0), (TERM, 1)][..]),
            ("an entry point that traps SIGTERM", &[(TERM, 0), (TERM, 20)]),
            ("the kubelet and systemd at a shutdown", &[(TERM, 0), (TERM, 1000)]),
            ("three layers of wrappers", &[(TERM, 0), (TERM, 10), (TERM, 20), (TERM, 1499)]),
        ] {
            let expected: Vec<_> = std::iter::once(First).chain(vec![Same; came.len() - 1]).collect();
            assert_eq!(passed_on(0, came), expected, "{sender}");
        }
        for (sender, came) in [
            ("GitHub Actions", &[(INT, 0), (TERM, 7500)][..]),
            ("a notebook", &[(INT, 0), (HUP, 100), (INT, 300), (HUP, 400)]),
            ("a scope of systemd with SendSIGHUP", &[(TERM, 0), (HUP, 0)]),
            ("a container's platform, then Ctrl-C and Ctrl-\\", &[(TERM, 0), (INT, 9000), (QUIT, 20_000)]),
        ] {
            assert!(!passed_on(0, came).contains(&Again), "{sender}");
        }
    }

    #[test]
    fn the_same_signal_at_human_speed_is_a_second_request() {
        assert_eq!(passed_on(0, &[(TERM, 0), (TERM, 1500)]), [First, Again]);
        assert_eq!(passed_on(0, &[(INT, 5), (INT, 700), (INT, 1505)]), [First, Same, Again]);
        assert_eq!(
            passed_on(0, &[(TERM, 0), (INT, 10_000), (INT, 10_020), (INT, 12_000)]),
            [First, Other, Same, Again]
        );
        assert_eq!(passed_on(0, &[(TERM, 0), (INT, 500), (TERM, 1600)]), [First, Other, Again]);
    }

    #[test]
    fn a_schedulers_sigterm_is_one_request() {
        // SIGCONT between them is no stop.
        let came = [(TERM, 7), (TERM, 330), (INT, 400), (TERM, 5006), (TERM, 5007)];
        assert_eq!(passed_on(5000, &came), [First, Same, Other, Same, Again]);
        assert_eq!(passed_on(5000, &[(INT, 0), (INT, 1500)]), [First, Again], "SIGTERM alone");
        assert_eq!(passed_on(5, &[(TERM, 0), (TERM, 100)]), [First, Same], "never less than for others");
    }

    #[test]
    fn a_request_by_several_routes_counts_once_however_late_it_is_passed_on() {
        assert_eq!(counts(0, &[(TERM, Directly, 0), (TERM, PassedOn, 60_000)]), [First, Same]);
        assert_eq!(counts(0, &[(TERM, PassedOn, 0), (TERM, Directly, 60_000)]), [First, Same]);
        // `rlaunch stop`, then a wrapper or a scheduler that sends twice.
        let twice =
            [(TERM, User, 0), (TERM, User, 9000), (TERM, PassedOn, 9001), (TERM, PassedOn, 9002), (TERM, User, 20_000)];
        assert_eq!(counts(0, &twice), [First, Same, Same, Same, Same]);
        let scheduler = [(TERM, User, 0), (TERM, PassedOn, 60_000), (TERM, PassedOn, 64_999), (TERM, PassedOn, 65_000)];
        assert_eq!(counts(5000, &scheduler), [First, Same, Same, Again]);
    }

    fn histories() -> impl Strategy<Value = Vec<(i32, StopRoute, u64)>> {
        let signal = prop_oneof![Just(TERM), Just(INT), Just(HUP), Just(QUIT)];
        let route = prop_oneof![Just(Directly), Just(PassedOn), Just(User)];
        prop::collection::vec((signal, route, 0_u64..4000), 1..12).prop_map(|steps| {
            let mut now = 0;
            steps
                .into_iter()
                .map(|(signal, route, after)| {
                    now += after;
                    (signal, route, now)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn only_the_same_signal_on_the_same_route_and_late_shortens_a_grace_period(came in histories(), same in 0_u64..6000) {
            for (index, (count, (signal, route, now))) in counts(same, &came).into_iter().zip(&came).enumerate() {
                let before: Vec<_> = came[..index].iter().filter(|(other, ..)| other == signal).collect();
                let first = before.iter().find(|(_, other, _)| other == route).map(|(.., first)| now - first);
                prop_assert_eq!(count == First, index == 0);
                prop_assert_eq!(count == Other, index > 0 && before.is_empty());
                let window = if *signal == TERM { same.max(1500) } else { 1500 };
                let is_late = first.is_some_and(|passed| passed >= window);
                prop_assert_eq!(count == Again, is_late && *route != User);
            }
        }

        #[test]
        fn stops_are_requested_by_the_first_and_by_repetitions_alone(came in histories()) {
            let mut requests = StopRequests::new(Duration::ZERO);
            requests.begin_ranks();
            for (signal, route, now) in &came {
                let arrival = requests.handle(*signal, *route, at(*now), &BTreeSet::new());
                prop_assert_eq!(arrival.is_stop(), matches!(arrival.count, Some(First | Again)));
                prop_assert_eq!(requests.stopped_by(), Some(came[0].0));
            }
        }
    }

    /// The stops among these, with signals by routes at times.
    fn stops(requests: &mut StopRequests, came: &[(i32, StopRoute, u64)]) -> Vec<bool> {
        let none = BTreeSet::new();
        came.iter()
            .map(|(signal, route, millis)| requests.handle(*signal, *route, at(*millis), &none).is_stop())
            .collect()
    }

    #[test]
    fn after_a_notice_a_stop_counts() {
        let mut requests = StopRequests::default();
        requests.begin_ranks();
        assert_eq!(stops(&mut requests, &[(TERM, Directly, 0)]), [true]);
        assert_eq!(requests.stopped_by(), Some(TERM));
        requests.forgive();
        assert_eq!(stops(&mut requests, &[(TERM, PassedOn, 1), (INT, PassedOn, 2), (TERM, User, 3)]), [false; 3]);
        assert_eq!((requests.stopped_by(), requests.is_stopped()), (None, true));
        requests.end_ranks();
        let mut other = StopRequests::default();
        other.begin_ranks();
        stops(&mut other, &[(TERM, PassedOn, 0)]);
        other.forgive();
        other.end_ranks();
        assert_eq!(stops(&mut requests, &[(HUP, PassedOn, 3)]), [true], "it ends the wait for other nodes");
        assert_eq!(requests.stopped_by(), Some(HUP));
        assert_eq!(stops(&mut other, &[(TERM, PassedOn, 9), (TERM, User, 10)]), [false, true]);
        assert_eq!(other.stopped_by(), Some(TERM));
    }

    #[test]
    fn a_late_sigterm_of_a_notice_is_forgiven_once() {
        let mut requests = StopRequests::default();
        requests.forgive_next_sigterm();
        assert!(!requests.take_forgiven());
        assert_eq!(stops(&mut requests, &[(TERM, Directly, 0), (TERM, PassedOn, 0)]), [false; 2]);
        assert_eq!([requests.take_forgiven(), requests.take_forgiven()], [true, false]);
        assert_eq!((requests.stopped_by(), stops(&mut requests, &[(TERM, PassedOn, 1500)])), (None, vec![true]));
        let mut requests = StopRequests::default();
        requests.forgive_next_sigterm();
        assert_eq!(stops(&mut requests, &[(INT, PassedOn, 0), (TERM, PassedOn, 0)]), [true, false]);
        // It had its notice before.
        requests.forgive_next_sigterm();
        assert_eq!(stops(&mut requests, &[(TERM, PassedOn, 1500)]), [true]);
        for begins in [false, true] {
            let mut requests = StopRequests::default();
            requests.forgive_next_sigterm();
            if begins {
                requests.begin_ranks();
            }
            let route = if begins { PassedOn } else { User };
            assert_eq!(stops(&mut requests, &[(TERM, route, 0)]), [true]);
        }
    }

    #[test]
    fn forwarded_signals_are_forwarded_once_and_a_suspension_is_remembered() {
        let forwarded = BTreeSet::from([10, TERM]);
        let mut requests = StopRequests::default();
        let mut event = |signal, route| requests.handle(signal, route, at(0), &forwarded).event;
        assert_eq!(event(10, Directly), None);
        assert_eq!(event(10, PassedOn), Some(SupervisorEvent::ForwardSignal(10)));
        assert_eq!(event(TERM, PassedOn), Some(SupervisorEvent::ForwardSignal(TERM)));
        assert_eq!(event(libc::SIGWINCH, Directly), None);
        assert_eq!(event(libc::SIGTSTP, Directly), Some(SupervisorEvent::Suspend));
        assert!(requests.is_suspended() && !requests.is_stopped());
        let mut event = |signal, route| requests.handle(signal, route, at(0), &forwarded).event;
        assert_eq!(event(libc::SIGCONT, Directly), Some(SupervisorEvent::Resume));
        assert_eq!(event(libc::SIGTSTP, Directly), Some(SupervisorEvent::Suspend));
        assert_eq!(event(TERM, User), Some(SupervisorEvent::Stop(TERM)), "though SIGTERM is forwarded");
        assert!(!requests.is_suspended() && requests.is_stopped());
    }
}
