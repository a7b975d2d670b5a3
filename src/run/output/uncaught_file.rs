//! The file in which a rank's Python notes the exception that ends it (`rlaunch_rank.py`). It is anonymous, so nothing of it
//! stays behind; the rank opens it by its path in /proc, for which it has to run as the launcher's user (proc_pid_fd(5)).
//! `rlaunch.heartbeat()` renews its time.

use crate::report::cause::uncaught::{ProcessIdentity, RankNotes, UncaughtException, parse};
use crate::sys::io::fd;
use crate::sys::process::procfs;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// The variable with the file's path.
pub const VARIABLE: &str = "RLAUNCH_EXCEPTION_FILE";

/// Longer notes are cut.
const LONGEST: usize = 64 * 1024;

/// The file of one rank, for one attempt after the other.
pub struct UncaughtFile(File);

impl UncaughtFile {
    /// An empty file. Fails where its path would lead a rank to the file of another process.
    pub fn new() -> io::Result<Self> {
        procfs::verify().map_err(io::Error::other)?;
        Ok(Self(File::from(fd::memory("rlaunch-exception")?)))
    }

    /// The same file, without the note of the attempt before.
    pub fn emptied(self) -> io::Result<Self> {
        self.0.set_len(0)?;
        Ok(self)
    }

    /// Where processes other than this one find it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// What this process of the rank has noted so far.
    pub fn read(&self, rank: ProcessIdentity) -> (UncaughtException, RankNotes) {
        let mut bytes = vec![0; LONGEST];
        let read = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        parse(&bytes[..read], rank)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    #[test]
    fn what_another_writes_to_the_path_is_read() {
        let (file, rank) = (UncaughtFile::new().unwrap(), ProcessIdentity { pid: 7, started: 99 });
        assert_eq!(file.read(rank).0, UncaughtException::Unknown);
        std::fs::write(file.path(), "7 99 started\n").unwrap();
        assert_eq!(file.read(rank).0, UncaughtException::None);
        let file = file.emptied().unwrap();
        assert_eq!(file.read(rank).0, UncaughtException::Unknown);
        std::fs::write(file.path(), format!("7 99 started\n7 99 {}\n", "x".repeat(2 * LONGEST))).unwrap();
        assert_eq!(file.read(rank).0, UncaughtException::Unknown);
    }
}
