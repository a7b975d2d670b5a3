//! Shared memory of Paddle's DataLoader: files `/dev/shm/paddle_PID_...`, where PID is the process that created them. They are
//! removed once that process has ended. SIGTERM and a wait before SIGKILL would be less certain: a worker that is stopped, blocked
//! or slow, or whose program handles SIGTERM, does not clean up in time, nor does one that dies by a SIGKILL to its process group.
//!
//! The number in the name is no proof: containers that share /dev/shm have processes with the same numbers. A file is removed only
//! if a process of the job was seen to have it open or mapped, or if no other PID namespace shares the folder.

use crate::sys::clock;
use crate::sys::process::pidfd;
use crate::sys::process::procfs;
use crate::sys::process::procfs::namespace;
use crate::sys::process::procfs::reader::{LockedFile, LockedFileReader};
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::tree;
use nix::sys::stat::makedev;
use nix::unistd::geteuid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirEntry, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tracing::warn;

/// Where POSIX shared memory lies (shm_open(3)).
const FOLDER: &str = "/dev/shm";

/// How long all processes may take that are exiting.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often such a process is looked at.
const INTERVAL: Duration = Duration::from_millis(1);

/// The most files that one warning names.
const MAX_NAMED: usize = 3;

/// A file that was removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemovedMemory {
    /// Its name in /dev/shm.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
}

/// Device and inode of a file: its identity. tmpfs counts inodes upwards.
type FileId = (u64, u64);

/// A file of Paddle's.
struct MemoryFile {
    path: PathBuf,
    name: String,
    /// The process in its name.
    creator: i32,
    id: FileId,
    size: u64,
}

/// Files that processes of the job had open or mapped, and files that were left because no process was seen to have them.
#[derive(Debug)]
struct Sightings {
    seen: BTreeSet<FileId>,
    doubtful: BTreeMap<FileId, PathBuf>,
}

static SIGHTINGS: Mutex<Sightings> = Mutex::new(Sightings { seen: BTreeSet::new(), doubtful: BTreeMap::new() });

/// Notes which files these processes of the job have open or mapped. To be called before they are ended: a process that has ended
/// shows no file. Reads nothing of them while the folder has no file of Paddle's.
pub fn see(reader: &LockedFileReader, processes: impl FnOnce() -> BTreeSet<i32>) {
    let files: BTreeSet<FileId> = list(Path::new(FOLDER)).into_iter().map(|file| file.id).collect();
    if files.is_empty() {
        return;
    }
    let processes = processes();
    let mapped = mapped_by(reader, processes.clone());
    let open = processes.iter().filter_map(|pid| procfs::list(*pid, "fd").ok()).flatten().flatten();
    // The file system of another file may hang, that of the logs too: its metadata would delay the end of the ranks.
    let is_memory = |entry: &DirEntry| std::fs::read_link(entry.path()).is_ok_and(|file| has_name_of_memory(&file));
    let open = open.filter(is_memory).filter_map(|entry| std::fs::metadata(entry.path()).ok()).map(|found| id(&found));
    let held: BTreeSet<FileId> = mapped.into_iter().chain(open).filter(|id| files.contains(id)).collect();
    let mut sightings = SIGHTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    sightings.seen.retain(|id| files.contains(id));
    sightings.seen.extend(held);
}

/// The files that these processes have mapped.
fn mapped_by(reader: &LockedFileReader, mut processes: BTreeSet<i32>) -> BTreeSet<FileId> {
    let (mut found, until) = (BTreeSet::new(), clock::now() + PATIENCE);
    loop {
        let maps = reader.read_each(processes, LockedFile::MemoryMap).map(mapped_files);
        found.extend(maps.found.into_values().flatten());
        processes = maps.late;
        // On a busy machine a read may take longer than the reader waits.
        if processes.is_empty() || clock::now() >= until {
            return found;
        }
        pidfd::await_any(&[], INTERVAL);
    }
}

/// The files in a memory map (proc_pid_maps(5)): address, permissions, offset, device, inode.
fn mapped_files(map: &[u8]) -> Vec<FileId> {
    let file = |line: &[u8]| {
        let mut fields = std::str::from_utf8(line.get(..line.len().min(128))?).ok()?.split_ascii_whitespace().skip(3);
        let (major, minor) = fields.next()?.split_once(':')?;
        let inode = fields.next()?.parse().ok().filter(|inode| *inode != 0)?;
        Some((makedev(u64::from_str_radix(major, 16).ok()?, u64::from_str_radix(minor, 16).ok()?), inode))
    };
    map.split(|byte| *byte == b'\n').filter_map(file).collect()
}

fn id(file: &Metadata) -> FileId {
    (file.dev(), file.ino())
}

/// Removes the shared memory that these processes have created through Paddle. A process that has not ended keeps its own. A file
/// that may be another container's is left; `warn_of_doubtful` names it.
pub fn remove_of(creators: &BTreeSet<i32>) -> Vec<RemovedMemory> {
    if creators.is_empty() {
        return Vec::new();
    }
    let (folder, until) = (Path::new(FOLDER), clock::now() + PATIENCE);
    // The list is complete before the processes are looked at: a process that gets one of these ids later has no file on it.
    let mut files = list(folder);
    files.retain(|file| creators.contains(&file.creator));
    let pids: BTreeSet<i32> = files.iter().map(|file| file.creator).collect();
    let ended: BTreeSet<i32> = pids.into_iter().filter(|pid| has_ended(*pid, until)).collect();
    files.retain(|file| ended.contains(&file.creator));
    let mut sightings = SIGHTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut certain, doubtful): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| sightings.seen.contains(&file.id));
    if !doubtful.is_empty() && is_private() {
        certain.extend(doubtful);
    } else {
        sightings.doubtful.extend(doubtful.into_iter().map(|file| (file.id, file.path)));
    }
    drop(sightings);
    certain.into_iter().filter_map(remove).collect()
}

/// Whether a process id in a name can only be that of a process of this PID namespace.
pub fn is_private() -> bool {
    namespace::is_private(Path::new(FOLDER))
}

/// Names once the files that `remove_of` has left, as far as they are still there.
pub fn warn_of_doubtful() {
    let left = std::mem::take(&mut SIGHTINGS.lock().unwrap_or_else(PoisonError::into_inner).doubtful);
    let is_there = |(file, path): &(FileId, PathBuf)| path.symlink_metadata().is_ok_and(|found| id(&found) == *file);
    let there: Vec<String> = left.into_iter().filter(is_there).map(|(_, path)| path.display().to_string()).collect();
    if !there.is_empty() {
        let more = if there.len() > MAX_NAMED { ", ..." } else { "" };
        warn!(
            "left {} file(s) in {FOLDER} that have the ids of this job's processes in their names ({}{more}): containers that share \
             {FOLDER} have the same ids, and no process of this job was seen to use them; remove them if nothing else does",
            there.len(),
            there[..there.len().min(MAX_NAMED)].join(", ")
        );
    }
}

/// The regular files of this user in a folder that have a name of Paddle's.
fn list(folder: &Path) -> Vec<MemoryFile> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let file = |entry: DirEntry| {
        let creator = creator(entry.file_name().as_bytes())?;
        // Does not follow a symbolic link (fstatat(2) with AT_SYMLINK_NOFOLLOW).
        let found = entry.metadata().ok()?;
        let is_ours = found.file_type().is_file() && found.uid() == geteuid().as_raw();
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        is_ours.then(|| MemoryFile { path, name, creator, id: id(&found), size: found.size() })
    };
    entries.filter_map(file).collect()
}

/// Removes a file, unless another one has got its name.
fn remove(file: MemoryFile) -> Option<RemovedMemory> {
    let is_same = file.path.symlink_metadata().is_ok_and(|found| id(&found) == file.id);
    (is_same && std::fs::remove_file(&file.path).is_ok()).then_some(RemovedMemory { name: file.name, size: file.size })
}

/// The process id in a name `paddle_PID_...`.
fn creator(name: &[u8]) -> Option<i32> {
    let rest = name.strip_prefix(b"paddle_")?;
    let digits = rest.get(..rest.iter().position(|b| *b == b'_')?)?;
    // `parse` would accept a sign and leading zeros.
    let is_number = digits.first().is_some_and(|first| *first != b'0') && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

/// Whether a file has a name of Paddle's, wherever it lies: processes may have other mounts.
fn has_name_of_memory(file: &Path) -> bool {
    file.file_name().is_some_and(|name| creator(name.as_bytes()).is_some())
}

/// Whether a process runs no more code: it is gone, or a zombie without other threads. Waits for the threads of a process that
/// is exiting: those of a killed process may end after the first one.
fn has_ended(pid: i32, until: Duration) -> bool {
    loop {
        match ProcStat::of(pid) {
            // It may also be one that /proc does not show.
            None => return pidfd::is_unused(pid),
            Some(stat) if stat.is_alive() => return false,
            Some(stat) if stat.is_gone() && !tree::has_other_threads(pid) => return true,
            Some(_) if clock::now() >= until => return false,
            Some(_) => drop(pidfd::await_any(&[], INTERVAL)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_creator() {
        assert_eq!(creator(b"paddle_4242_7_3595702059"), Some(4242));
        for other in ["paddle_4242", "paddle__7", "paddle_042_7", "paddle_+42_7", "paddle_4 2_7", "xpaddle_42_7"] {
            assert_eq!(creator(other.as_bytes()), None, "{other}");
        }
        assert_eq!(creator(b"paddle_99999999999_7"), None);
        assert_eq!(creator(b"PADDLE_42_7"), None);
    }

    #[test]
    fn memory_is_known_by_its_name_in_any_folder() {
        for file in ["/dev/shm/paddle_42_7_1", "/paddle_42_7_1 (deleted)"] {
            assert!(has_name_of_memory(Path::new(file)), "{file}");
        }
        for file in ["/logs/workerlog.0", "/paddle_42_7/workerlog.0", "pipe:[42]", "/"] {
            assert!(!has_name_of_memory(Path::new(file)), "{file}");
        }
    }

    #[test]
    fn regular_files_with_a_name_of_paddle_are_listed() -> std::io::Result<()> {
        let folder = std::env::temp_dir().join(format!("rlaunch-paddle-memory-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("paddle_11_folder"))?;
        for name in ["paddle_11_0_1", "paddle_12_0_1", "torch_11_0"] {
            std::fs::write(folder.join(name), "abc")?;
        }
        std::os::unix::fs::symlink("torch_11_0", folder.join("paddle_11_link"))?;
        let mut files = list(&folder);
        files.sort_by_key(|file| file.creator);
        let found: Vec<_> = files.iter().map(|file| (file.name.clone(), file.creator, file.size)).collect();
        // Another file has got the name of the second one.
        std::fs::rename(folder.join("torch_11_0"), folder.join("paddle_12_0_1"))?;
        let removed: Vec<_> = files.into_iter().filter_map(remove).collect();
        let left = std::fs::read_dir(&folder)?.count();
        std::fs::remove_dir_all(&folder)?;
        assert_eq!(found, [("paddle_11_0_1".into(), 11, 3), ("paddle_12_0_1".into(), 12, 3)]);
        assert_eq!(removed, [RemovedMemory { name: "paddle_11_0_1".into(), size: 3 }]);
        assert_eq!(left, 3);
        Ok(())
    }

    #[test]
    fn files_are_read_from_a_memory_map() -> std::io::Result<()> {
        let map = b"7f00-7f10 rw-s 00000000 00:1b 4711                       /dev/shm/paddle_7_0_1\n\
            7f20-7f30 rw-p 00000000 00:00 0 \n7f40-7f50 ---p 00000000 fd:01 12    /a b\nodd\n";
        assert_eq!(mapped_files(map), [(makedev(0, 0x1b), 4711), (makedev(0xfd, 1), 12)]);
        let own = std::fs::metadata(std::env::current_exe()?)?;
        assert!(mapped_files(&std::fs::read("/proc/self/maps")?).contains(&id(&own)));
        Ok(())
    }

    #[test]
    fn this_process_has_not_ended() {
        assert!(!has_ended(std::process::id() as i32, Duration::MAX));
    }
}
