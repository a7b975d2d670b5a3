//! The processes of this PID namespace and their tree, from one pass over /proc: processes, not threads.

use super::stat::ProcStat;
use std::collections::{BTreeMap, BTreeSet};

/// What one pass has seen. It is not of one moment: a process that is forked or loses its parent meanwhile may be missing or
/// have its former parent, so a complete list needs repeated snapshots.
#[derive(Debug, Default)]
pub struct Snapshot {
    processes: BTreeMap<i32, ProcStat>,
    children: BTreeMap<i32, Vec<i32>>,
}

impl Snapshot {
    /// Reads all processes; none where /proc is not proven to be that of this PID namespace.
    pub fn take() -> Self {
        if super::verify().is_err() {
            return Self::default();
        }
        let kernel_threads = kernel_threads();
        let pids = super::pids().into_iter().filter(|pid| !kernel_threads.contains(pid));
        Self::of(pids.filter_map(|pid| Some((pid, ProcStat::of(pid)?))))
    }

    /// A snapshot with these processes.
    pub(in crate::sys::process) fn of(processes: impl IntoIterator<Item = (i32, ProcStat)>) -> Self {
        let processes: BTreeMap<i32, ProcStat> = processes.into_iter().collect();
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for (pid, stat) in &processes {
            // Otherwise the number of a parent that has ended since went to another process.
            let is_older = |parent: &ProcStat| parent.started <= stat.started;
            if processes.get(&stat.parent).is_some_and(is_older) {
                children.entry(stat.parent).or_default().push(*pid);
            }
        }
        Self { processes, children }
    }

    /// The state of a process.
    pub fn get(&self, pid: i32) -> Option<&ProcStat> {
        self.processes.get(&pid)
    }

    /// All processes.
    pub fn processes(&self) -> impl Iterator<Item = (i32, &ProcStat)> {
        self.processes.iter().map(|(pid, stat)| (*pid, stat))
    }

    /// The other processes that have not ended and started at `since` or later (`None`: not before this process).
    pub fn young(&self, since: Option<u64>) -> Vec<i32> {
        let own = std::process::id() as i32;
        let since = since.or_else(|| self.get(own).map(|stat| stat.started)).unwrap_or(0);
        let young = self.processes().filter(|(pid, stat)| *pid != own && stat.started >= since && !stat.is_gone());
        young.map(|(pid, _)| pid).collect()
    }

    /// The children of a process, including zombies.
    pub fn children(&self, pid: i32) -> &[i32] {
        self.children.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Those of these processes that are there, and their descendants.
    pub fn trees(&self, roots: impl IntoIterator<Item = i32>) -> BTreeSet<i32> {
        let mut todo: Vec<i32> = roots.into_iter().filter(|pid| self.processes.contains_key(pid)).collect();
        let mut found = BTreeSet::new();
        while let Some(next) = todo.pop() {
            if found.insert(next) {
                todo.extend(self.children(next));
            }
        }
        found
    }

    /// The descendants of a process.
    pub fn descendants(&self, pid: i32) -> BTreeSet<i32> {
        self.trees(self.children(pid).iter().copied())
    }
}

/// The kernel's own threads, by one read of their parent's children; none in a container. A large machine has thousands.
fn kernel_threads() -> BTreeSet<i32> {
    const KTHREADD: i32 = 2;
    let is_there = ProcStat::of(KTHREADD).is_some_and(|stat| stat.parent == 0 && stat.name == "kthreadd");
    let children = if is_there { super::read(KTHREADD, "task/2/children").unwrap_or_default() } else { Vec::new() };
    String::from_utf8_lossy(&children).split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pid, parent and start time.
    fn snapshot(processes: &[(i32, i32, u64)]) -> Snapshot {
        let stat = |(pid, parent, started): &(i32, i32, u64)| {
            let (name, state) = (String::new(), 'S');
            (
                *pid,
                ProcStat {
                    name,
                    state,
                    parent: *parent,
                    group: 0,
                    session: 0,
                    exiting: false,
                    cpu_ticks: 0,
                    waited_ticks: 0,
                    started: *started,
                },
            )
        };
        Snapshot::of(processes.iter().map(stat))
    }

    #[test]
    fn the_tree_is_computed_from_parents() {
        let all = snapshot(&[(1, 0, 0), (5, 1, 2), (9, 5, 3), (7, 5, 3), (3, 9, 8), (4, 1, 9)]);
        assert_eq!(all.children(5), [7, 9]);
        assert_eq!(all.descendants(5), BTreeSet::from([3, 7, 9]));
        assert_eq!(all.trees([9, 4, 100]), BTreeSet::from([3, 4, 9]));
        assert!(all.descendants(100).is_empty());
    }

    #[test]
    fn a_parent_younger_than_its_child_is_another_process() {
        let all = snapshot(&[(1, 0, 0), (5, 1, 20), (6, 5, 10), (7, 5, 20)]);
        assert_eq!(all.descendants(5), BTreeSet::from([7]));
    }

    #[test]
    fn numbers_that_were_reused_meanwhile_make_no_endless_walk() {
        let all = snapshot(&[(5, 6, 1), (6, 5, 1)]);
        assert_eq!(all.descendants(5), BTreeSet::from([5, 6]));
    }

    #[test]
    fn young_processes_have_not_ended_and_started_in_time() {
        let own = std::process::id() as i32;
        let mut all =
            snapshot(&[(own, 1, 100), (own + 1, 1, 99), (own + 2, 1, 100), (own + 3, 1, 101), (own + 4, 1, 102)]);
        if let Some(zombie) = all.processes.get_mut(&(own + 4)) {
            zombie.state = 'Z';
        }
        assert_eq!(all.young(None), [own + 2, own + 3]);
        assert_eq!(all.young(Some(99)), [own + 1, own + 2, own + 3]);
        assert_eq!(all.young(Some(101)), [own + 3]);
        assert_eq!(snapshot(&[(own + 1, 1, 1)]).young(None), [own + 1], "its own age is not known");
    }

    #[test]
    fn kernel_threads_are_left_out() {
        let (all, kernel) = (Snapshot::take(), kernel_threads());
        assert!(all.processes().all(|(pid, _)| !kernel.contains(&pid)));
        assert!(!kernel.contains(&(std::process::id() as i32)));
    }

    #[test]
    fn a_process_sees_itself_below_its_parent() {
        let (all, own) = (Snapshot::take(), std::process::id() as i32);
        assert!(all.get(own).is_some_and(|stat| all.children(stat.parent).contains(&own)));
    }
}
