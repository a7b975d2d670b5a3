//! Being told when a file grows (inotify(7)).

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Watches files for writes.
#[derive(Debug)]
pub struct GrowthWatch(Inotify);

impl GrowthWatch {
    /// Watches one file.
    pub fn new(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(path, AddWatchFlags::IN_MODIFY)?;
        Ok(Self(inotify))
    }

    /// Forgets what has been told so far.
    pub fn drain(&self) -> io::Result<()> {
        loop {
            match self.0.read_events() {
                Ok(_) => {}
                Err(Errno::EAGAIN) => return Ok(()),
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
