//! `--no_sweep`: processes that a rank leaves behind and that no sweep ends, because the user wants them to live.

use crate::spec::no_sweep::{MARK, VARIABLE};
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::process::tree::ProcStat;
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
    /// id. `group`: the process group of a rank, whose members are not spared.
    pub fn take_from(&self, there: &mut BTreeSet<i32>, group: Option<i32>) -> BTreeMap<i32, String> {
        let name = |pid: &i32| {
            let stat = ProcStat::of(*pid).filter(|stat| stat.is_alive() && Some(stat.group) != group)?;
            (self.names.contains(&stat.name) || is_marked(*pid)).then_some((*pid, stat.name))
        };
        let found: BTreeMap<i32, String> = there.iter().filter_map(name).collect();
        let below: BTreeSet<i32> = found.keys().flat_map(|pid| tree::descendants(*pid)).collect();
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
            self.take_from(&mut others, None);
            let inside = &members - &others;
            if inside.is_empty() || !inside.iter().all(|pid| cgroup.release(*pid)) {
                return inside.is_empty();
            }
            released.extend(inside);
        }
        false
    }
}
