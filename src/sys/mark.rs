//! A mark in the memory of a process, for those that it forks: they share its memory's layout but, if it
//! was itself made by fork without an execve, not the environment that `/proc/PID/environ` shows.

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use std::ffi::CString;
use std::io;
use std::num::NonZeroUsize;

/// How the mapping is called in `/proc/PID/maps` (proc_pid_maps(5), memfd_create(2)).
const NAME: &str = "rlaunch:";

/// Marks this process, and whatever it forks from now on, until execve. For good: it is one page.
pub fn mark_memory(key: &str) -> io::Result<()> {
    let file = memfd_create(CString::new(format!("{NAME}{key}"))?.as_c_str(), MFdFlags::MFD_CLOEXEC)?;
    // SAFETY: a new mapping at a place of the kernel's choice, which nobody reads, writes or unmaps.
    unsafe { mmap(None, NonZeroUsize::MIN, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE, &file, 0)? };
    Ok(())
}

/// The keys in the memory of a process; none when it is gone, or may not be looked into.
pub fn in_memory(pid: i32) -> Vec<Vec<u8>> {
    const START: &[u8] = b"/memfd:rlaunch:";
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let names = maps.split(|b| *b == b'\n').filter_map(|line| {
        let at = line.windows(START.len()).position(|window| window == START)? + START.len();
        Some(line[at..].split(|b| *b == b' ').next().unwrap_or_default().to_vec())
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_seen() {
        let own = std::process::id() as i32;
        mark_memory("abc/0/1").unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(in_memory(own), [b"abc/0/1".to_vec()]);
        assert!(mark_memory("a\0b").is_err());
        assert!(in_memory(0).is_empty());
    }
}
