//! Words of memory that processes share (memfd_create(2)): read and written without a lock and without a system call.

use crate::sys::io::fd;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// No process can change the length, or undo that. Without memfd_create(2) only processes of this user can change it.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// The longest memory that is opened by a path.
const MOST_WORDS: usize = 1 << 20;

/// Words that start at 0. A fork of this process shares them, and so does a process that opens their descriptor through /proc.
#[derive(Debug)]
pub struct SharedWords {
    fd: OwnedFd,
    start: NonNull<AtomicU64>,
    count: usize,
}

/// The words of another process, which can only be read.
#[derive(Debug)]
pub struct ForeignWords(SharedWords);

/// What a process does with the words of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    ReadAndWrite,
}

// SAFETY: the memory is mapped until the drop, and is only accessed as atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// So many new words, in memory of this name.
    pub fn new(name: &str, count: usize) -> io::Result<Self> {
        let fd = fd::memory(name)?;
        let bytes = i64::try_from(count * size_of::<u64>()).map_err(|_| io::ErrorKind::InvalidInput)?;
        nix::unistd::ftruncate(&fd, bytes)?;
        if !is_unlinked_file(&fd) {
            fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS))?;
        }
        Self::map(fd, count, Access::ReadAndWrite)
    }

    /// Opens the words of another process by a path below /proc, to read and to write them. An error if it is no such memory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let count = words_of(&file)?;
        Self::map(fd::above_stdio(file.into())?, count, Access::ReadAndWrite)
    }

    /// How many words there are.
    pub fn count(&self) -> usize {
        self.count
    }

    fn map(fd: OwnedFd, count: usize, access: Access) -> io::Result<Self> {
        let length = NonZeroUsize::new(count * size_of::<u64>()).ok_or(io::ErrorKind::InvalidInput)?;
        let access = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::ReadAndWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: a new mapping of memory as long as this, which no process can shorten (`SEALS`), or an unlinked file that only this
        // user's processes can open, of which none shortens it.
        let start = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, &fd, 0)? };
        Ok(Self { fd, start: start.cast(), count })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "there are {} words", self.count);
        // SAFETY: the index is within the mapping, which is page-aligned, lives as long as `self`, and holds valid u64s.
        unsafe { self.start.add(index).as_ref() }
    }

    /// The word at this index, below `count`.
    pub fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::SeqCst)
    }

    /// Replaces the word at this index, below `count`.
    pub fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::SeqCst);
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl ForeignWords {
    /// Opens the words of another process by a path below /proc. An error if it is no such memory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).open(path)?;
        let count = words_of(&file)?;
        SharedWords::map(fd::above_stdio(file.into())?, count, Access::Read).map(Self)
    }

    /// How many words there are.
    pub fn count(&self) -> usize {
        self.0.count
    }

    /// The word at this index, below `count`.
    pub fn get(&self, index: usize) -> u64 {
        self.0.get(index)
    }
}

/// How many words a file has, if it is memory of this kind.
fn words_of(file: &File) -> io::Result<usize> {
    let metadata = file.metadata()?;
    let count = usize::try_from(metadata.len()).unwrap_or(usize::MAX) / size_of::<u64>();
    let is_whole = metadata.len() % size_of::<u64>() as u64 == 0;
    // An ordinary file has no seals, such as the one that a number reused since leads to.
    let is_sealed =
        fcntl(file, FcntlArg::F_GET_SEALS).is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(SEALS));
    let is_memory = is_sealed || is_unlinked_file(file);
    if is_memory && is_whole && (1..=MOST_WORDS).contains(&count) {
        Ok(count)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Whether it is the file that `fd::memory` makes without memfd_create(2).
fn is_unlinked_file(fd: impl AsFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()));
    link.is_ok_and(|link| fd::is_unlinked_file(&link, "rlaunch-"))
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; no reference to it outlives `self`.
        let _ = unsafe { munmap(self.start.cast(), self.count * size_of::<u64>()) };
    }
}
