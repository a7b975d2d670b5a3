//! A mark in the memory map of a process, by which its forked children are recognized. They inherit the mapping. If the
//! process itself was forked without an execve, `/proc/PID/environ` does not show the environment that it has.

use crate::sys::io::fd;
use crate::sys::process::procfs::reader::{LockedFile, LockedFileReader, Readings};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use std::io;
use std::num::NonZeroUsize;

/// Prefix of the mapping's name in `/proc/PID/maps` (proc_pid_maps(5), memfd_create(2)).
const NAME: &str = "rlaunch:";

/// Marks this process and its later forks, until execve. The mapping of one page is never removed.
pub fn mark_memory(key: &str) -> io::Result<()> {
    // No file has a slash in its name.
    let file = fd::memory(&format!("{NAME}{}", key.replace('/', ":")))?;
    // SAFETY: a new mapping at an address that the kernel chooses; no code reads, writes or unmaps it.
    unsafe { mmap(None, NonZeroUsize::MIN, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE, &file, 0)? };
    Ok(())
}

/// The marks of these processes, for those that can be read.
pub fn in_memory(reader: &LockedFileReader, pids: impl IntoIterator<Item = i32>) -> Readings<Vec<Vec<u8>>> {
    reader.read_each(pids, LockedFile::MemoryMap).map(marks)
}

fn marks(map: &[u8]) -> Vec<Vec<u8>> {
    // The path of a `fd::memory`.
    const STARTS: [&[u8]; 2] = [b"/memfd:rlaunch:", b"/rlaunch:"];
    let names = map.split(|b| *b == b'\n').filter_map(|line| {
        let after = |start: &[u8]| Some(line.windows(start.len()).position(|window| window == start)? + start.len());
        let at = STARTS.into_iter().find_map(after)?;
        let key = line[at..].split(|b| *b == b' ' || *b == fd::UNLINKED as u8).next().unwrap_or_default();
        Some(key.iter().map(|b| if *b == b':' { b'/' } else { *b }).collect())
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

    #[test]
    fn a_mark_is_the_name_of_memory_or_of_a_file() {
        let map = b"7f00-7f01 ---p 00000000 00:01 1 /memfd:rlaunch:ab:0:1 (deleted)\n\
                    7f02-7f03 ---p 00000000 00:19 2 /dev/shm/rlaunch:cd:1:0~x1Y2 (deleted)\n\
                    7f04-7f05 r--p 00000000 fe:00 3 /usr/lib/librlaunch.so\n";
        assert_eq!(marks(map), [b"ab/0/1".to_vec(), b"cd/1/0".to_vec()]);
    }
}
