//! Resource limits of this process that many ranks may exceed.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

/// Size in bytes of the longest argument or environment string that execve accepts, including its NUL (execve(2),
/// MAX_ARG_STRLEN: 32 pages of 4 KiB).
pub const MAX_ARG_STRLEN: usize = 128 * 1024;

/// Soft and hard limit of open descriptors.
pub fn open_files() -> (u64, u64) {
    getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024))
}

/// Raises the soft limit of open descriptors to `wanted` if the hard limit allows. Returns the soft limit. Children get the
/// old one back (`SpawnCommand::nofile`).
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

/// The number of descriptors that this process has open; 0 without /proc.
pub fn open_now() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |dir| dir.count() as u64)
}

/// Soft limit of processes and threads of this user; `None` without one. The superuser has none.
pub fn processes() -> Option<u64> {
    finite(Resource::RLIMIT_NPROC).filter(|_| !nix::unistd::geteuid().is_root())
}

/// Soft limit of locked memory in bytes; `None` without one. A process with CAP_IPC_LOCK has none (mlock(2)).
pub fn locked_memory() -> Option<u64> {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    finite(Resource::RLIMIT_MEMLOCK).filter(|_| capabilities.is_none_or(|all| all >> CAP_IPC_LOCK & 1 == 0))
}

fn finite(resource: Resource) -> Option<u64> {
    getrlimit(resource).ok().map(|(soft, _)| soft).filter(|soft| *soft != RLIM_INFINITY)
}
