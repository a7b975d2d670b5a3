//! `--no_sweep`: processes that a rank leaves behind and that no sweep ends, because the user wants them to live.

use crate::spec::no_sweep::{MARK, VARIABLE};
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::{mark, tree};
use std::collections::{BTreeMap, BTreeSet};

/// How often the members of a cgroup are listed until none of these processes is among them: they may fork meanwhile.
const RELEASE_ROUNDS: u32 = 20;

/// Whether a process was started with the mark. /proc shows a rank that was forked, and what it forks, with the environment
/// of the user's program, which may be marked itself: these have a key in their memory.
fn is_marked(pid: i32) -> bool {
    tree::variable(pid, VARIABLE).is_some_and(|value| value == MARK.as_bytes()) && mark::in_memory(pid).is_empty()
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
        there: &mut BTreeSet<i32>,
        all: &Snapshot,
        group: Option<i32>,
        is_killed: &dyn Fn(i32) -> bool,
    ) -> BTreeMap<i32, ProcStat> {
        let spared = |pid: &i32| {
            let stat = all.get(*pid).filter(|stat| stat.is_alive() && Some(stat.group) != group && !is_killed(*pid))?;
            (self.names.contains(&stat.name) || is_marked(*pid)).then(|| (*pid, stat.clone()))
        };
        let found: BTreeMap<i32, ProcStat> = there.iter().filter_map(spared).collect();
        let below: BTreeSet<i32> = found.keys().flat_map(|pid| all.descendants(*pid)).collect();
        there.retain(|pid| !found.contains_key(pid) && !below.contains(pid));
        found.into_iter().filter(|(pid, _)| !below.contains(pid)).collect()
    }

    /// Moves these processes and their descendants out of the cgroup. Whether none of them is left in it.
    pub fn release(&self, cgroup: &JobCgroup) -> bool {
        let mut released = BTreeSet::new();
        for _ in 0..RELEASE_ROUNDS {
            let members: BTreeSet<i32> = cgroup.members().into_iter().collect();
            // Descendants are found by their ancestors, which may be outside by now.
            let mut others = &members | &released;
            let all = if others.is_empty() { Snapshot::default() } else { Snapshot::take() };
            self.take_from(&mut others, &all, None, &|_| false);
            let inside = &members - &others;
            if inside.is_empty() || !inside.iter().all(|pid| cgroup.release(*pid)) {
                return inside.is_empty();
            }
            released.extend(inside);
        }
        false
    }
}
