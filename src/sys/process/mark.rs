//! A mark in the memory map of a process, by which its forked children are recognized. They inherit the mapping. If the
//! process itself was forked without an execve, `/proc/PID/environ` does not show the environment that it has.

use crate::sys::process::procfs::reader::{LockedFile, LockedFileReader, Readings};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use std::ffi::CString;
use std::io;
use std::num::NonZeroUsize;

/// Prefix of the mapping's name in `/proc/PID/maps` (proc_pid_maps(5), memfd_create(2)).
const NAME: &str = "rlaunch:";

/// Marks this process and its later forks, until execve. The mapping of one page is never removed.
pub fn mark_memory(key: &str) -> io::Result<()> {
    let file = memfd_create(CString::new(format!("{NAME}{key}"))?.as_c_str(), MFdFlags::MFD_CLOEXEC)?;
    // SAFETY: a new mapping at an address that the kernel chooses; no code reads, writes or unmaps it.
    unsafe { mmap(None, NonZeroUsize::MIN, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE, &file, 0)? };
    Ok(())
}

/// The marks of these processes, for those that can be read.
pub fn in_memory(reader: &LockedFileReader, pids: impl IntoIterator<Item = i32>) -> Readings<Vec<Vec<u8>>> {
    reader.read_each(pids, LockedFile::MemoryMap).map(marks)
}

fn marks(map: &[u8]) -> Vec<Vec<u8>> {
    const START: &[u8] = b"/memfd:rlaunch:";
    let names = map.split(|b| *b == b'\n').filter_map(|line| {
        let at = line.windows(START.len()).position(|window| window == START)? + START.len();
        Some(line[at..].split(|b| *b == b' ').next().unwrap_or_default().to_vec())
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_mark_is_found() {
        let (reader, own) = (LockedFileReader::default(), std::process::id() as i32);
        mark_memory("abc/0/1").unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(in_memory(&reader, [own, 0]).found, BTreeMap::from([(own, vec![b"abc/0/1".to_vec()])]));
        assert!(mark_memory("a\0b").is_err());
    }
}
