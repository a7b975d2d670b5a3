//! `--no_sweep`: processes that a rank leaves behind and that no sweep ends, because the user wants them to live.

use crate::spec::no_sweep::{MARK, VARIABLE};
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::process::procfs::reader::{LockedFile, LockedFileReader};
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::{mark, tree};
use std::collections::{BTreeMap, BTreeSet};

/// How often the members of a cgroup are listed until none of these processes is among them: they may fork meanwhile.
const RELEASE_ROUNDS: u32 = 20;

/// Those of these processes that were started with the mark. /proc shows a rank that was forked, and what it forks, with the
/// environment of the user's program, which may be marked itself: these have a key in their memory.
fn marked(reader: &LockedFileReader, pids: impl IntoIterator<Item = i32>) -> BTreeSet<i32> {
    let environments = reader.read_all(pids, LockedFile::Environment).into_iter();
    let with_mark = environments.filter(|(_, block)| tree::variable(block, VARIABLE) == Some(MARK.as_bytes()));
    let keys = mark::in_memory(reader, with_mark.map(|(pid, _)| pid));
    keys.into_iter().filter(|(_, keys)| keys.is_empty()).map(|(pid, _)| pid).collect()
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

    /// Takes these processes and their descendants out of the list, and returns those whose ancestors are none of them, by
    /// id. `group`: the process group of a rank, whose members are not spared; `is_killed`: no need to look at it again.
    pub fn take_from(
        &self,
        reader: &LockedFileReader,
        there: &mut BTreeSet<i32>,
        all: &Snapshot,
        group: Option<i32>,
        is_killed: &dyn Fn(i32) -> bool,
    ) -> BTreeMap<i32, ProcStat> {
        let candidate = |pid: &i32| {
            let stat = all.get(*pid).filter(|stat| stat.is_alive() && Some(stat.group) != group && !is_killed(*pid))?;
            Some((*pid, stat))
        };
        let (named, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            there.iter().filter_map(candidate).partition(|(_, stat)| self.names.contains(&stat.name));
        let marked = marked(reader, others.keys().copied());
        let spared = named.into_iter().chain(others.into_iter().filter(|(pid, _)| marked.contains(pid)));
        let found: BTreeMap<i32, ProcStat> = spared.map(|(pid, stat)| (pid, stat.clone())).collect();
        let below: BTreeSet<i32> = found.keys().flat_map(|pid| all.descendants(*pid)).collect();
        there.retain(|pid| !found.contains_key(pid) && !below.contains(pid));
        found.into_iter().filter(|(pid, _)| !below.contains(pid)).collect()
    }

    /// Moves these processes and their descendants out of the cgroup. Whether none of them is left in it.
    pub fn release(&self, reader: &LockedFileReader, cgroup: &JobCgroup) -> bool {
        let mut released = BTreeSet::new();
        for _ in 0..RELEASE_ROUNDS {
            let members: BTreeSet<i32> = cgroup.members().into_iter().collect();
            // Descendants are found by their ancestors, which may be outside by now.
            let mut others = &members | &released;
            let all = if others.is_empty() { Snapshot::default() } else { Snapshot::take() };
            self.take_from(reader, &mut others, &all, None, &|_| false);
            let inside = &members - &others;
            if inside.is_empty() || !inside.iter().all(|pid| cgroup.release(*pid)) {
                return inside.is_empty();
            }
            released.extend(inside);
        }
        false
    }
}
