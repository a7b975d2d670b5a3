//! Memory limits and OOM kills of the cgroup of this process and of the machine.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// OOM counters and limits; `None` if the kernel does not report them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomCounters {
    /// Processes killed so far because this cgroup, or an ancestor, reached its limit.
    pub cgroup_kills: Option<u64>,
    /// Processes killed so far on this machine (`oom_kill` of /proc/vmstat, Linux 4.13 and later).
    pub host_kills: Option<u64>,
    /// The nearest limit, in bytes.
    pub limit: Option<u64>,
    /// Peak usage of the cgroup with that limit, in bytes.
    pub peak: Option<u64>,
}

impl OomCounters {
    /// Reads the current values. `root`: `/`, or a directory that replaces it.
    pub fn now(root: &Path) -> Self {
        let host_kills = read_to_string(root.join("proc/vmstat")).ok().and_then(|text| field(&text, "oom_kill"));
        let mut memory = Self { host_kills, ..Self::default() };
        let Some((top, own)) = cgroup(root) else { return memory };
        for folder in own.ancestors().take_while(|folder| folder.starts_with(&top)) {
            let read = |names: [&str; 2]| names.iter().find_map(|name| read_to_string(folder.join(name)).ok());
            if memory.cgroup_kills.is_none() {
                let events = read(["memory.events", "memory.oom_control"]);
                memory.cgroup_kills = events.and_then(|text| field(&text, "oom_kill"));
            }
            let number = |names| read(names).and_then(|text| text.trim().parse::<u64>().ok());
            memory.limit = limit(folder);
            if memory.limit.is_some() {
                memory.peak = number(["memory.peak", "memory.max_usage_in_bytes"]);
                break;
            }
        }
        memory
    }

    /// Explains a SIGKILL that rlaunch did not send, by the changes since `before`; `None`: they do not.
    pub fn explain(&self, before: &OomCounters) -> Option<String> {
        let more = |now: Option<u64>, then: Option<u64>| now.zip(then).is_some_and(|(now, then)| now > then);
        if more(self.cgroup_kills, before.cgroup_kills) {
            let limit = self.limit.map_or(String::new(), |bytes| format!(" of {}", size(bytes)));
            let peak = self.peak.map_or(String::new(), |bytes| format!(" (peak usage {})", size(bytes)));
            return Some(format!(
                "the kernel killed it or another process of its cgroup, which reached its memory limit{limit}{peak}"
            ));
        }
        let of_host = "the kernel killed it or another process, because this machine was out of memory";
        more(self.host_kills, before.host_kills).then(|| of_host.into())
    }
}

/// Bytes that this process and its children may use: the memory of the machine, or the smallest limit of its cgroup and the
/// ancestors.
pub fn total(root: &Path) -> Option<u64> {
    let text = read_to_string(root.join("proc/meminfo")).ok();
    let kib = text.and_then(|text| {
        text.lines().find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok())
    });
    let limits = cgroup(root).into_iter().flat_map(|(top, own)| {
        let folders = own.ancestors().take_while(|folder| folder.starts_with(&top));
        folders.filter_map(limit).collect::<Vec<_>>()
    });
    limits.chain(kib.map(|kib: u64| kib.saturating_mul(1024))).min()
}

/// Limit of one cgroup.
fn limit(folder: &Path) -> Option<u64> {
    let read = |name| read_to_string(folder.join(name)).ok();
    let text = read("memory.max").or_else(|| read("memory.limit_in_bytes"))?;
    // Version 1 shows no limit as a number close to 2^63.
    text.trim().parse().ok().filter(|limit| *limit < 1 << 60)
}

/// The top of the memory cgroups and the cgroup of this process.
fn cgroup(root: &Path) -> Option<(PathBuf, PathBuf)> {
    let text = read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let lines: Vec<(&str, &str)> = lines.by_ref().collect();
    let first = lines.iter().find(|(controllers, _)| controllers.split(',').any(|c| c == "memory"));
    let (top, path) = match first {
        Some((_, path)) => ("sys/fs/cgroup/memory", path),
        None => ("sys/fs/cgroup", &lines.iter().find(|(controllers, _)| controllers.is_empty())?.1),
    };
    let top = root.join(top);
    Some((top.clone(), top.join(path.trim_start_matches('/'))))
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut amount, mut unit) = (bytes as f64, 0);
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{amount:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("rlaunch-memory-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(&root)).unwrap_or_default();
            std::fs::write(path, text).unwrap_or_default();
        }
        root
    }

    #[test]
    fn a_limit_of_an_outer_cgroup_is_the_limit() {
        let root = tree(
            "two",
            &[
                ("proc/self/cgroup", "0::/job/step\n"),
                ("proc/vmstat", "oom_kill_x 9\noom_kill 4\n"),
                ("sys/fs/cgroup/job/step/memory.events", "oom 1\noom_kill 2\n"),
                ("sys/fs/cgroup/job/step/memory.max", "max\n"),
                ("sys/fs/cgroup/job/memory.max", "1610612736\n"),
                ("sys/fs/cgroup/job/memory.peak", "1073741824\n"),
            ],
        );
        let now = OomCounters::now(&root);
        std::fs::remove_dir_all(&root).unwrap_or_default();
        let limits = (Some(1610612736), Some(1073741824));
        assert_eq!((now.cgroup_kills, now.host_kills, (now.limit, now.peak)), (Some(2), Some(4), limits));
        let before = OomCounters { cgroup_kills: Some(1), ..now.clone() };
        assert_eq!(
            now.explain(&before).unwrap_or_default(),
            "the kernel killed it or another process of its cgroup, which reached its memory limit of 1.5 GiB \
             (peak usage 1.0 GiB)"
        );
        let before = OomCounters { host_kills: Some(3), ..now.clone() };
        assert!(now.explain(&before).is_some_and(|text| text.contains("this machine was out of memory")));
        assert_eq!(now.explain(&now), None);
    }

    #[test]
    fn version_1_has_other_names() {
        let root = tree(
            "one",
            &[
                ("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n"),
                ("sys/fs/cgroup/memory/a/memory.oom_control", "under_oom 0\noom_kill 7\n"),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2048\n"),
            ],
        );
        let now = OomCounters::now(&root);
        std::fs::remove_dir_all(&root).unwrap_or_default();
        assert_eq!(now, OomCounters { cgroup_kills: Some(7), limit: Some(2048), ..OomCounters::default() });
    }

    #[test]
    fn the_smallest_limit_counts_or_the_memory_of_the_machine() {
        let meminfo = ("proc/meminfo", "MemTotal:       4194304 kB\nMemFree: 1 kB\n");
        let files = [
            meminfo,
            ("proc/self/cgroup", "0::/job/step\n"),
            ("sys/fs/cgroup/job/step/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/job/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/other/memory.max", "4096\n"),
        ];
        for (name, files, found) in [
            ("all", &files[..], 1 << 30),
            ("own", &files[..3], 2 << 30),
            ("none", &files[..2], 4 << 30),
            ("machine", &[meminfo, files[1], ("sys/fs/cgroup/job/memory.max", "1099511627776\n")], 4 << 30),
        ] {
            let root = tree(&format!("total-{name}"), files);
            assert_eq!(total(&root), Some(found), "{name}");
            std::fs::remove_dir_all(&root).unwrap_or_default();
        }
    }

    #[test]
    fn nothing_to_read_is_nothing_known() {
        assert_eq!(total(Path::new("/nowhere")), None);
        let now = OomCounters::now(Path::new("/nowhere"));
        assert_eq!(now, OomCounters::default());
        assert_eq!(now.explain(&now), None);
    }
}
