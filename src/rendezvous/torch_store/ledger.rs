//! How much is held for all clients together. Values are shared, not copied, and are counted until the last
//! reader has them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a value, a key or a wait costs beside its own bytes, roughly.
pub const OVERHEAD: usize = 96;

/// A count of bytes with a limit.
#[derive(Clone, Debug)]
pub struct Ledger {
    used: Arc<AtomicUsize>,
    limit: usize,
}

/// More would be held than the limit allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl Ledger {
    /// An empty one that takes `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { used: Arc::default(), limit }
    }

    /// Bytes held now.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Counts `bytes` more, or nothing if that is too much.
    pub fn take(&self, bytes: usize) -> Result<(), Full> {
        self.room(bytes)?;
        self.used.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Whether there is room for `bytes` more.
    pub fn room(&self, bytes: usize) -> Result<(), Full> {
        if self.used().saturating_add(bytes) > self.limit { Err(Full) } else { Ok(()) }
    }

    /// Counts `bytes` less.
    pub fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    /// Counts `now` where `before` was counted, though it be too much; whether it is not.
    pub fn turn(&self, before: usize, now: usize) -> Result<(), Full> {
        self.used.fetch_add(now, Relaxed);
        self.give(before);
        self.room(0)
    }
}

/// Bytes that are stored or on their way to somebody. Clones share them.
#[derive(Clone)]
pub struct Value(Arc<Held>);

struct Held {
    bytes: Vec<u8>,
    counted: usize,
    ledger: Ledger,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ledger.give(self.counted);
    }
}

impl Value {
    /// Counts these.
    pub fn new(bytes: Vec<u8>, ledger: &Ledger) -> Result<Self, Full> {
        let counted = bytes.capacity() + OVERHEAD;
        ledger.take(counted)?;
        Ok(Self(Arc::new(Held { bytes, counted, ledger: ledger.clone() })))
    }

    /// Puts more at the end; in place, unless somebody still reads what was there.
    pub fn append(&mut self, more: &[u8]) -> Result<(), Full> {
        let ledger = self.0.ledger.clone();
        let length = self.bytes().len() + more.len();
        let capacity = length.max(2 * self.bytes().len());
        let Some(held) = Arc::get_mut(&mut self.0) else {
            ledger.room(capacity)?;
            let mut bytes = Vec::with_capacity(length);
            bytes.extend_from_slice(self.bytes());
            bytes.extend_from_slice(more);
            *self = Self::new(bytes, &ledger)?;
            return Ok(());
        };
        if length > held.bytes.capacity() {
            ledger.room(capacity)?;
            held.bytes.reserve_exact(capacity - held.bytes.len());
            let counted = held.bytes.capacity() + OVERHEAD;
            let before = std::mem::replace(&mut held.counted, counted);
            ledger.turn(before, counted)?;
        }
        held.bytes.extend_from_slice(more);
        Ok(())
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    #[test]
    fn a_value_counts_until_its_last_reader_has_gone() {
        let ledger = Ledger::new(2000);
        let value = Value::new(vec![0; 1000], &ledger).unwrap();
        let reader = value.clone();
        assert!(Value::new(vec![0; 1000], &ledger).is_err());
        drop(value);
        assert_eq!(ledger.used(), 1000 + OVERHEAD);
        drop(reader);
        assert_eq!(ledger.used(), 0);
    }

    #[test]
    fn who_reads_a_value_does_not_see_what_is_appended() {
        let ledger = Ledger::new(10_000);
        let mut value = Value::new(b"a".to_vec(), &ledger).unwrap();
        let reader = value.clone();
        value.append(b"bc").unwrap();
        assert_eq!((reader.bytes(), value.bytes()), (&b"a"[..], &b"abc"[..]));
        drop(reader);
        assert_eq!(value.append(&[0; 20_000]), Err(Full));
        assert_eq!(value.bytes(), b"abc");
        drop(value);
        assert_eq!(ledger.used(), 0);
    }
}
