//! Notification of growing files (inotify(7)).

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Watches files for writes. There is one in a process, because a user may have only few inotify instances
/// (fs.inotify.max_user_instances). It is never closed, because the kernel takes up to 17 ms to close it.
#[derive(Debug)]
pub struct GrowthWatch {
    inotify: Inotify,
    /// The number of `FileWatch` of each file. Two paths of the same file have one id.
    users: Mutex<HashMap<WatchDescriptor, usize>>,
}

/// Which files have grown.
#[derive(Debug, PartialEq, Eq)]
pub enum GrownFiles {
    /// These.
    These(HashSet<WatchDescriptor>),
    /// The event queue has overflowed: any file may have grown.
    Any,
}

impl GrowthWatch {
    /// That of this process. `None` if there can be none: then files are to be checked periodically.
    pub fn of_process() -> Option<&'static Self> {
        static OF_PROCESS: OnceLock<GrowthWatch> = OnceLock::new();
        if OF_PROCESS.get().is_none() {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
            let _ = OF_PROCESS.set(Self { inotify, users: Mutex::default() });
        }
        OF_PROCESS.get()
    }

    /// Watches one more file, until the result is dropped.
    pub fn add(&'static self, path: &Path) -> io::Result<FileWatch> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let id = self.inotify.add_watch(path, AddWatchFlags::IN_MODIFY)?;
        *users.entry(id).or_default() += 1;
        Ok(FileWatch { watch: self, id })
    }

    /// The files that have grown since the last call.
    pub fn drain(&self) -> io::Result<GrownFiles> {
        let mut these = HashSet::new();
        let mut overflowed = false;
        loop {
            match self.inotify.read_events() {
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
        self.inotify.as_fd()
    }
}

/// One watched file.
#[derive(Debug)]
pub struct FileWatch {
    watch: &'static GrowthWatch,
    id: WatchDescriptor,
}

impl FileWatch {
    /// Whether the file is among those that have grown.
    pub fn is_among(&self, grown: &GrownFiles) -> bool {
        match grown {
            GrownFiles::Any => true,
            GrownFiles::These(these) => these.contains(&self.id),
        }
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        let mut users = self.watch.users.lock().unwrap_or_else(PoisonError::into_inner);
        let left = users.get(&self.id).map_or(0, |users| users.saturating_sub(1));
        if left > 0 {
            users.insert(self.id, left);
        } else {
            users.remove(&self.id);
            // The kernel has removed the watch of a deleted file.
            let _ = self.watch.inotify.rm_watch(self.id);
        }
    }
}
