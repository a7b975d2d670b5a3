//! Words of memory that processes share (memfd_create(2)): read and written without a lock and without a system call.

use crate::sys::io::fd;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many words there are.
pub const WORDS: usize = 4;
const BYTES: usize = WORDS * size_of::<u64>();

/// Words that start at 0. A fork of this process shares them.
#[derive(Debug)]
pub struct SharedWords {
    start: NonNull<AtomicU64>,
}

// SAFETY: the memory is mapped until the drop, and is only accessed as atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// New words, in memory of this name.
    pub fn new(name: &str) -> io::Result<Self> {
        let fd = fd::memory(name)?;
        nix::unistd::ftruncate(&fd, BYTES as i64)?;
        let length = NonZeroUsize::new(BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping of a file that this process alone can shorten, and does not.
        let start =
            unsafe { mmap(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, &fd, 0)? };
        Ok(Self { start: start.cast() })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "there are {WORDS} words");
        // SAFETY: the index is within the mapping, which is page-aligned, lives as long as `self`, and holds valid u64s.
        unsafe { self.start.add(index).as_ref() }
    }

    /// The word at this index, below `WORDS`.
    pub fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::SeqCst)
    }

    /// Replaces the word at this index, below `WORDS`.
    pub fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::SeqCst);
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; no reference to it outlives `self`.
        let _ = unsafe { munmap(self.start.cast(), BYTES) };
    }
}
