//! Limits of processes and threads: of the cgroup (pids.max), of the user, of the machine.

use crate::probe::cpus;
use crate::sys::process::limits;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// A cgroup of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PidsCgroup {
    folder: PathBuf,
    /// pids.max; `None` without a limit.
    limit: Option<u64>,
    /// pids.current.
    used: Option<u64>,
    /// How often a process or thread was refused, by the limit here or, before Linux 6.11, by one above (cgroup-v2.rst, pids.events).
    refused: u64,
}

/// How often the limits of this process's cgroups were reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounters(Vec<PidsCgroup>);

impl ProcessCounters {
    /// Reads the current values. `root`: `/`, or a directory that replaces it.
    pub fn now(root: &Path) -> Self {
        let read = |folder: &Path, name| read_to_string(folder.join(name)).ok();
        let number = |folder: &Path, name| read(folder, name)?.trim().parse::<u64>().ok();
        let refused = |folder: &Path| {
            let events = read(folder, "pids.events")?;
            events.lines().find_map(|line| line.strip_prefix("max ")?.trim().parse::<u64>().ok())
        };
        let group = |folder: PathBuf| PidsCgroup {
            limit: number(&folder, "pids.max"),
            used: number(&folder, "pids.current"),
            refused: refused(&folder).unwrap_or(0),
            folder,
        };
        Self(cpus::folders_of_pids(root).into_iter().map(group).collect())
    }

    /// The limit that was reached since `before`, if one was.
    pub fn explain(&self, before: &Self) -> Option<String> {
        let is_more = |group: &PidsCgroup| {
            let earlier = before.0.iter().find(|earlier| earlier.folder == group.folder);
            group.refused > earlier.map_or(0, |earlier| earlier.refused)
        };
        let first = self.0.iter().position(is_more)?;
        self.0[first..].iter().find_map(|group| {
            let (limit, folder) = (group.limit?, group.folder.display());
            Some(format!("the cgroup {folder} reached its limit of {limit} processes and threads (pids.max); {RAISE}"))
        })
    }
}

const RAISE: &str = "raise it: docker run --pids-limit, podPidsLimit of the kubelet, TasksMax= of a unit";

/// The processes and threads that may still be created in the cgroup of this process; `None` without a limit.
pub fn left_in_cgroup(root: &Path) -> Option<u64> {
    let left = |group: &PidsCgroup| Some(group.limit?.saturating_sub(group.used?));
    ProcessCounters::now(root).0.iter().filter_map(left).min()
}

/// The limits for which the system refuses to create a process or a thread (clone(2), EAGAIN): the one that is reached, or all.
pub fn describe_limits(root: &Path) -> String {
    let groups = ProcessCounters::now(root).0;
    let limited = |group: &PidsCgroup| Some((group.folder.display().to_string(), group.limit?, group.used?));
    let limited: Vec<_> = groups.iter().filter_map(limited).collect();
    if let Some((folder, limit, _)) = limited.iter().find(|(_, limit, used)| used >= limit) {
        return format!("the cgroup {folder} has as many processes and threads as pids.max allows, {limit}; {RAISE}");
    }
    let of_cgroups =
        limited.iter().map(|(folder, limit, used)| format!("pids.max {limit} in {folder}, of which {used} are used"));
    let of_user = limits::processes().map(|limit| format!("ulimit -u {limit}"));
    let of_machine = read_to_string(root.join("proc/sys/kernel/threads-max")).ok();
    let of_machine = of_machine.map(|limit| format!("kernel.threads-max {}", limit.trim()));
    let all: Vec<_> = of_cgroups.chain(of_user).chain(of_machine).collect();
    if all.is_empty() {
        return "a limit of processes and threads was reached (clone(2))".into();
    }
    format!("one of the limits of processes and threads was reached: {}", all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("rlaunch-pids-{name}-{}", std::process::id()));
        for (path, text) in [("proc/self/cgroup", "0::/job/step\n")].iter().chain(files) {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const LIMIT: (&str, &str) = ("sys/fs/cgroup/job/pids.max", "10\n");

    #[test]
    fn the_cgroup_with_the_least_room_limits_processes() {
        let version_1 = [
            ("proc/self/cgroup", "8:pids:/a\n"),
            ("sys/fs/cgroup/pids/a/pids.max", "max\n"),
            ("sys/fs/cgroup/pids/a/pids.current", "7\n"),
            ("sys/fs/cgroup/pids/pids.max", "100\n"),
            ("sys/fs/cgroup/pids/pids.current", "90\n"),
        ];
        for (name, files, left) in [("room", &version_1[..], Some(10)), ("none", &version_1[..3], None)] {
            let root = tree(name, files);
            assert_eq!(left_in_cgroup(&root), left);
            std::fs::remove_dir_all(&root).unwrap();
        }
    }

    #[test]
    fn the_limit_that_is_reached_is_named_or_all_are() {
        for (name, used, reached) in [("full", "10\n", true), ("room", "9\n", false)] {
            let threads = ("proc/sys/kernel/threads-max", "4096\n");
            let root = tree(&format!("reached-{name}"), &[LIMIT, ("sys/fs/cgroup/job/pids.current", used), threads]);
            let text = describe_limits(&root);
            std::fs::remove_dir_all(&root).unwrap();
            assert!(text.contains("pids.max") && text.contains("cgroup/job"), "{text}");
            assert_eq!(text.contains("threads-max 4096"), !reached, "{text}");
        }
    }

    #[test]
    fn a_limit_that_was_reached_meanwhile_is_named() {
        // The newer kernel counts at the limit and above, the older one where the process was.
        for (name, counted) in [("new", "sys/fs/cgroup/job/pids.events"), ("old", "sys/fs/cgroup/job/step/pids.events")]
        {
            let root = tree(&format!("hit-{name}"), &[LIMIT, (counted, "max 3\n")]);
            let before = ProcessCounters::now(&root);
            assert_eq!(before.explain(&before), None);
            std::fs::write(root.join(counted), "max 4\n").unwrap();
            let text = ProcessCounters::now(&root).explain(&before).unwrap();
            std::fs::remove_dir_all(&root).unwrap();
            assert!(text.contains("cgroup/job reached its limit of 10 "), "{text}");
        }
    }
}
