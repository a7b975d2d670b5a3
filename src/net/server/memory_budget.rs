//! A limit on the memory that a server holds for all its clients together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a value, a key or a queued chunk costs beside its own bytes, roughly.
pub const OVERHEAD: usize = 96;

/// A count of bytes with a limit. Clones share the count.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    used: Arc<AtomicUsize>,
    limit: usize,
}

/// The limit would be exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory budget of the server is used up")]
pub struct BudgetExceeded;

impl MemoryBudget {
    /// An unused budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { used: Arc::default(), limit }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Counts `bytes` more, or nothing if they exceed the limit.
    pub fn reserve(&self, bytes: usize) -> Result<(), BudgetExceeded> {
        self.check(bytes)?;
        self.used.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Checks that `bytes` more would not exceed the limit.
    pub fn check(&self, bytes: usize) -> Result<(), BudgetExceeded> {
        if self.used().saturating_add(bytes) > self.limit { Err(BudgetExceeded) } else { Ok(()) }
    }

    /// Counts `bytes` less.
    pub fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    /// Counts `now` bytes in place of `before`, also beyond the limit. An error says that the limit is exceeded.
    pub fn replace(&self, before: usize, now: usize) -> Result<(), BudgetExceeded> {
        self.used.fetch_add(now, Relaxed);
        self.release(before);
        self.check(0)
    }
}
