//! Values of the store. They are shared, not copied, and count in the memory budget until their last reader has sent them.

use crate::net::server::{BudgetExceeded, MemoryBudget, OVERHEAD};
use std::fmt;
use std::sync::Arc;

/// Bytes that are stored or wait to be sent. Clones share them.
#[derive(Clone)]
pub struct StoredValue(Arc<CountedBytes>);

struct CountedBytes {
    bytes: Vec<u8>,
    counted: usize,
    budget: MemoryBudget,
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.budget.release(self.counted);
    }
}

impl StoredValue {
    /// Counts the bytes in the budget.
    pub fn new(bytes: Vec<u8>, budget: &MemoryBudget) -> Result<Self, BudgetExceeded> {
        let counted = bytes.capacity() + OVERHEAD;
        budget.reserve(counted)?;
        Ok(Self(Arc::new(CountedBytes { bytes, counted, budget: budget.clone() })))
    }

    /// Appends bytes; in place, unless there are other readers.
    pub fn append(&mut self, more: &[u8]) -> Result<(), BudgetExceeded> {
        let budget = self.0.budget.clone();
        let length = self.bytes().len() + more.len();
        let capacity = length.max(2 * self.bytes().len());
        let Some(own) = Arc::get_mut(&mut self.0) else {
            budget.check(capacity)?;
            let mut bytes = Vec::with_capacity(length);
            bytes.extend_from_slice(self.bytes());
            bytes.extend_from_slice(more);
            *self = Self::new(bytes, &budget)?;
            return Ok(());
        };
        if length > own.bytes.capacity() {
            budget.check(capacity)?;
            own.bytes.reserve_exact(capacity - own.bytes.len());
            let counted = own.bytes.capacity() + OVERHEAD;
            let before = std::mem::replace(&mut own.counted, counted);
            budget.replace(before, counted)?;
        }
        own.bytes.extend_from_slice(more);
        Ok(())
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl AsRef<[u8]> for StoredValue {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for StoredValue {
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
        let budget = MemoryBudget::new(2000);
        let value = StoredValue::new(vec![0; 1000], &budget).unwrap();
        let reader = value.clone();
        assert!(StoredValue::new(vec![0; 1000], &budget).is_err());
        drop(value);
        assert_eq!(budget.used(), 1000 + OVERHEAD);
        drop(reader);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_reader_does_not_see_what_is_appended() {
        let budget = MemoryBudget::new(10_000);
        let mut value = StoredValue::new(b"a".to_vec(), &budget).unwrap();
        let reader = value.clone();
        value.append(b"bc").unwrap();
        assert_eq!((reader.bytes(), value.bytes()), (&b"a"[..], &b"abc"[..]));
        drop(reader);
        assert_eq!(value.append(&[0; 20_000]), Err(BudgetExceeded));
        assert_eq!(value.bytes(), b"abc");
        drop(value);
        assert_eq!(budget.used(), 0);
    }
}
