//! Being told when files grow (inotify(7)).

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::HashSet;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Watches files for writes, until the end of this process: the kernel takes up to 17 ms to close an inotify
/// descriptor, which somebody would wait for.
#[derive(Debug)]
pub struct GrowthWatch(ManuallyDrop<Inotify>);

/// One watched file. Two paths of the same file are one.
pub type Watched = WatchDescriptor;

/// Which files have grown.
#[derive(Debug, PartialEq, Eq)]
pub enum Grown {
    /// These.
    These(HashSet<Watched>),
    /// There was more news than the kernel keeps: any of them may have.
    Any,
}

impl Grown {
    /// Whether none has.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Grown::These(these) if these.is_empty())
    }
}

impl GrowthWatch {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self(ManuallyDrop::new(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?)))
    }

    /// Watches one more file.
    pub fn add(&self, path: &Path) -> io::Result<Watched> {
        Ok(self.0.add_watch(path, AddWatchFlags::IN_MODIFY)?)
    }

    /// Watches one file no more.
    pub fn remove(&self, watched: Watched) {
        // A file that is gone is not watched any more.
        let _ = self.0.rm_watch(watched);
    }

    /// Who has grown since the last call.
    pub fn drain(&self) -> io::Result<Grown> {
        let mut these = HashSet::new();
        let mut overflowed = false;
        loop {
            match self.0.read_events() {
                Ok(events) => {
                    overflowed |= events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW));
                    these.extend(events.iter().map(|event| event.wd));
                }
                Err(Errno::EAGAIN) if overflowed => return Ok(Grown::Any),
                Err(Errno::EAGAIN) => return Ok(Grown::These(these)),
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
