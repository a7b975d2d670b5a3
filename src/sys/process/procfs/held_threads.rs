//! Which threads of this process the kernel holds in a read of `/proc/PID`.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many threads may wait for good before nothing more is read: each costs its stack.
pub const MOST_HELD: usize = 32;

/// The threads of this process that wait for the memory lock of another one right now. An entry is two process ids: that of this
/// process, so that the entries do not count in a fork, and that of the other. No mutex: at a fork, another thread could have
/// taken it.
#[derive(Debug)]
pub struct HeldThreads(pub(super) [AtomicU64; MOST_HELD]);

/// Those of all readers: once a process has delayed one of them, no other waits for it.
pub static HELD: HeldThreads = HeldThreads::new();

impl HeldThreads {
    /// None.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MOST_HELD])
    }

    fn entry(pid: i32) -> u64 {
        u64::from(std::process::id()) << 32 | u64::from(pid.cast_unsigned())
    }

    /// Whether an entry is empty, or of the process that this one was forked from.
    pub fn is_free(entry: u64) -> bool {
        entry >> 32 != u64::from(std::process::id())
    }

    /// Whether a thread waits for this process.
    pub fn contains(&self, pid: i32) -> bool {
        self.0.iter().any(|entry| entry.load(Ordering::SeqCst) == Self::entry(pid))
    }

    /// Whether there is room for no further thread.
    pub fn is_full(&self) -> bool {
        !self.0.iter().any(|entry| Self::is_free(entry.load(Ordering::SeqCst)))
    }

    /// Adds a thread that waits for this process. Whether there was room.
    pub fn add(&self, pid: i32) -> bool {
        let take = |old| Self::is_free(old).then(|| Self::entry(pid));
        self.0.iter().any(|entry| entry.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok())
    }

    /// Removes one entry of a process.
    pub fn remove(&self, pid: i32) {
        let own = Self::entry(pid);
        let _ = self.0.iter().any(|entry| entry.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok());
    }
}
