//! When a job is looked at because no rank has written anything, and when it counts as one that hangs: silence alone is no hang.

use std::time::Duration;

/// Looks in the time that no rank has to write anything.
const LOOKS: u32 = 4;
/// The longest time to the next look at ranks that hang: other nodes act on what was seen last.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The time from the first further look at ranks that hold up other nodes to the second; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// What a look at the ranks has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangLook {
    /// No rank has been seen to write anything for so long, which is too short.
    NotSilent(Duration),
    /// All ranks are silent, and a stack has moved.
    Moved,
    /// All ranks are silent, and no stack has moved.
    Still,
    /// The same, and some have been idle since their start while those of other nodes may wait for them. These nodes act on a
    /// further look.
    StillAtStart,
    /// The ranks could not be looked at.
    Failed,
}

/// What happens to the ranks, as far as hangs are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangEvent {
    /// The ranks of an attempt run, or run again after a suspension.
    Running,
    /// They stop, have ended, or are suspended by the user.
    NotRunning,
    /// The time of `HangWatch::due` has come.
    Due,
    /// The ranks have been looked at.
    Looked(HangLook),
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangAction {
    /// Look at the ranks: at their logs, and at their stacks if no rank has written anything for the timeout.
    Look,
    /// Report that the job hangs.
    Report,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HangPhase {
    /// Nothing is to be looked at.
    Off,
    /// The ranks are looked at next at this time. `reported`: the hang has been reported, and they have not moved since.
    Waiting { look_at: Duration, reported: bool },
    /// They are being looked at.
    Looking { reported: bool },
}

/// Decides when ranks are looked at. A hang is reported once, and again only after the ranks have moved meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct HangWatch {
    timeout: Option<Duration>,
    phase: HangPhase,
    /// The time to the look after the next one, where ranks hold up other nodes.
    pause: Duration,
}

impl HangWatch {
    /// `timeout`: how long no rank has to write anything; `None`: hangs are not looked for.
    pub fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, phase: HangPhase::Off, pause: Duration::ZERO }
    }

    /// When `HangEvent::Due` is due; `None`: not before another event.
    pub fn due(&self) -> Option<Duration> {
        if let HangPhase::Waiting { look_at, .. } = self.phase { Some(look_at) } else { None }
    }

    /// Whether a hang has been reported, and nothing has been seen to move since.
    pub fn is_reported(&self) -> bool {
        matches!(self.phase, HangPhase::Waiting { reported: true, .. } | HangPhase::Looking { reported: true })
    }

    /// Handles an event. Only this changes the state.
    pub fn handle(&mut self, now: Duration, event: HangEvent) -> Option<HangAction> {
        let timeout = self.timeout?;
        let later = now.saturating_add(timeout);
        let (phase, action) = match (event, self.phase) {
            (HangEvent::NotRunning, _) => (HangPhase::Off, None),
            (HangEvent::Running, HangPhase::Off) => {
                (HangPhase::Waiting { look_at: now.saturating_add(timeout / LOOKS), reported: false }, None)
            }
            (HangEvent::Due, HangPhase::Waiting { look_at, reported }) if now >= look_at => {
                (HangPhase::Looking { reported }, Some(HangAction::Look))
            }
            (HangEvent::Looked(look), HangPhase::Looking { reported }) => match look {
                HangLook::NotSilent(ago) => {
                    // Silence counts from the first look that has seen the last output.
                    let rest = timeout.saturating_sub(ago).clamp(timeout / 20, timeout / LOOKS);
                    (HangPhase::Waiting { look_at: now.saturating_add(rest), reported: false }, None)
                }
                HangLook::Moved => (HangPhase::Waiting { look_at: later, reported: false }, None),
                HangLook::Still | HangLook::StillAtStart => {
                    let action = (!reported).then_some(HangAction::Report);
                    // Those of other nodes may report later than this one: further looks follow at growing intervals, the first
                    // at once.
                    let (pause, next) = match look {
                        HangLook::StillAtStart if reported => (self.pause, (self.pause * 2).max(FIRST_PAUSE)),
                        HangLook::StillAtStart => (Duration::ZERO, FIRST_PAUSE),
                        _ => (LOOK_AGAIN, LOOK_AGAIN),
                    };
                    self.pause = next.min(LOOK_AGAIN);
                    let soon = now.saturating_add(timeout.min(pause));
                    (HangPhase::Waiting { look_at: soon, reported: true }, action)
                }
                HangLook::Failed => (HangPhase::Waiting { look_at: later, reported }, None),
            },
            (_, phase) => (phase, None),
        };
        self.phase = phase;
        action
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(100);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn looking() -> HangWatch {
        let mut watch = HangWatch::new(Some(T));
        assert_eq!(watch.handle(at(0), HangEvent::Running), None);
        assert_eq!((watch.due(), watch.handle(at(24), HangEvent::Due)), (Some(at(25)), None));
        assert_eq!(watch.handle(at(100), HangEvent::Due), Some(HangAction::Look));
        assert_eq!(watch.due(), None, "no second look at once");
        watch
    }

    #[test]
    fn a_hang_is_reported_once_until_the_ranks_move() {
        let mut watch = looking();
        assert!(!watch.is_reported());
        assert_eq!(watch.handle(at(105), HangEvent::Looked(HangLook::Still)), Some(HangAction::Report));
        assert_eq!((watch.is_reported(), watch.due()), (true, Some(at(165))), "what hangs is looked at sooner");
        let mut next = |now: u64, look| {
            assert_eq!(watch.handle(at(now), HangEvent::Due), Some(HangAction::Look));
            let was_reported = watch.is_reported();
            (was_reported, watch.handle(at(now), HangEvent::Looked(look)), watch.is_reported())
        };
        assert_eq!(next(205, HangLook::Still), (true, None, true));
        assert_eq!(next(305, HangLook::Failed), (true, None, true));
        assert_eq!(next(405, HangLook::Still), (true, None, true));
        assert_eq!(next(505, HangLook::Moved), (true, None, false));
        assert_eq!(next(605, HangLook::Still), (false, Some(HangAction::Report), true));
    }

    #[test]
    fn ranks_that_hold_up_other_nodes_are_looked_at_again_at_once_and_then_less_and_less_often() {
        let mut watch = looking();
        let mut now = 105;
        assert_eq!(watch.handle(at(now), HangEvent::Looked(HangLook::StillAtStart)), Some(HangAction::Report));
        for pause in [0, 5, 10, 20, 40, 60, 60] {
            assert_eq!(watch.due(), Some(at(now + pause)));
            assert_eq!(watch.handle(at(now + pause), HangEvent::Due), Some(HangAction::Look));
            now += pause + 5;
            assert_eq!(watch.handle(at(now), HangEvent::Looked(HangLook::StillAtStart)), None);
        }
        // They have gone on, and hang again.
        watch.handle(at(now + 60), HangEvent::Due);
        watch.handle(at(now + 65), HangEvent::Looked(HangLook::Moved));
        watch.handle(at(now + 165), HangEvent::Due);
        let action = watch.handle(at(now + 170), HangEvent::Looked(HangLook::StillAtStart));
        assert_eq!((action, watch.due()), (Some(HangAction::Report), Some(at(now + 170))));
        let mut short = HangWatch::new(Some(at(2)));
        short.handle(at(0), HangEvent::Running);
        for now in [2, 4, 8] {
            short.handle(at(now), HangEvent::Due);
            short.handle(at(now + 2), HangEvent::Looked(HangLook::StillAtStart));
        }
        assert_eq!(short.due(), Some(at(12)), "no later than the timeout");
    }

    #[test]
    fn the_next_look_is_when_the_silence_may_be_long_enough() {
        let mut watch = looking();
        watch.handle(at(100), HangEvent::Looked(HangLook::NotSilent(at(30))));
        assert_eq!(watch.due(), Some(at(125)));
        let mut watch = looking();
        watch.handle(at(100), HangEvent::Looked(HangLook::NotSilent(at(90))));
        assert_eq!(watch.due(), Some(at(110)));
        let mut watch = looking();
        watch.handle(at(100), HangEvent::Looked(HangLook::NotSilent(at(99))));
        assert_eq!(watch.due(), Some(at(105)));
    }

    #[test]
    fn a_stop_ends_the_watch_and_a_new_attempt_begins_it_anew() {
        let mut watch = looking();
        watch.handle(at(101), HangEvent::NotRunning);
        assert_eq!(watch.handle(at(105), HangEvent::Looked(HangLook::Still)), None, "the answer comes too late");
        assert_eq!(watch.due(), None);
        watch.handle(at(200), HangEvent::Running);
        watch.handle(at(210), HangEvent::Running);
        assert_eq!(watch.due(), Some(at(225)));
    }

    #[test]
    fn without_a_timeout_nothing_is_ever_due() {
        let mut watch = HangWatch::new(None);
        assert_eq!(watch.handle(at(0), HangEvent::Running), None);
        assert_eq!((watch.due(), watch.handle(at(9), HangEvent::Due)), (None, None));
    }
}
