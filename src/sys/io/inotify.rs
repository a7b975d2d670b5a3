//! Notification of growing files (inotify(7)).

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::HashSet;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Watches files for writes. The descriptor is never closed before the process ends, because the kernel takes up to 17 ms to
/// close it.
#[derive(Debug)]
pub struct GrowthWatch(ManuallyDrop<Inotify>);

/// One watched file. Two paths of the same file have one id.
pub type WatchId = WatchDescriptor;

/// Which files have grown.
#[derive(Debug, PartialEq, Eq)]
pub enum GrownFiles {
    /// These.
    These(HashSet<WatchId>),
    /// The event queue has overflowed: any file may have grown.
    Any,
}

impl GrownFiles {
    /// Whether no file has grown.
    pub fn is_nothing(&self) -> bool {
        matches!(self, GrownFiles::These(these) if these.is_empty())
    }
}

impl GrowthWatch {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self(ManuallyDrop::new(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?)))
    }

    /// Watches one more file.
    pub fn add(&self, path: &Path) -> io::Result<WatchId> {
        Ok(self.0.add_watch(path, AddWatchFlags::IN_MODIFY)?)
    }

    /// Stops watching one file.
    pub fn remove(&self, watched: WatchId) {
        // The kernel has removed the watch of a deleted file.
        let _ = self.0.rm_watch(watched);
    }

    /// The files that have grown since the last call.
    pub fn drain(&self) -> io::Result<GrownFiles> {
        let mut these = HashSet::new();
        let mut overflowed = false;
        loop {
            match self.0.read_events() {
                Ok(events) => {
                    overflowed |= events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW));
                    these.extend(events.iter().map(|event| event.wd));
                }
                Err(Errno::EAGAIN) if overflowed => return Ok(GrownFiles::Any),
                Err(Errno::EAGAIN) => return Ok(GrownFiles::These(these)),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for GrowthWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
