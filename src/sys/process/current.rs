//! This process: whether it created a handle or was forked from the process that did; whether it dies with its parent; how it
//! ends without running the exit handlers of a host program.

use nix::errno::Errno;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;

/// The exit status of a launcher process that panicked.
const PANICKED: i32 = 70;

/// Runs `body` and ends this process at once with the status that it returns. For a process that was forked from a Python
/// program, whose exit handlers and buffers must not run twice.
pub fn end(body: impl FnOnce() -> i32) -> ! {
    let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// Whether the calling thread is the main one, which in a Python program ends with the process.
pub fn is_main_thread() -> bool {
    nix::unistd::gettid() == nix::unistd::getpid()
}

/// Gives this thread a table of descriptors of its own, with these and the first three (unshare(2), close_range(2)). To be called by a
/// thread that uses no other descriptor.
pub fn keep_descriptors(kept: &[RawFd]) -> io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES)?;
    let mut kept: Vec<libc::c_uint> = kept.iter().filter_map(|fd| libc::c_uint::try_from(*fd).ok()).collect();
    kept.extend([0, 1, 2]);
    kept.sort_unstable();
    let ends = kept.iter().skip(1).map(|fd| fd.saturating_sub(1)).chain([libc::c_uint::MAX]);
    for (first, last) in kept.iter().map(|fd| fd + 1).zip(ends).filter(|(first, last)| first <= last) {
        // SAFETY: integers; the table belongs to this thread alone, which uses none of these descriptors.
        Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
    }
    Ok(())
}

/// Has the kernel kill this process when the thread that forked it ends (prctl(2), PR_SET_PDEATHSIG). Kills it now if
/// `parent`, the process that forked it, has ended.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: prctl, getppid and kill on integers.
    unsafe {
        Errno::result(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        if libc::getppid() as u32 != parent {
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
    }
    Ok(())
}

/// The process that created a handle. A process that was forked from it has copies of its handles, whose descriptors work
/// there too, but its children are not the fork's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creator(u32);

impl Creator {
    /// For a handle that is created now.
    pub fn this_process() -> Self {
        Self(process::id())
    }

    /// Whether this process created the handle.
    pub fn is_this_process(self) -> bool {
        self.0 == process::id()
    }

    /// Fails in a process that was forked from the creator.
    pub fn check(self) -> Result<(), UsedInFork> {
        if self.is_this_process() { Ok(()) } else { Err(UsedInFork { creator: self.0, fork: process::id() }) }
    }
}

/// A handle was used in a process that was forked from its creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedInFork {
    creator: u32,
    fork: u32,
}

impl std::error::Error for UsedInFork {}

impl fmt::Display for UsedInFork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { creator, fork } = self;
        write!(
            f,
            "process {creator} started these ranks, and this process, {fork}, was forked from it: call this in process {creator}"
        )
    }
}
