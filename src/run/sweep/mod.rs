//! The sweep: kills the processes that ranks leave behind, also those that lead a session of their own or whose parent is
//! gone. Only for the launcher's own processes, which are subreapers: their new descendants belong to the job.

pub mod group_signal;
pub mod no_sweep;
pub mod paddle_memory;

use crate::run::engine::PendingExit;
use crate::run::sweep::no_sweep::NoSweep;
use crate::run::sweep::paddle_memory::RemovedMemory;
use crate::supervise::KILL_PATIENCE;
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::tree;
use crate::sys::process::tree::{CleanupHelper, KeyPlaces};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;
use tracing::info;

/// The variable that marks the processes of a rank, also after they have another parent.
pub const KEY: &str = "RLAUNCH_RANK_KEY";

/// How often the remaining processes are listed again.
const INTERVAL: Duration = Duration::from_millis(1);

/// The longest pause after a list that took long: thousands of killed processes need the CPU to end.
const LONGEST_INTERVAL: Duration = Duration::from_millis(50);

/// How long a rank's leftovers are swept: a process may fork while it is being killed. The sweep of the job ends the
/// rest.
const RANK_LIMIT: Duration = Duration::from_millis(300);

/// A process that a rank left behind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leftover {
    /// Its process id.
    pub pid: i32,
    /// Its name as the kernel shortens it.
    pub name: String,
}

/// How long the helpers of multiprocessing, which clean up after a rank, may take to end by themselves, and a data
/// loader's worker to remove the name of the shared memory that it is creating.
const MULTIPROCESSING_PATIENCE: Duration = Duration::from_millis(200);

/// The same for torch's, which first waits 2 s for other clients.
const TORCH_PATIENCE: Duration = Duration::from_secs(3);

/// How long a process may have no environment: none is visible during execve.
const EXEC_PATIENCE: Duration = Duration::from_millis(100);

/// How long killed processes may take to leave a cgroup. Most of them have been reaped.
pub const CGROUP_PATIENCE: Duration = Duration::from_millis(100);

/// Killed processes and how each was last seen: a process may call execve in the meantime.
type Killed = BTreeMap<i32, ProcStat>;

fn leftovers(found: Killed) -> Vec<Leftover> {
    found.into_iter().map(|(pid, stat)| Leftover { pid, name: stat.name }).collect()
}

fn this() -> i32 {
    std::process::id() as i32
}

/// Until when a `torch_shm_manager` is waited for whose clients ended at `ended`, if there is one.
pub fn shm_manager_works_until(ended: Duration) -> Option<Duration> {
    let until = ended + TORCH_PATIENCE;
    let works = || {
        let all = Snapshot::take();
        all.descendants(this()).into_iter().filter_map(|pid| all.get(pid)).any(CleanupHelper::is_torch_shm_manager)
    };
    (clock::now() < until && works()).then_some(until)
}

/// Waits while one of these ranks or a process that it has started, such as a data loader's worker, is creating shared memory
/// for torch. On a busy machine that may take some milliseconds.
pub fn await_torch_memory(ranks: &[i32]) {
    let begun = clock::now();
    let mut creating = tree::torch_memory_creators();
    if !creating.is_empty() {
        let below = Snapshot::take().trees(ranks.iter().copied());
        creating.retain(|pid| below.contains(pid) && tree::is_creating_torch_memory(*pid));
    }
    while !creating.is_empty()
        && since(begun) < MULTIPROCESSING_PATIENCE
        && Poller::new().and_then(|poll| poll.wait(Some(INTERVAL))).is_ok()
    {
        creating.retain(|pid| tree::is_creating_torch_memory(*pid));
    }
}

/// The value of `KEY` for one rank.
pub fn rank_key(key: &str, attempt: u32, local_rank: usize) -> String {
    format!("{key}/{attempt}/{local_rank}")
}

/// Kills the processes that a rank has left, after its end and before it is reaped. A process that leads a session of its own
/// is recognized by the rank's `key`. Processes that were killed together with the rank and still exit do not count.
pub fn after_rank(
    end: &PendingExit<'_>,
    (key, places): (&str, KeyPlaces),
    no_sweep: &NoSweep,
    budget: &mut SweepBudget,
) -> io::Result<Vec<Leftover>> {
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
        let mut roots = Vec::new();
        for child in others {
            if round > 0 && since(begun) >= limit {
                break;
            }
            let Some(stat) = all.get(child).filter(|stat| !stat.is_gone()) else {
                again |= dead.insert(child);
                continue;
            };
            if stat.session == end.pid || budget.has_key(child, stat, key, places) {
                roots.push(child);
            } else {
                unclear |= tree::has_no_environment(child) && budget.may_be_in_execve(child, stat);
            }
        }
        let mut there = all.trees(roots);
        // It may serve other ranks, and has 2 s: the sweep of the job waits for it.
        there.retain(|pid| all.get(*pid).is_some_and(|stat| !CleanupHelper::is_torch_shm_manager(stat)));
        no_sweep.take_from(&mut there, &all, Some(end.pid), &|pid| was_killed(pid, &all, &found));
        seen.extend(&there);
        if there.is_empty() && !again && !unclear {
            break;
        }
        there.retain(|pid| !was_killed(*pid, &all, &found));
        there.retain(|pid| !(end.killed && all.get(*pid).is_some_and(|stat| stat.group == end.pid)));
        spare_helpers(&mut there, &all, begun);
        kill(&there, &all, &mut found);
        if since(begun) >= limit {
            break;
        }
        if !again {
            Poller::new()?.wait(interval(listed))?;
        }
    }
    budget.spend(since(begun));
    // Not of the rank itself: until all ranks have ended, another one may read it.
    seen.append(&mut dead);
    paddle_memory::remove_of(&seen);
    Ok(leftovers(found))
}

/// The time that sweeps after ranks may take in each second: the event loop sees neither signals nor other ranks' ends
/// meanwhile. The sweep of the job ends the processes that remain.
#[derive(Debug, Default)]
pub struct SweepBudget {
    /// Processes without an environment, by id and start time, and since when they are known. Some never have one.
    bare: BTreeMap<(i32, u64), Duration>,
    /// The keys of other ranks' processes, by id and start time: they are children of this process too, and are looked at
    /// after each rank.
    keys: BTreeMap<(i32, u64), Vec<Vec<u8>>>,
    /// The start of the present second, and how much of it has been spent.
    second: Duration,
    spent: Duration,
}

impl SweepBudget {
    fn left(&mut self, now: Duration, limit: Duration) -> Duration {
        if now.saturating_sub(self.second) >= Duration::from_secs(1) {
            (self.second, self.spent) = (now, Duration::ZERO);
        }
        limit.saturating_sub(self.spent)
    }

    fn spend(&mut self, time: Duration) {
        self.spent += time;
    }

    /// Forgets the keys of processes that have ended, once these are the most.
    fn forget_ended(&mut self, there: &[i32]) {
        if self.keys.len() > 2 * there.len() {
            let there: BTreeSet<i32> = there.iter().copied().collect();
            self.keys.retain(|(pid, _), _| there.contains(pid));
        }
    }

    /// Whether a process has this key. A process that has none may get one by execve.
    fn has_key(&mut self, pid: i32, stat: &ProcStat, key: &str, places: KeyPlaces) -> bool {
        let keys = self.keys.entry((pid, stat.started)).or_default();
        if keys.is_empty() {
            *keys = tree::keys(pid, KEY, places);
        }
        keys.iter().any(|found| found == key.as_bytes())
    }

    /// Whether a process without an environment may still be in the middle of execve.
    fn may_be_in_execve(&mut self, pid: i32, stat: &ProcStat) -> bool {
        let now = clock::now();
        now.saturating_sub(*self.bare.entry((pid, stat.started)).or_insert(now)) < EXEC_PATIENCE
    }
}

/// Takes processes out of the list while they have time to end by themselves. Whether there was one. Reads the clock for
/// each process: to read the command line of one that forks without pause took 50 ms.
fn spare_helpers(there: &mut BTreeSet<i32>, all: &Snapshot, begun: Duration) -> bool {
    let count = there.len();
    let creators = if there.is_empty() { BTreeSet::new() } else { tree::torch_memory_creators() };
    there.retain(|pid| {
        let spent = since(begun);
        let Some(stat) = all.get(*pid) else { return true };
        if spent >= MULTIPROCESSING_PATIENCE {
            return spent >= TORCH_PATIENCE || !CleanupHelper::is_torch_shm_manager(stat);
        }
        let words = tree::command_line(*pid);
        let patience = match CleanupHelper::of(stat, &words) {
            Some(CleanupHelper::TorchShmManager) => TORCH_PATIENCE,
            Some(CleanupHelper::Multiprocessing) => MULTIPROCESSING_PATIENCE,
            // A process in the middle of execve may become one of them.
            None if spent < EXEC_PATIENCE && words.is_empty() && living(*pid).is_some_and(|now| now.is_alive()) => {
                EXEC_PATIENCE
            }
            None if creators.contains(pid) && tree::is_creating_torch_memory(*pid) => MULTIPROCESSING_PATIENCE,
            None => Duration::ZERO,
        };
        spent >= patience
    });
    there.len() < count
}

/// Says once why the job takes longer to end.
fn say_helpers_work(spared: bool, begun: Duration, said: &mut bool) {
    if spared && !*said && since(begun) > MULTIPROCESSING_PATIENCE {
        *said = true;
        let limit = TORCH_PATIENCE.as_secs();
        info!("waiting up to {limit} s for torch_shm_manager, which removes torch's shared memory");
    }
}

/// The time until the next list, after one that was begun at this time.
fn interval(begun: Duration) -> Option<Duration> {
    Some(since(begun).clamp(INTERVAL, LONGEST_INTERVAL))
}

fn since(begun: Duration) -> Duration {
    clock::now().saturating_sub(begun)
}

/// The state of a process that is not a zombie. One that is exiting is waited for, but neither killed nor counted.
fn living(pid: i32) -> Option<ProcStat> {
    ProcStat::of(pid).filter(|stat| !stat.is_gone())
}

/// Whether a process was killed and has not ended yet.
fn was_killed(pid: i32, all: &Snapshot, killed: &Killed) -> bool {
    killed.get(&pid).is_some_and(|before| all.get(pid).is_some_and(|stat| stat.started == before.started))
}

/// Kills processes that the snapshot shows and records them.
fn kill(pids: &BTreeSet<i32>, all: &Snapshot, killed: &mut Killed) {
    for (pid, stat) in pids.iter().filter_map(|pid| Some((*pid, all.get(*pid)?))) {
        // The number may have gone to another process since.
        killed.extend(tree::kill_if(pid, |now| now.started == stat.started).map(|stat| (pid, stat)));
    }
}

/// The result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// The processes that were killed.
    pub killed: Vec<Leftover>,
    /// The processes that did not end because the kernel holds them (state D).
    pub stuck: Vec<Leftover>,
    /// The processes that still run because the user wants them to.
    pub left: Vec<Leftover>,
    /// The shared memory of processes that have ended.
    pub memory: Vec<RemovedMemory>,
}

/// Reaps orphans as `tree::reap_orphans` does, and removes their shared memory.
pub fn reap_orphans(is_known: impl Fn(i32) -> bool) {
    paddle_memory::remove_of(&tree::reap_orphans(is_known).into_iter().collect());
}

/// Kills and reaps all descendants of this process and all members of the job's cgroup until none is left. `kept`: children
/// that do not belong to the job; they and their descendants are spared. `begun`: since when helpers could clean up;
/// `is_urgent`: whether they get no more time.
pub fn all(
    kept: &BTreeSet<i32>,
    no_sweep: &NoSweep,
    cgroup: Option<&JobCgroup>,
    mut begun: Duration,
    is_urgent: &mut dyn FnMut() -> bool,
) -> io::Result<SweepResult> {
    let poll = Poller::new()?;
    let (mut found, mut said, mut seen) = (Killed::new(), false, BTreeSet::new());
    // Since when everything that is there is killed.
    let mut killing = clock::now();
    loop {
        let listed = clock::now();
        if is_urgent() {
            begun = Duration::ZERO;
        }
        // First: a process that forks and ends without pause would keep the steps below busy.
        let populated = cgroup.filter(|cgroup| cgroup.is_populated());
        if let Some(cgroup) = populated {
            kill_cgroup(cgroup, no_sweep, begun, &mut found);
        }
        let reaped = tree::reap_orphans(|pid| kept.contains(&pid));
        let members = populated.map(JobCgroup::members).into_iter().flatten();
        let roots: Vec<i32> = tree::children(this()).into_iter().filter(|pid| !kept.contains(pid)).collect();
        let (mut there, mut all) = (members.collect::<BTreeSet<i32>>(), Snapshot::default());
        if !there.is_empty() || !roots.is_empty() {
            all = Snapshot::take();
            there.extend(all.trees(roots));
        }
        there.retain(|pid| all.get(*pid).is_some_and(|stat| !stat.is_gone()));
        let left = leftovers(no_sweep.take_from(&mut there, &all, None, &|pid| was_killed(pid, &all, &found)));
        let is_none_reaped = reaped.is_empty();
        seen.extend(reaped);
        seen.extend(&there);
        // Reaped processes may have left children that are not on the list.
        if there.is_empty() && populated.is_none() && is_none_reaped {
            let reaped = tree::reap_orphans(|pid| kept.contains(&pid));
            if reaped.is_empty() {
                let memory = paddle_memory::remove_of(&with_killed(seen, &found));
                return Ok(SweepResult { killed: leftovers(found), stuck: Vec::new(), left, memory });
            }
            seen.extend(reaped);
        }
        let mut todo: BTreeSet<i32> = there.iter().copied().filter(|pid| !was_killed(*pid, &all, &found)).collect();
        let spared = spare_helpers(&mut todo, &all, begun);
        say_helpers_work(spared, begun, &mut said);
        if spared {
            killing = clock::now();
        }
        if since(killing) >= KILL_PATIENCE {
            let memory = paddle_memory::remove_of(&with_killed(seen, &found));
            let (killed, stuck) = leftovers(found).into_iter().partition(|l: &Leftover| !there.contains(&l.pid));
            return Ok(SweepResult { killed, stuck, left, memory });
        }
        kill(&todo, &all, &mut found);
        poll.wait(interval(listed))?;
    }
}

/// Adds the killed processes: a cgroup ends members that no list of `all` has shown.
fn with_killed(mut seen: BTreeSet<i32>, found: &Killed) -> BTreeSet<i32> {
    seen.extend(found.keys());
    seen
}

/// Kills all members of the cgroup by one write and records them, after those that no sweep ends have left it. While a process
/// in the cgroup is spared, the other members are killed one by one instead.
fn kill_cgroup(cgroup: &JobCgroup, no_sweep: &NoSweep, begun: Duration, found: &mut Killed) {
    let is_released = no_sweep.release(cgroup);
    let mut there: BTreeSet<i32> = cgroup.members().into_iter().collect();
    let all = if there.is_empty() { Snapshot::default() } else { Snapshot::take() };
    if spare_helpers(&mut there, &all, begun) || !is_released {
        return;
    }
    let state = |pid: &i32| Some((*pid, all.get(*pid).filter(|stat| stat.is_alive())?.clone()));
    let seen: Killed = there.iter().filter_map(state).collect();
    // If it fails, the members are killed one by one.
    if cgroup.kill().is_ok() {
        found.extend(seen);
    }
    // A zombie is listed only while it has other threads, which the write does not reach (seen on Linux 6.18).
    there.into_iter().for_each(tree::kill_leaderless);
}

/// Kills the members of the job's cgroup and removes it. It stays if processes that no sweep ends could not be moved out.
pub fn close(cgroup: Option<&JobCgroup>, no_sweep: &NoSweep) {
    if let Some(cgroup) = cgroup.filter(|cgroup| no_sweep.release(cgroup)) {
        // A cgroup with members that the kernel holds cannot be removed.
        let _ = cgroup.close(CGROUP_PATIENCE);
    }
}

/// Kills every process of this machine that has a rank key of this job (`KEY/...`): those that are no descendants of a launcher
/// process, or that outlived it. Removes their shared memory and that of the processes `ended`.
pub fn by_key((key, places): (&str, KeyPlaces), no_sweep: &NoSweep, ended: &BTreeSet<i32>) -> io::Result<SweepResult> {
    let mut found = Killed::new();
    let prefix = format!("{key}/");
    let begun = clock::now();
    let (mut killing, mut left) = (begun, Vec::new());
    let poll = Poller::new()?;
    loop {
        let listed = clock::now();
        let all = Snapshot::take();
        // Environments are read again once these have ended, or do not end. They may have forked before.
        let is_dying = |pid: &i32| all.get(*pid).is_some_and(|stat| !stat.is_gone()) && was_killed(*pid, &all, &found);
        let is_over = !found.keys().any(is_dying) || since(killing) >= KILL_PATIENCE / 2;
        let mut there = BTreeSet::new();
        if is_over {
            there = tree::all_with_key(&all, KEY, &prefix, places);
            left = leftovers(no_sweep.take_from(&mut there, &all, None, &|_| false));
        }
        let is_empty = is_over && there.is_empty();
        if spare_helpers(&mut there, &all, begun) {
            killing = clock::now();
        }
        if is_empty || since(killing) >= KILL_PATIENCE {
            let memory = paddle_memory::remove_of(&with_killed(ended.clone(), &found));
            return Ok(SweepResult { killed: leftovers(found), stuck: Vec::new(), left, memory });
        }
        there.retain(|pid| tree::has_key_prefix(*pid, KEY, &prefix, places));
        kill(&there, &all, &mut found);
        poll.wait(interval(listed))?;
    }
}
