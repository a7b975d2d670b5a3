//! One request that comes in two ways is one. Who stops a job may send the same signal to every process of it
//! (systemd.kill(5), KillMode=control-group; `pkill`): to the front, which passes it on, and to the supervisor.

use crate::supervise::Event;
use std::collections::BTreeSet;

/// How a signal came to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Past the front.
    Directly,
    /// The front had it, and asks.
    Asked,
}

/// What has been asked for.
#[derive(Debug, Default)]
pub struct Requests {
    stopped_directly: bool,
    asked_to_stop: bool,
    first: Option<i32>,
}

impl Requests {
    /// Whether a stop has been asked for, in whichever way.
    pub fn is_stopped(&self) -> bool {
        self.stopped_directly || self.asked_to_stop
    }

    /// The signal that asked first.
    pub fn stopped_by(&self) -> Option<i32> {
        self.first
    }

    /// What a signal means, if anything. `notify`: those that stop nothing. Past the front only the first stop
    /// counts, and it is the same as the first that the front asks for: a second one is for people, who press
    /// again because they do not want to wait.
    pub fn event(&mut self, signal: i32, way: Way, notify: &BTreeSet<i32>) -> Option<Event> {
        match (signal, way) {
            (libc::SIGCHLD, _) => None,
            (libc::SIGTSTP, _) => Some(Event::Suspend),
            (libc::SIGCONT, _) => Some(Event::Resume),
            (_, Way::Directly) if notify.contains(&signal) => None,
            (_, Way::Asked) if notify.contains(&signal) => Some(Event::Notify(signal)),
            (_, Way::Directly) => {
                self.first.get_or_insert(signal);
                let first = !self.stopped_directly && !self.asked_to_stop;
                self.stopped_directly = true;
                first.then_some(Event::Stop(signal))
            }
            (_, Way::Asked) => {
                self.first.get_or_insert(signal);
                let told = self.stopped_directly && !self.asked_to_stop;
                self.asked_to_stop = true;
                (!told).then_some(Event::Stop(signal))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Way::{Asked, Directly};
    use super::*;

    fn stops(ways: &[Way]) -> Vec<bool> {
        let mut requests = Requests::default();
        ways.iter().map(|way| requests.event(15, *way, &BTreeSet::new()).is_some()).collect()
    }

    #[test]
    fn a_stop_that_comes_in_both_ways_is_one() {
        assert_eq!(stops(&[Directly, Asked]), [true, false]);
        assert_eq!(stops(&[Asked, Directly]), [true, false]);
        assert_eq!(stops(&[Directly, Directly, Asked]), [true, false, false]);
    }

    #[test]
    fn the_second_that_people_send_counts() {
        assert_eq!(stops(&[Asked, Asked]), [true, true]);
        assert_eq!(stops(&[Directly, Asked, Asked, Directly]), [true, false, true, false]);
        assert_eq!(stops(&[Asked, Directly, Directly, Asked]), [true, false, false, true]);
    }

    #[test]
    fn what_is_passed_on_is_passed_on_once() {
        let notify = BTreeSet::from([10]);
        let mut requests = Requests::default();
        assert!(requests.event(10, Directly, &notify).is_none());
        assert!(matches!(requests.event(10, Asked, &notify), Some(Event::Notify(10))));
        assert!(requests.event(libc::SIGCHLD, Directly, &notify).is_none());
        assert!(matches!(requests.event(libc::SIGTSTP, Directly, &notify), Some(Event::Suspend)));
        assert!(matches!(requests.event(libc::SIGCONT, Directly, &notify), Some(Event::Resume)));
    }
}
