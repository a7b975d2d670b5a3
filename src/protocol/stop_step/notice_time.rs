//! The time of a notice, as one node knows it. Each message of the agreement has the time that its node knows. One that was
//! shortened is sent again until the others know it, also after the nodes have agreed.

use std::time::Duration;

/// How much later another node's time may be: messages take a while.
const TOLERANCE: Duration = Duration::from_secs(2);
/// The longest pause before a time is sent again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct NoticeTime {
    /// When the notice's time is over.
    ends: Option<Duration>,
    /// The nodes to which this one sends: their numbers, and the time that each has sent last.
    others: Vec<(usize, Option<Duration>)>,
    first_pause: Duration,
    pause: Duration,
    /// When the time is sent again; `None`: all others know it.
    resends: Option<Duration>,
}

impl NoticeTime {
    /// `others`: the nodes to which this one sends.
    pub fn new(others: impl Iterator<Item = usize>, first_pause: Duration) -> Self {
        let others = others.map(|node| (node, None)).collect();
        Self { ends: None, others, first_pause, pause: first_pause, resends: None }
    }

    /// The time is not later than this. The others hear of it at once if it has become shorter.
    pub fn limit(&mut self, now: Duration, ends: Duration) {
        if self.ends.is_none_or(|known| ends < known) {
            (self.ends, self.pause, self.resends) = (Some(ends), self.first_pause, Some(now));
        }
    }

    /// Another node knows this time. `asks`: it does not know whether this node does, and needs a message to learn it.
    pub fn hear(&mut self, now: Duration, (from, ends): (usize, Duration), asks: bool) {
        if let Some((_, known)) = self.others.iter_mut().find(|(node, _)| *node == from) {
            *known = Some(ends);
        }
        if self.is_known() {
            self.resends = None;
        }
        if asks {
            self.resends = Some(now);
        }
        self.limit(now, ends);
    }

    /// When the time has to be sent; `None`: not before the next event.
    pub fn due(&self) -> Option<Duration> {
        self.resends.filter(|_| !self.others.is_empty())
    }

    /// A message has been sent to the others, with the time.
    pub fn note_sent(&mut self, now: Duration) {
        let next = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        // It is useless once it is over.
        self.resends = self.ends.filter(|ends| next < *ends && !self.is_known()).map(|_| next);
    }

    /// Whether all others know a time that is not later.
    pub fn is_known(&self) -> bool {
        let latest = self.ends.map_or(Duration::MAX, |ends| ends.saturating_add(TOLERANCE));
        self.others.iter().all(|(_, known)| known.is_some_and(|known| known <= latest))
    }
}
