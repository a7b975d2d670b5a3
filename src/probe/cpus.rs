//! CPU limits of this process: affinity mask and cgroup quota.

use crate::model::CpuSet;
use crate::plan::devices::threads::{CpuLimits, CpuQuota};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The limits of a process with the affinity mask `allowed`. `root`: `/`, or a directory that replaces it.
pub fn cpus(root: &Path, allowed: &CpuSet) -> CpuLimits {
    CpuLimits { allowed: allowed.len(), quota: quota(root) }
}

/// The smallest quota of the cgroup of this process and its ancestors, as far as they are visible. In a container, the
/// cgroup may be mounted at the top although its path is that of the host.
pub fn quota(root: &Path) -> Option<CpuQuota> {
    let quotas = folders(root, "cpu", &["cpu", "cpu,cpuacct", "cpuacct,cpu"]);
    let quotas = quotas.iter().filter_map(|folder| version_2(folder).or_else(|| version_1(folder)));
    quotas.reduce(|least, other| if other.is_below(least) { other } else { least })
}

/// The directories of the cgroup of this process with limits of processes, from its own to the top.
pub fn folders_of_pids(root: &Path) -> Vec<PathBuf> {
    folders(root, "pids", &["pids"])
}

/// The directories of the cgroup of this process with a controller, from its own to the top. `mounted`: the names under which
/// version 1 mounts it.
fn folders(root: &Path, controller: &str, mounted: &[&str]) -> Vec<PathBuf> {
    let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    groups.lines().flat_map(|line| folders_of_line(root, line, controller, mounted)).collect()
}

fn folders_of_line(root: &Path, line: &str, controller: &str, mounted: &[&str]) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(own)) = (fields.next(), fields.next()) else { return Vec::new() };
    let tops: &[&str] = match controllers {
        // In hybrid mode, systemd mounts version 2 in a directory of its own.
        "" => &["", "unified"],
        _ if controllers.split(',').any(|one| one == controller) => mounted,
        _ => &[],
    };
    let below = |top: &&str| {
        let top = root.join("sys/fs/cgroup").join(top);
        let own = top.join(own.trim_start_matches('/'));
        let shown = |folder: &&Path| folder.starts_with(&top);
        own.ancestors().take_while(shown).map(Path::to_path_buf).collect::<Vec<_>>()
    };
    tops.iter().flat_map(below).collect()
}

fn version_2(folder: &Path) -> Option<CpuQuota> {
    let text = read_to_string(folder.join("cpu.max")).ok()?;
    let (time, period) = text.trim().split_once(' ')?;
    parse_quota(time, period)
}

/// Without a quota, the time is -1.
fn version_1(folder: &Path) -> Option<CpuQuota> {
    let read = |name| read_to_string(folder.join(name)).ok();
    parse_quota(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
}

fn parse_quota(time: &str, period: &str) -> Option<CpuQuota> {
    let (time, period) = (time.trim().parse().ok()?, period.trim().parse().ok()?);
    (period > 0).then_some(CpuQuota { time, period })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    fn of(name: &str, files: &[(&str, &str)]) -> Option<(u64, u64)> {
        let root = std::env::temp_dir().join(format!("rlaunch-cpus-{name}-{}", std::process::id()));
        write(&root, files);
        let found = cpus(&root, &CpuSet::parse("0-3").unwrap());
        let _ = std::fs::remove_dir_all(&root);
        assert_eq!(found.allowed, 4);
        found.quota.map(|quota| (quota.time, quota.period))
    }

    const OWN: &str = "proc/self/cgroup";

    #[test]
    fn the_smallest_quota_of_the_ancestors_counts() {
        let files = [
            (OWN, "0::/a/b/c\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 50000\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "200000 100000\n"),
            ("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/a/other/cpu.max", "1000 100000\n"),
        ];
        assert_eq!(of("2", &files), Some((200_000, 100_000)));
        assert_eq!(of("2none", &[(OWN, "0::/a\n"), ("sys/fs/cgroup/a/cpu.max", "max 100000\n")]), None);
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_top() {
        let files = [(OWN, "0::/docker/4f1c\n"), ("sys/fs/cgroup/cpu.max", "350000 100000\n")];
        assert_eq!(of("container", &files), Some((350_000, 100_000)));
    }

    #[test]
    fn version_1_has_two_files_and_minus_one_for_none() {
        let files = [
            (OWN, "4:cpu,cpuacct:/a\n3:cpuset:/s\n0::/u\n"),
            ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/unified/u/cpu.max", "60000 100000\n"),
            ("sys/fs/cgroup/cpuset/s/cpu.cfs_quota_us", "1\n"),
            ("sys/fs/cgroup/cpuset/s/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(of("1", &files), Some((50_000, 100_000)));
    }

    #[test]
    fn an_invalid_quota_is_ignored() {
        assert_eq!(of("nothing", &[("proc/x", "")]), None);
        for text in ["", "100000", "a b", "100000 0", "-5 100000", "99999999999999999999 1"] {
            let files = [(OWN, "nonsense\n1:cpu\n0::/\n"), ("sys/fs/cgroup/cpu.max", text)];
            assert_eq!(of("odd", &files), None, "{text}");
        }
    }
}
