//! Notices that a watch delivers nothing although its keys change: etcd, or a proxy before it, may keep a stream open that it has
//! forgotten, while requests work. The stream is opened again, and etcd repeats what was missed.

use super::client::{EtcdCaller, EtcdError};
use super::codec;
use super::wire::WireHandle;
use crate::net::thread;
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tracing::warn;

/// The keys of a watch at one time: what changes whenever one is written or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Snapshot {
    /// The revision that wrote the newest key, and the number of keys.
    keys: (i64, i64),
    /// The revision at which they were read.
    read_at: i64,
}

/// Compares what a watch delivers with what requests find.
#[derive(Debug, Default)]
struct Comparison {
    last: Option<Snapshot>,
    /// Keys have changed after this revision, and the watch has had the time between two looks to deliver that.
    overdue: Option<i64>,
}

impl Comparison {
    /// Takes note of another look, and of the revision up to which the watch has delivered before it. Whether the watch is silent.
    fn note(&mut self, found: Snapshot, delivered: i64) -> bool {
        let is_silent = self.overdue.is_some_and(|after| delivered <= after);
        let changed_after = self.last.filter(|last| last.keys != found.keys).map(|last| last.read_at);
        // A key that was written before the first look.
        let (newest, _) = found.keys;
        let written_after = (newest > delivered).then_some(newest - 1);
        self.last = Some(found);
        self.overdue = changed_after.into_iter().chain(written_after).max();
        is_silent
    }
}

/// Checks a watch until its connection is closed.
pub(super) struct WatchCheck {
    pub caller: EtcdCaller,
    pub prefix: String,
    /// The connection of the watch.
    pub stream: Arc<WireHandle>,
    /// The revision up to which the watch has delivered.
    pub delivered: Arc<AtomicI64>,
    /// The time between two looks.
    pub interval: Duration,
}

impl WatchCheck {
    /// Starts it, in a thread of its own. Returns its connection.
    pub fn start(self) -> io::Result<Arc<WireHandle>> {
        let wire = Arc::clone(&self.caller.wire);
        thread::spawn("etcd-check", move || self.run())?;
        Ok(wire)
    }

    fn run(self) {
        let mut comparison = Comparison::default();
        let mut pause = Duration::ZERO;
        while !self.caller.wire.pause(pause) {
            pause = self.interval;
            let delivered = self.delivered.load(Ordering::Acquire);
            // A stream that is not open is opened by its own thread, and a request that fails says nothing about the watch.
            let Ok(found) = self.look() else {
                comparison = Comparison::default();
                continue;
            };
            if comparison.note(found, delivered) && self.stream.streams.load(Ordering::Relaxed) {
                warn!(
                    "etcd: a watch has delivered nothing for {:.0} s although requests find changes; it is opened again",
                    self.interval.as_secs_f64()
                );
                self.stream.disconnect();
            }
        }
    }

    fn look(&self) -> Result<Snapshot, EtcdError> {
        let mut request = codec::range(&self.prefix);
        if let (Value::Object(request), Value::Object(more)) =
            (&mut request, json!({ "limit": "1", "sort_order": "DESCEND", "sort_target": "MOD", "keys_only": true }))
        {
            request.extend(more);
        }
        let response = self.caller.call("/v3/kv/range", &request)?;
        let newest = codec::key_values(&response).first().map_or(0, |kv| kv.written);
        Ok(Snapshot { keys: (newest, codec::number(&response["count"])), read_at: codec::revision(&response) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(looks: &[(i64, i64, i64, i64)]) -> Vec<bool> {
        let mut comparison = Comparison::default();
        let note = |&(newest, count, read_at, delivered): &(i64, i64, i64, i64)| {
            comparison.note(Snapshot { keys: (newest, count), read_at }, delivered)
        };
        looks.iter().map(note).collect()
    }

    #[test]
    fn a_watch_is_silent_if_a_change_is_not_delivered_until_the_next_look() {
        // Newest key, number of keys, revision of the look, delivered.
        assert_eq!(notes(&[(5, 2, 9, 5), (12, 2, 14, 5), (12, 2, 20, 5)]), [false, false, true], "a key was written");
        assert_eq!(notes(&[(5, 2, 9, 5), (3, 1, 14, 5), (3, 1, 20, 5)]), [false, false, true], "a key was deleted");
        assert_eq!(notes(&[(5, 2, 9, 5), (12, 2, 14, 5), (12, 2, 20, 12)]), [false, false, false], "it was late");
        assert_eq!(notes(&[(5, 2, 9, 5), (5, 2, 14, 5), (5, 2, 20, 5)]), [false, false, false], "nothing changes");
        assert_eq!(notes(&[(12, 2, 14, 5), (12, 2, 20, 5)]), [false, true], "before the first look");
        assert_eq!(notes(&[(12, 2, 14, 5), (12, 2, 20, 12), (12, 2, 30, 12)]), [false, false, false], "it was late");
        assert_eq!(
            notes(&[(5, 2, 9, 5), (12, 2, 14, 10), (12, 2, 20, 10)]),
            [false, false, true],
            "only the first of two"
        );
        let repeated = [(5, 2, 9, 5), (12, 2, 14, 5), (15, 2, 20, 5), (15, 2, 30, 5)];
        assert_eq!(notes(&repeated), [false, false, true, true]);
    }
}
