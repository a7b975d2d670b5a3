//! Whether a process id in the name of a file is one of this PID namespace. Containers that share a folder have the same numbers.

use nix::unistd::geteuid;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The inode of the initial PID namespace, the same on each machine (PID_NS_INIT_INO in include/uapi/linux/nsfs.h).
const INITIAL: u64 = 0xEFFF_FFFC;

/// Whether only processes of this PID namespace can have created files of this user in a folder. Certain only in the initial
/// PID namespace, which sees the processes of all others, as long as none of this user's has the same folder.
pub fn is_private(folder: &Path) -> bool {
    let is_initial = fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == INITIAL);
    let device = fs::metadata(folder).map(|found| found.dev());
    let others_share = |device| super::pids().into_iter().any(|pid| shares(pid, folder, device));
    is_initial && super::is_own() && device.is_ok_and(|device| !others_share(device))
}

/// Whether a process of this user is in another PID namespace and may use the same file system at this path.
fn shares(pid: i32, folder: &Path, device: u64) -> bool {
    let status = super::read(pid, "status").unwrap_or_default();
    let below = folder.strip_prefix("/").unwrap_or(folder);
    is_other_namespace(&String::from_utf8_lossy(&status), geteuid().as_raw())
        && match fs::metadata(Path::new(&format!("/proc/{pid}/root")).join(below)) {
            Ok(found) => found.dev() == device,
            // It has no such folder, or has ended.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
}

/// Whether a process with this status, which a process of the initial PID namespace has read, is in another one and may create
/// files of this user. NSpid has one number for each namespace that the process is in (proc_pid_status(5)).
fn is_other_namespace(status: &str, user: u32) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    let is_nested = field("NSpid:").is_some_and(|numbers| numbers.count() > 1);
    is_nested && field("Uid:").is_none_or(|mut users| users.any(|one| one.parse() == Ok(user)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_this_user_with_several_numbers_is_in_another_namespace() {
        assert!(is_other_namespace("Name:\tx\nUid:\t0\t7\t0\t0\nNSpid:\t812\t7\n", 7));
        for status in
            ["Uid:\t7\t7\t7\t7\nNSpid:\t812\n", "Uid:\t8\t8\t8\t8\nNSpid:\t812\t7\n", "Uid:\t7\t7\t7\t7\n", ""]
        {
            assert!(!is_other_namespace(status, 7), "{status}");
        }
    }

    #[test]
    fn a_folder_that_is_missing_is_not_private() {
        assert!(!is_private(Path::new("/no/such/folder")));
    }
}
