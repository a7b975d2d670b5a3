//! Shared memory of Paddle's DataLoader: files `/dev/shm/paddle_PID_...`, where PID is the process that created them. They are
//! removed by name once that process has ended. SIGTERM and a wait before SIGKILL would be less certain: a worker that is
//! stopped, blocked or slow, or whose program handles SIGTERM, does not clean up in time, nor does one that dies by a SIGKILL to
//! its process group.

use crate::sys::clock;
use crate::sys::process::pidfd;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::tree;
use nix::unistd::geteuid;
use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Where POSIX shared memory lies (shm_open(3)).
const FOLDER: &str = "/dev/shm";

/// How long all processes may take that are exiting.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often such a process is looked at.
const INTERVAL: Duration = Duration::from_millis(1);

/// A file that was removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemovedMemory {
    /// Its name in /dev/shm.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
}

/// Removes the shared memory that these processes have created through Paddle. A process that has not ended keeps its own.
pub fn remove_of(creators: &BTreeSet<i32>) -> Vec<RemovedMemory> {
    let until = clock::now() + PATIENCE;
    if creators.is_empty() { Vec::new() } else { remove_in(Path::new(FOLDER), creators, |pid| has_ended(pid, until)) }
}

fn remove_in(folder: &Path, creators: &BTreeSet<i32>, has_ended: impl Fn(i32) -> bool) -> Vec<RemovedMemory> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let of_creators =
        |entry: DirEntry| creator(entry.file_name().as_bytes()).filter(|p| creators.contains(p)).map(|p| (p, entry));
    // The list is complete before the processes are looked at: a process that gets one of these ids later has no file on it.
    let files: Vec<(i32, DirEntry)> = entries.flatten().filter_map(of_creators).collect();
    let pids: BTreeSet<i32> = files.iter().map(|(pid, _)| *pid).collect();
    let ended: BTreeSet<i32> = pids.into_iter().filter(|pid| has_ended(*pid)).collect();
    files.into_iter().filter(|(pid, _)| ended.contains(pid)).filter_map(|(_, file)| remove(&file)).collect()
}

/// Removes a regular file of this user.
fn remove(file: &DirEntry) -> Option<RemovedMemory> {
    // Does not follow a symbolic link (fstatat(2) with AT_SYMLINK_NOFOLLOW).
    let found = file.metadata().ok()?;
    let is_ours = found.file_type().is_file() && found.uid() == geteuid().as_raw();
    (is_ours && std::fs::remove_file(file.path()).is_ok())
        .then(|| RemovedMemory { name: file.file_name().to_string_lossy().into_owned(), size: found.size() })
}

/// The process id in a name `paddle_PID_...`.
fn creator(name: &[u8]) -> Option<i32> {
    let rest = name.strip_prefix(b"paddle_")?;
    let digits = rest.get(..rest.iter().position(|b| *b == b'_')?)?;
    // `parse` would accept a sign and leading zeros.
    let is_number = digits.first().is_some_and(|first| *first != b'0') && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
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
    fn only_files_of_processes_that_have_ended_are_removed() -> std::io::Result<()> {
        let folder = std::env::temp_dir().join(format!("rlaunch-paddle-memory-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("paddle_11_folder"))?;
        for name in ["paddle_11_0_1", "paddle_11_1_2", "paddle_12_0_1", "paddle_13_0_1", "paddle_110_0_1", "torch_11_0"]
        {
            std::fs::write(folder.join(name), "abc")?;
        }
        std::os::unix::fs::symlink("torch_11_0", folder.join("paddle_11_link"))?;
        let removed = remove_in(&folder, &BTreeSet::from([11, 12]), |pid| pid == 11);
        let names = removed.into_iter().map(|file| (file.name, file.size)).collect::<BTreeSet<_>>();
        let left = std::fs::read_dir(&folder)?.count();
        std::fs::remove_dir_all(&folder)?;
        assert_eq!(names, BTreeSet::from([("paddle_11_0_1".into(), 3), ("paddle_11_1_2".into(), 3)]));
        assert_eq!(left, 6);
        Ok(())
    }

    #[test]
    fn this_process_has_not_ended() {
        assert!(!has_ended(std::process::id() as i32, Duration::MAX));
    }
}
