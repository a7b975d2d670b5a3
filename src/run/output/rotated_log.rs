//! A log that is shortened while its rank writes: its older part is removed from the beginning of the file (fallocate(2)). A captured
//! stream keeps what the console has not shown, up to its limits.

use crate::run::output::log_files::TAIL_BYTES;
use crate::sys::clock;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::resource::{Resource, getrlimit};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A captured stream that the console has shown is shortened at this part of its maximum size.
const SHOWN_PART: u64 = 8;
/// Its oldest bytes are removed at least so many at a time.
const STEP: u64 = 1 << 20;
/// Bytes of the disk that a captured stream has in advance, so that a rank whose user asked for no log does not fail on a full
/// disk.
const RESERVE: u64 = 256 << 10;

/// One rank's log in one attempt. Positions count from the original beginning of the log, before anything was removed.
#[derive(Debug)]
pub struct RotatedLog {
    pub(super) path: PathBuf,
    pub(super) state: Mutex<RotatorState>,
    /// Whether no rank writes to it any more.
    pub(super) closed: AtomicBool,
    /// The limits of a captured stream.
    pub(super) captured: Option<CaptureLimits>,
}

/// The limits of a captured stream, whose bytes stay until the console has shown them.
#[derive(Clone, Copy, Debug)]
pub(super) struct CaptureLimits {
    /// Maximum size.
    pub(super) max_size: u64,
    /// How long the console may show nothing before bytes above that size are removed unshown.
    pub(super) patience: Duration,
}

#[derive(Debug)]
pub(super) struct RotatorState {
    pub(super) file: File,
    /// Bytes that were removed from the beginning of the file.
    pub(super) removed: u64,
    /// Bytes at the beginning of the file that are a hole and read as zeroes. File systems that cannot collapse a range
    /// (tmpfs, btrfs) punch a hole instead.
    pub(super) hole: u64,
    /// The size at which it is rotated next.
    pub(super) limit: u64,
    /// The position from which on the console has not shown it yet, if it is to show it.
    pub(super) unshown: Option<u64>,
    /// When the console has shown something of it last.
    pub(super) shown_at: Duration,
    /// Since when it has had its maximum size, or its disk has been full.
    pub(super) full_since: Option<Duration>,
    /// Whether the console shows nothing any more.
    pub(super) is_abandoned: bool,
    /// The position from which on it has not been read for the console.
    pub(super) unread: u64,
    /// Bytes that were removed before they were read for the console.
    pub(super) lost: u64,
    /// The position before which those were removed that had been read.
    pub(super) cut: u64,
    /// The size up to which the file has its part of the disk, if it has one in advance.
    pub(super) reserved: Option<u64>,
}

impl RotatorState {
    /// Bytes that the log has.
    fn held(&self) -> u64 {
        self.file.metadata().map_or(0, |m| m.len()).saturating_sub(self.hole)
    }

    /// Bytes that were read for the console and removed, and that it has not shown.
    pub(super) fn cut_off(&self) -> u64 {
        self.unshown.map_or(0, |unshown| self.cut.saturating_sub(unshown))
    }

    /// Whether the console has shown nothing for so long, although the log is full.
    fn is_stalled(&self, patience: Duration) -> bool {
        let waits_since = self.full_since.map(|since| since.max(self.shown_at));
        self.is_abandoned || waits_since.is_some_and(|since| clock::now().saturating_sub(since) >= patience)
    }

    /// The bytes of a captured stream that need not stay.
    fn removable(&self, limits: CaptureLimits, is_full: bool) -> Range<u64> {
        let Ok(found) = self.file.metadata() else { return 0..0 };
        let (size, block) = (found.len(), found.blksize().max(1));
        let shown = self.unshown.map_or(u64::MAX, |position| position.saturating_sub(self.removed));
        let held = size.saturating_sub(self.hole);
        let is_too_long = (is_full || held >= limits.max_size) && self.is_stalled(limits.patience);
        // A quarter at a time.
        let too_old = if is_too_long {
            self.hole + held.min(limits.max_size) / 4 + held.saturating_sub(limits.max_size)
        } else {
            0
        };
        let end = (size - TAIL_BYTES.min(size)).min(shown.max(too_old));
        self.hole..end / block * block
    }

    /// Removes all bytes before `end`. A file system with another block size returns EINVAL.
    pub(super) fn remove_before(&mut self, end: u64) -> io::Result<()> {
        let range = |mode| fallocate(&self.file, mode, 0, i64::try_from(end).unwrap_or(i64::MAX));
        if self.hole == 0 && range(FallocateFlags::FALLOC_FL_COLLAPSE_RANGE).is_ok() {
            self.removed += end;
            self.reserved = self.reserved.map(|reserved| reserved.saturating_sub(end));
            return Ok(());
        }
        range(FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE)?;
        self.hole = end;
        Ok(())
    }

    /// Keeps a part of the disk for the writes to come. If the disk is full, what has been shown is removed now.
    fn extend_reserve(&mut self) {
        let size = self.file.metadata().map_or(0, |m| m.len());
        if self.reserved.is_none_or(|reserved| size + RESERVE / 2 < reserved) {
            return;
        }
        match reserve(&self.file, size) {
            Ok(()) => self.reserved = Some(size + RESERVE),
            Err(_) => self.limit = 0,
        }
    }
}

/// Gives a captured stream of this size its part of the disk. A file system that cannot do that gives none. Fails if the disk
/// is full, or files may not get so large (RLIMIT_FSIZE).
pub fn reserve(file: &File, size: u64) -> io::Result<()> {
    if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(limit, _)| limit < size + RESERVE) {
        return Err(Errno::EFBIG.into());
    }
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, i64::try_from(size).unwrap_or(0), RESERVE as i64) {
        Err(error @ (Errno::ENOSPC | Errno::EDQUOT)) => Err(error.into()),
        _ => Ok(()),
    }
}

impl RotatedLog {
    /// A log with this maximum size. `patience`: of a captured stream, how long the console may show nothing before bytes above that
    /// size are removed unshown.
    pub(super) fn open(path: &Path, max_size: u64, patience: Option<Duration>) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        let state = RotatorState {
            file,
            removed: 0,
            hole: 0,
            limit: max_size,
            unshown: None,
            shown_at: clock::now(),
            full_since: None,
            is_abandoned: false,
            unread: 0,
            lost: 0,
            cut: 0,
            reserved: patience.map(|_| RESERVE),
        };
        let captured = patience.map(|patience| CaptureLimits { max_size, patience });
        Ok(Self { path: path.to_owned(), state: Mutex::new(state), closed: AtomicBool::new(false), captured })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, RotatorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from `file`, which is this log, and advances `position`. Skips bytes that were removed before they were read.
    pub fn read_at(&self, file: &File, buffer: &mut [u8], position: &mut u64) -> io::Result<usize> {
        let mut state = self.state();
        *position = (*position).max(state.removed + state.hole);
        let read = file.read_at(buffer, *position - state.removed)?;
        *position += read as u64;
        state.unread = *position;
        Ok(read)
    }

    /// Keeps bytes from this position on until the console has shown them.
    pub fn keep_from(&self, position: u64) {
        let mut state = self.state();
        state.unshown = self.captured.map(|_| state.unshown.map_or(position, |before| before.max(position)));
        (state.shown_at, state.full_since) = (clock::now(), None);
        state.unread = state.unread.max(position);
    }

    /// Keeps no bytes for the console any more.
    pub fn keep_nothing(&self) {
        self.state().unshown = None;
    }

    /// Whether it is a captured stream: what is removed of it unread is in no other file, and counts as lost.
    pub fn is_captured(&self) -> bool {
        self.captured.is_some()
    }

    /// Notes that the console's reader has gone, so that nothing waits for it. The log keeps its newest bytes.
    pub fn abandon(&self) {
        self.state().is_abandoned = true;
    }

    /// Bytes that were read for the console and removed, and that it has not shown.
    pub fn cut_off(&self) -> u64 {
        self.state().cut_off()
    }

    /// Whether a captured stream may grow. If it has its maximum size, shortens it first. The console is waited for only so long.
    pub fn make_room(&self) -> bool {
        let Some(limits) = self.captured else { return true };
        if self.state().held() < limits.max_size {
            return true;
        }
        self.shorten(false);
        let state = self.state();
        // If the file system cannot shorten it, it grows.
        state.held() < limits.max_size || state.is_stalled(limits.patience)
    }

    /// Shortens a captured stream: removes what the console has shown. Of a stream that has reached its maximum size, and of which
    /// the console has shown nothing for long, also the oldest bytes that it has not shown. `is_full`: its disk is full, so it has
    /// reached its maximum size.
    pub fn shorten(&self, is_full: bool) {
        let Some(limits) = self.captured else { return };
        let mut state = self.state();
        let held = state.held();
        state.extend_reserve();
        let is_full = is_full || state.limit == 0;
        if is_full || held >= limits.max_size {
            state.full_since.get_or_insert_with(clock::now);
        }
        let step = if is_full { 1 } else { STEP };
        let is_worth_it = |range: &Range<u64>| range.end.saturating_sub(range.start) >= step;
        if !is_full && held < limits.max_size / SHOWN_PART || !is_worth_it(&state.removable(limits, is_full)) {
            return;
        }
        let Ok(file) = state.file.try_clone() else { return };
        drop(state);
        // Written back now, so that nothing waits for the disk while the lock is held.
        let _ = file.sync_data();
        let mut state = self.state();
        let range = state.removable(limits, is_full);
        if is_worth_it(&range) {
            let end = state.removed + range.end;
            let unread = state.unread.saturating_sub(state.removed).max(range.start);
            let lost = if state.unshown.is_some() { range.end.saturating_sub(unread) } else { 0 };
            if state.remove_before(range.end).is_ok() {
                state.lost += lost;
                state.cut = state.cut.max(end.min(state.unread));
                state.limit = limits.max_size;
            }
        }
    }

    /// The offset in the file of a position.
    pub fn offset(&self, position: u64) -> u64 {
        let state = self.state();
        position.saturating_sub(state.removed).max(state.hole)
    }
}
