//! `--no_sweep`: processes that a rank leaves behind and that no sweep ends, because the user wants them to live.

use crate::spec::no_sweep::{MARK, VARIABLE};
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::process::procfs::reader::{LockedFile, LockedFileReader};
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::{mark, tree};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often the members of a cgroup are listed until none of these processes is among them: they may fork meanwhile.
const RELEASE_ROUNDS: u32 = 20;

/// How long a process is spared that cannot be read in time: it may have the mark.
pub const LATE_PATIENCE: Duration = Duration::from_secs(1);

/// Those of these processes that were started with the mark, and those that were not read in time. /proc shows a rank that was
/// forked, and what it forks, with the environment of the user's program, which may be marked itself: these have a key in their
/// memory.
fn marked(reader: &LockedFileReader, pids: impl IntoIterator<Item = i32>) -> (BTreeSet<i32>, BTreeSet<i32>) {
    let environments = reader.read_each(pids, LockedFile::Environment);
    let is_marked = |block: &[u8]| tree::variable(block, VARIABLE) == Some(MARK.as_bytes());
    let marked: BTreeSet<i32> =
        environments.found.iter().filter(|(_, block)| is_marked(block)).map(|(pid, _)| *pid).collect();
    let keys = mark::in_memory(reader, marked.iter().copied());
    // A process whose memory map may not be read shows no key.
    let ranks = keys.found.into_iter().filter(|(_, keys)| !keys.is_empty()).map(|(pid, _)| pid).collect();
    (&(&marked - &ranks) - &keys.late, &environments.late | &keys.late)
}

/// What no sweep ends, or not yet.
#[derive(Debug, Default)]
pub struct SparedProcesses {
    /// The processes that were taken out of a list and whose ancestors are none of them.
    pub left: BTreeMap<i32, ProcStat>,
    /// Processes of the list that were not read in time, and their descendants. For `LATE_PATIENCE` they are not killed.
    pub late: BTreeSet<i32>,
}

/// How these processes are recognized: by their names, or by a variable.
#[derive(Clone, Debug, Default)]
pub struct NoSweep {
    names: BTreeSet<String>,
}

impl NoSweep {
    /// `names`: as the kernel shortens them.
    pub fn new(names: BTreeSet<String>) -> Self {
        Self { names }
    }

    /// Whether processes are spared by their names.
    pub fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Takes these processes and their descendants out of the list. `group`: the process group of a rank, whose members are
    /// not spared; `is_killed`: no need to look at it again.
    pub fn take_from(
        &self,
        reader: &LockedFileReader,
        there: &mut BTreeSet<i32>,
        all: &Snapshot,
        group: Option<i32>,
        is_killed: &dyn Fn(i32) -> bool,
    ) -> SparedProcesses {
        let candidate = |pid: &i32| {
            let stat = all.get(*pid).filter(|stat| stat.is_alive() && Some(stat.group) != group && !is_killed(*pid))?;
            Some((*pid, stat))
        };
        let (named, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            there.iter().filter_map(candidate).partition(|(_, stat)| self.names.contains(&stat.name));
        let (marked, late) = marked(reader, others.keys().copied());
        let spared = named.into_iter().chain(others.into_iter().filter(|(pid, _)| marked.contains(pid)));
        let found: BTreeMap<i32, ProcStat> = spared.map(|(pid, stat)| (pid, stat.clone())).collect();
        let below: BTreeSet<i32> = found.keys().flat_map(|pid| all.descendants(*pid)).collect();
        there.retain(|pid| !found.contains_key(pid) && !below.contains(pid));
        let late = &all.trees(late) & there;
        SparedProcesses { left: found.into_iter().filter(|(pid, _)| !below.contains(pid)).collect(), late }
    }

    /// Moves these processes and their descendants out of the cgroup. Whether none of them is left in it. `spares_late`:
    /// processes that were not read in time may be some of them.
    pub fn release(&self, reader: &LockedFileReader, cgroup: &JobCgroup, spares_late: bool) -> bool {
        let mut released = BTreeSet::new();
        for _ in 0..RELEASE_ROUNDS {
            let members: BTreeSet<i32> = cgroup.members().into_iter().collect();
            // Descendants are found by their ancestors, which may be outside by now.
            let mut others = &members | &released;
            let all = if others.is_empty() { Snapshot::default() } else { Snapshot::take() };
            let late = self.take_from(reader, &mut others, &all, None, &|_| false).late;
            let inside = &members - &others;
            if inside.is_empty() || !inside.iter().all(|pid| cgroup.release(*pid)) {
                return inside.is_empty() && (late.is_empty() || !spares_late);
            }
            released.extend(inside);
        }
        false
    }
}
