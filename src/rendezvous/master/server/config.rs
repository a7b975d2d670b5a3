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
    /// Memory for all connections together, bytes.
    pub memory: usize,
    /// The clock.
    pub clock: Clock,
}

impl MasterConfig {
    /// Without a key, with as many connections as the usual limit of descriptors, 1024, allows beside other files, and 512 MiB.
    pub fn new(job: &str, lease: Duration, clock: Clock) -> Self {
        Self { job: job.to_owned(), key: None, lease, connections: 768, memory: Self::memory_of(None), clock }
    }

    /// An eighth of the memory that the launcher may use, but between 32 and 512 MiB.
    pub fn memory_of(total: Option<u64>) -> usize {
        let eighth = total.map_or(512 << 20, |bytes| bytes / 8).clamp(32 << 20, 512 << 20);
        usize::try_from(eighth).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_container_is_not_filled() {
        let mib = |total: Option<u64>| MasterConfig::memory_of(total.map(|mib| mib << 20)) >> 20;
        assert_eq!([mib(None), mib(Some(64)), mib(Some(1024)), mib(Some(1 << 20))], [512, 32, 128, 512]);
    }
}
