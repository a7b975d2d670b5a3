//! The settings of an embedded master.

use crate::net::deadline::Clock;
use std::time::Duration;

/// Which job a master serves, and how.
#[derive(Clone)]
pub struct MasterConfig {
    /// The job's name.
    pub job: String,
    /// The key that nodes have to prove to have, if there is one.
    pub key: Option<String>,
    /// How long a node may send nothing before it is considered lost.
    pub lease: Duration,
    /// The most connections, clamped to 16..=65536. Above that, the oldest connection that is not a node's link is closed.
    pub connections: usize,
    /// The clock.
    pub clock: Clock,
}

impl MasterConfig {
    /// Without a key, and with as many connections as the usual limit of descriptors, 1024, allows beside other files.
    pub fn new(job: &str, lease: Duration, clock: Clock) -> Self {
        Self { job: job.to_owned(), key: None, lease, connections: 768, clock }
    }
}
