//! State machine of one round on one node: when its ranks start, when the other nodes hear that they stop, and when they
//! have to stop because of the other nodes.
//!
//! Pure. The event loop (`run::event_loop`) passes events in and carries out the actions. Jobs without other nodes use
//! the first two phases only.

use super::event::RankStop;
use std::time::Duration;

/// Phase of a round on this node. Phases only advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoundPhase {
    /// The ranks wait for the preload server.
    #[default]
    Preloading,
    /// The ranks have been started.
    Running,
    /// The ranks stop for a reason of this node, which it has reported to the other nodes.
    StopReported,
    /// The ranks stop because the round is over.
    RoundOver,
    /// The ranks are killed, because the other nodes may continue without this one.
    CutOff,
}

/// Input from the event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundEvent {
    /// The preload server has imported its modules, or the job has none.
    PreloadDone,
    /// Ranks stop because one of them failed or because a signal asked for it.
    RanksStopping,
    /// The round is over for this node: the job's state says so, this node may not take part any more, or contact with the
    /// rendezvous backend has been lost for too long.
    RoundEnded(RankStop),
}

/// What the event loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundAction {
    /// Start the ranks.
    StartRanks,
    /// Report to the other nodes why the ranks of this node stop.
    ReportStop,
    /// Stop the ranks.
    StopRanks(RankStop),
}

impl RoundPhase {
    /// Handles one event. Only this changes the phase.
    pub fn handle(&mut self, event: RoundEvent) -> Option<RoundAction> {
        use RankStop::{AtOnce, WithGrace};
        use RoundPhase::{CutOff, Preloading, RoundOver, Running, StopReported};
        let (next, action) = match (*self, event) {
            (Preloading, RoundEvent::PreloadDone) => (Running, RoundAction::StartRanks),
            (Running, RoundEvent::RanksStopping) => (StopReported, RoundAction::ReportStop),
            (Preloading | Running | StopReported, RoundEvent::RoundEnded(WithGrace)) => {
                (RoundOver, RoundAction::StopRanks(WithGrace))
            }
            // Whatever the ranks were asked to stop for: two rounds must never run at once.
            (Preloading | Running | StopReported | RoundOver, RoundEvent::RoundEnded(AtOnce)) => {
                (CutOff, RoundAction::StopRanks(AtOnce))
            }
            _ => return None,
        };
        *self = next;
        Some(action)
    }

    /// When the connection to the other nodes has to be checked again, if that time is `due`.
    pub fn next_check(self, due: Option<Duration>) -> Option<Duration> {
        due.filter(|_| self != RoundPhase::CutOff)
    }
}

#[cfg(test)]
mod tests {
    use super::RoundEvent::{PreloadDone, RanksStopping};
    use super::*;

    const DUE: Option<Duration> = Some(Duration::from_secs(3));
    const ENDED: RoundEvent = RoundEvent::RoundEnded(RankStop::WithGrace);
    const CUT_OFF: RoundEvent = RoundEvent::RoundEnded(RankStop::AtOnce);

    fn actions(events: &[RoundEvent]) -> Vec<Option<RoundAction>> {
        let mut phase = RoundPhase::default();
        events.iter().map(|event| phase.handle(*event)).collect()
    }

    #[test]
    fn ranks_start_once() {
        assert_eq!(actions(&[PreloadDone, PreloadDone]), [Some(RoundAction::StartRanks), None]);
    }

    #[test]
    fn the_other_nodes_hear_of_a_stop_once() {
        let seen = actions(&[PreloadDone, RanksStopping, RanksStopping, ENDED, RanksStopping]);
        assert_eq!(
            seen[1..],
            [Some(RoundAction::ReportStop), None, Some(RoundAction::StopRanks(RankStop::WithGrace)), None]
        );
    }

    #[test]
    fn the_end_of_a_round_stops_ranks_once_and_needs_no_report() {
        let seen = actions(&[PreloadDone, ENDED, ENDED, RanksStopping, PreloadDone]);
        assert_eq!(seen[1..], [Some(RoundAction::StopRanks(RankStop::WithGrace)), None, None, None]);
        assert_eq!(actions(&[ENDED, PreloadDone])[1], None, "no rank starts after the round");
    }

    #[test]
    fn ranks_that_the_others_do_not_wait_for_are_killed_in_every_phase_and_once() {
        let kill = Some(RoundAction::StopRanks(RankStop::AtOnce));
        for before in [&[][..], &[PreloadDone], &[PreloadDone, RanksStopping], &[PreloadDone, ENDED]] {
            let mut phase = RoundPhase::default();
            for event in before {
                phase.handle(*event);
            }
            assert_eq!(phase.next_check(DUE), DUE);
            assert_eq!(phase.handle(CUT_OFF), kill, "after {before:?}");
            assert_eq!(phase.next_check(DUE), None);
            for event in [PreloadDone, RanksStopping, ENDED, CUT_OFF] {
                assert_eq!(phase.handle(event), None);
            }
        }
    }

    #[test]
    fn phases_only_advance() {
        let events = [PreloadDone, RanksStopping, ENDED, CUT_OFF];
        let phases = [
            RoundPhase::Preloading,
            RoundPhase::Running,
            RoundPhase::StopReported,
            RoundPhase::RoundOver,
            RoundPhase::CutOff,
        ];
        for before in phases {
            for event in events {
                let mut phase = before;
                let action = phase.handle(event);
                assert!(if action.is_some() { phase > before } else { phase == before }, "{before:?} {event:?}");
            }
        }
    }
}
