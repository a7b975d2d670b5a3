//! Counts of bytes sent and received.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes sent and received. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Traffic(Arc<TrafficCounts>);

#[derive(Debug, Default)]
struct TrafficCounts {
    received: AtomicU64,
    sent: AtomicU64,
}

impl Traffic {
    /// Counts bytes that were received.
    pub fn add_received(&self, bytes: usize) {
        self.0.received.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts bytes that were sent.
    pub fn add_sent(&self, bytes: usize) {
        self.0.sent.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.0.received.load(Relaxed)
    }

    /// Bytes sent so far.
    pub fn sent(&self) -> u64 {
        self.0.sent.load(Relaxed)
    }
}
