//! The sweep after one rank, on the event loop: what it leaves behind, between its end and its being reaped.

use super::no_sweep::NoSweep;
use super::{
    EXEC_PATIENCE, KEY, Killed, Leftover, interval, kill, leftovers, paddle_memory, pause, since, spare_helpers, this,
    was_killed,
};
use crate::run::engine::PendingExit;
use crate::sys::clock;
use crate::sys::process::procfs;
use crate::sys::process::procfs::reader::LockedFileReader;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::tree;
use crate::sys::process::tree::{CleanupHelper, KeyPlaces};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tracing::warn;

/// How long a rank's leftovers are swept: a process may fork while it is being killed. The sweep of the job ends the
/// rest.
const RANK_LIMIT: Duration = Duration::from_millis(300);

/// Kills the processes that a rank has left, after its end and before it is reaped. A process that leads a session of its own
/// is recognized by the rank's `key`. Processes that were killed together with the rank and still exit do not count. Those that a
/// shortage of descriptors hides are left to the sweep of the job.
pub fn after_rank(
    end: &PendingExit<'_>,
    (key, places): (&str, KeyPlaces),
    no_sweep: &NoSweep,
    budget: &mut SweepBudget,
) -> Vec<Leftover> {
    let (mut found, mut dead, mut seen) = (Killed::new(), BTreeSet::new(), BTreeSet::new());
    let begun = clock::now();
    let limit = budget.left(begun, RANK_LIMIT);
    // At least one round, even if the budget is spent.
    for round in 0.. {
        // A process that has died since the list was read has left its children to this process, and they are not on the
        // list. A process in the middle of execve cannot be recognized.
        let (mut again, mut unclear, listed) = (false, false, clock::now());
        let others: Vec<i32> = tree::children(this()).into_iter().filter(|pid| !end.unreaped.contains(pid)).collect();
        let all = if others.is_empty() { Snapshot::default() } else { Snapshot::take() };
        budget.forget_ended(&others);
        let (there, gone): (Vec<i32>, Vec<i32>) =
            others.into_iter().partition(|child| all.get(*child).is_some_and(|stat| !stat.is_gone()));
        for child in gone {
            again |= dead.insert(child);
        }
        let (mut roots, others): (Vec<i32>, Vec<i32>) =
            there.into_iter().partition(|child| all.get(*child).is_some_and(|stat| stat.session == end.pid));
        if round == 0 || since(begun) < limit {
            let bare = budget.read_keys(&others, &all, places);
            for (child, stat) in others.into_iter().filter_map(|child| Some((child, all.get(child)?))) {
                if budget.has_key(child, stat, key) {
                    roots.push(child);
                } else {
                    unclear |= bare.contains(&child) && budget.may_be_in_execve(child, stat);
                }
            }
        }
        let mut there = all.trees(roots);
        // It may serve other ranks, and has 2 s: the sweep of the job waits for it.
        there.retain(|pid| all.get(*pid).is_some_and(|stat| !CleanupHelper::is_torch_shm_manager(stat)));
        let is_killed = |pid: i32| was_killed(pid, &all, &found);
        let late = no_sweep.take_from(&budget.reader, &mut there, &all, Some(end.pid), &is_killed).late;
        seen.extend(&there);
        if there.is_empty() && !again && !unclear {
            break;
        }
        there.retain(|pid| !was_killed(*pid, &all, &found) && !late.contains(pid));
        there.retain(|pid| !(end.killed && all.get(*pid).is_some_and(|stat| stat.group == end.pid)));
        let is_last = since(begun) >= limit;
        let in_group = |pid: &i32| all.get(*pid).is_some_and(|stat| stat.group == end.pid);
        // Reaping the rank kills its process group, so a helper in it has no time beyond this sweep. Killed here, it is named.
        let (doomed, mut there): (BTreeSet<i32>, BTreeSet<i32>) =
            there.into_iter().partition(|pid| is_last && in_group(pid));
        spare_helpers(&budget.reader, &mut there, &all, begun);
        there.extend(doomed);
        kill(&budget.reader, &there, &all, &mut found);
        if is_last {
            break;
        }
        if !again {
            pause(interval(listed));
        }
    }
    if let Err(error) = procfs::check_descriptors()
        && !std::mem::replace(&mut budget.said_hidden, true)
    {
        warn!("cannot look for processes that ranks leave behind: {error}");
    }
    budget.spend(since(begun));
    // Not of the rank itself: until all ranks have ended, another one may read it.
    seen.append(&mut dead);
    paddle_memory::remove_of(&seen);
    leftovers(found)
}

/// The time that sweeps after ranks may take in each second: the event loop sees neither signals nor other ranks' ends
/// meanwhile. The sweep of the job ends the processes that remain.
#[derive(Debug)]
pub struct SweepBudget {
    /// Processes without an environment, by id and start time, and since when they are known. Some never have one.
    bare: BTreeMap<(i32, u64), Duration>,
    /// The keys of other ranks' processes, by id and start time: they are children of this process too, and are looked at
    /// after each rank.
    keys: BTreeMap<(i32, u64), Vec<Vec<u8>>>,
    pub(super) reader: LockedFileReader,
    /// The start of the present second, and how much of it has been spent.
    second: Duration,
    spent: Duration,
    /// It has been said that processes are hidden by a shortage.
    said_hidden: bool,
}

impl Default for SweepBudget {
    fn default() -> Self {
        let (bare, keys, reader) = (BTreeMap::new(), BTreeMap::new(), LockedFileReader::for_event_loop());
        Self { bare, keys, reader, second: Duration::ZERO, spent: Duration::ZERO, said_hidden: false }
    }
}

impl SweepBudget {
    /// How much of this limit is left in the present second.
    pub(super) fn left(&mut self, now: Duration, limit: Duration) -> Duration {
        if now.saturating_sub(self.second) >= Duration::from_secs(1) {
            (self.second, self.spent) = (now, Duration::ZERO);
        }
        limit.saturating_sub(self.spent)
    }

    /// Notes that a sweep which took this time is over.
    pub(super) fn spend(&mut self, time: Duration) {
        self.spent += time;
        // If this process is killed, the kernel kills each rank with the main thread, but its group only once the last thread has
        // closed the lifeline: too late if the rank is gone by then.
        self.reader.end_thread();
    }

    /// Notes the shared memory of ranks that are about to be signalled, and of the processes that they have started.
    pub fn see_memory(&mut self, ranks: &[i32]) {
        let begun = clock::now();
        paddle_memory::see(&self.reader, || Snapshot::take().trees(ranks.iter().copied()));
        self.spend(since(begun));
    }

    /// Forgets the keys of processes that have ended, once these are the most.
    fn forget_ended(&mut self, there: &[i32]) {
        if self.keys.len() > 2 * there.len() {
            let there: BTreeSet<i32> = there.iter().copied().collect();
            self.keys.retain(|(pid, _), _| there.contains(pid));
        }
    }

    /// Reads the keys of these processes. A process that has none may get one by execve. Returns those without an environment.
    fn read_keys(&mut self, pids: &[i32], all: &Snapshot, places: KeyPlaces) -> BTreeSet<i32> {
        let known = |pid: i32, started| self.keys.get(&(pid, started)).is_some_and(|keys| !keys.is_empty());
        let started: BTreeMap<i32, u64> = pids.iter().filter_map(|pid| Some((*pid, all.get(*pid)?.started))).collect();
        let unknown: Vec<i32> = started.iter().filter(|(pid, at)| !known(**pid, **at)).map(|(pid, _)| *pid).collect();
        let found = tree::keys(&self.reader, unknown, KEY, places);
        self.keys.extend(found.keys.into_iter().map(|(pid, keys)| ((pid, started[&pid]), keys)));
        found.bare
    }

    /// Whether a process has this key, as far as keys were read.
    fn has_key(&self, pid: i32, stat: &ProcStat, key: &str) -> bool {
        self.keys.get(&(pid, stat.started)).is_some_and(|keys| keys.iter().any(|found| found == key.as_bytes()))
    }

    /// Whether a process without an environment may still be in the middle of execve.
    fn may_be_in_execve(&mut self, pid: i32, stat: &ProcStat) -> bool {
        let now = clock::now();
        now.saturating_sub(*self.bare.entry((pid, stat.started)).or_insert(now)) < EXEC_PATIENCE
    }
}
