//! Limits of this process that starting many ranks runs into.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The longest single argument or environment string that execve takes, its NUL included
/// (execve(2), MAX_ARG_STRLEN: 32 pages of 4 KiB).
pub const MAX_ARG_STRLEN: usize = 128 * 1024;

/// Soft and hard limit of open descriptors.
pub fn open_files() -> (u64, u64) {
    getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024))
}

/// Raises the soft limit of open descriptors to `wanted` if the hard limit allows; says what holds
/// now. Children get the old soft limit back (see `spawn::Start::nofile`).
pub fn raise_open_files(wanted: u64) -> u64 {
    let (soft, hard) = open_files();
    if soft >= wanted || wanted > hard {
        return soft;
    }
    match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
        Ok(()) => wanted,
        Err(_) => soft,
    }
}

/// How many descriptors this process holds now; 0 when `/proc` is not there to ask.
pub fn open_now() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |dir| dir.count() as u64)
}
