//! What one store holds at most.

/// Limits of one store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreLimits {
    /// Bytes: one half for what is stored, the other for what is received and sent.
    pub bytes: usize,
    /// Connections. Above that, the oldest connection without a request is closed.
    pub connections: usize,
}

impl StoreLimits {
    /// A quarter of the memory (4 GiB if unknown), but between 32 MiB and 4 GiB; and a connection for each spare descriptor,
    /// but between 16 and 65536.
    pub fn of(memory: Option<u64>, descriptors: u64) -> Self {
        let quarter = memory.map_or(1 << 30, |bytes| bytes / 4).clamp(32 << 20, 4 << 30);
        Self {
            bytes: usize::try_from(quarter).unwrap_or(usize::MAX),
            connections: descriptors.clamp(16, 1 << 16) as usize,
        }
    }
}

impl Default for StoreLimits {
    /// 1 GiB, and as many connections as the usual limit of descriptors, 1024, allows beside other files.
    fn default() -> Self {
        Self::of(None, 768)
    }
}
