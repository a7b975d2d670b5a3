//! What the node knows of its contact with etcd: each change is reported once, and a new reason again.

use super::event::EventQueue;
use crate::rendezvous::backend::BackendEvent;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The reports of one node.
pub struct ContactReports {
    events: Arc<EventQueue>,
    /// Whether etcd answers the renewals of the lease.
    pub has_contact: bool,
    /// Since when, if it does.
    since: Duration,
    lost: Option<String>,
    hindered: Option<String>,
    /// The watches that cannot be opened: 0 for that of the board, the term for that of a leader.
    failing_watches: BTreeSet<i64>,
}

impl ContactReports {
    /// Of a node that has had no contact yet.
    pub fn new(events: Arc<EventQueue>) -> Self {
        Self {
            events,
            has_contact: false,
            since: Duration::ZERO,
            lost: None,
            hindered: None,
            failing_watches: BTreeSet::new(),
        }
    }

    /// Whether the node has received that contact is lost.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Etcd does not answer.
    pub fn lose(&mut self, why: String) {
        self.has_contact = false;
        if self.lost.as_ref() != Some(&why) {
            self.lost = Some(why.clone());
            self.events.push(BackendEvent::Lost { why });
        }
    }

    /// Etcd answers again.
    pub fn note_contact(&mut self, now: Duration) {
        if !std::mem::replace(&mut self.has_contact, true) {
            self.since = now;
        }
    }

    /// Etcd renews the lease, and does not do what else this node asks for.
    pub fn hinder(&mut self, why: String) {
        let was_lost = self.has_contact && self.lost.take().is_some();
        if self.has_contact && (was_lost || self.hindered.as_ref() != Some(&why)) {
            self.hindered = Some(why.clone());
            self.events.push(BackendEvent::Hindered { why });
        }
    }

    /// A watch fails again and again, also `patience` after contact is back.
    pub fn note_failing_watch(&mut self, term: i64, why: String, now: Duration, patience: Duration) {
        self.failing_watches.insert(term);
        if now >= self.since + patience {
            self.hinder(why);
        }
    }

    /// A watch works, or is another.
    pub fn note_watch(&mut self, term: i64) {
        self.failing_watches.remove(&term);
    }

    /// Etcd has done all that this node asked for, which leads in this term, or in none (0).
    pub fn restore(&mut self, term: i64) {
        self.failing_watches.retain(|watch| [0, term].contains(watch));
        let lost = self.lost.take_if(|_| self.has_contact);
        let hindered = self.hindered.take_if(|_| self.failing_watches.is_empty());
        if lost.or(hindered).is_some() {
            self.events.push(BackendEvent::Back);
            let still = self.hindered.clone().into_iter();
            still.for_each(|why| self.events.push(BackendEvent::Hindered { why }));
        }
    }
}
