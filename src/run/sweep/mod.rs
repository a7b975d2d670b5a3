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
use crate::sys::process::tree;
use crate::sys::process::tree::{CleanupHelper, ProcStat};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;
use tracing::info;

/// The variable that marks the processes of a rank, also after they have another parent.
pub const KEY: &str = "RLAUNCH_RANK_KEY";

/// How often the remaining processes are listed again.
const INTERVAL: Duration = Duration::from_millis(1);

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

/// Killed processes and the name under which each was last seen: a process may call execve in the meantime.
type Killed = BTreeMap<i32, String>;

fn leftovers(found: Killed) -> Vec<Leftover> {
    found.into_iter().map(|(pid, name)| Leftover { pid, name }).collect()
}

fn this() -> i32 {
    std::process::id() as i32
}

/// Until when a `torch_shm_manager` is waited for whose clients ended at `ended`, if there is one.
pub fn shm_manager_works_until(ended: Duration) -> Option<Duration> {
    let until = ended + TORCH_PATIENCE;
    let works = || tree::descendants(this()).into_iter().any(CleanupHelper::is_torch_shm_manager);
    (clock::now() < until && works()).then_some(until)
}

/// Waits while one of these ranks or a process that it has started, such as a data loader's worker, is creating shared memory
/// for torch. On a busy machine that may take some milliseconds.
pub fn await_torch_memory(ranks: &[i32]) {
    let begun = clock::now();
    let is_creating = |pid: i32| {
        let with_descendants = std::iter::once(pid).chain(tree::descendants(pid));
        with_descendants.into_iter().any(tree::is_creating_torch_memory)
    };
    let mut creating: Vec<i32> = ranks.iter().copied().filter(|pid| is_creating(*pid)).collect();
    while !creating.is_empty()
        && since(begun) < MULTIPROCESSING_PATIENCE
        && Poller::new().and_then(|poll| poll.wait(Some(INTERVAL))).is_ok()
    {
        creating.retain(|pid| is_creating(*pid));
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
    key: &str,
    no_sweep: &NoSweep,
    budget: &mut SweepBudget,
) -> io::Result<Vec<Leftover>> {
    let (mut found, mut dead, mut seen) = (Killed::new(), BTreeSet::new(), BTreeSet::new());
    let begun = clock::now();
    let limit = budget.left(begun, RANK_LIMIT);
    // At least one round, even if the budget is spent.
    for round in 0.. {
        let mut there = BTreeSet::new();
        // A process that has died since the list was read has left its children to this process, and they are not on the
        // list. A process in the middle of execve cannot be recognized.
        let (mut again, mut unclear) = (false, false);
        for child in tree::children(this()).into_iter().filter(|child| !end.unreaped.contains(child)) {
            if round > 0 && since(begun) >= limit {
                break;
            }
            let Some(stat) = living(child) else {
                again |= dead.insert(child);
                continue;
            };
            if stat.session == end.pid || tree::has_key(child, KEY, key) {
                there.insert(child);
                there.extend(tree::descendants(child));
            } else {
                unclear |= tree::has_no_environment(child) && budget.may_be_in_execve(child, &stat);
            }
        }
        // It may serve other ranks, and has 2 s: the sweep of the job waits for it.
        there.retain(|pid| !CleanupHelper::is_torch_shm_manager(*pid));
        no_sweep.take_from(&mut there, Some(end.pid));
        seen.extend(&there);
        if there.is_empty() && !again && !unclear {
            break;
        }
        there.retain(|pid| !(end.killed && ProcStat::of(*pid).is_some_and(|stat| stat.group == end.pid)));
        spare_helpers(&mut there, begun);
        for pid in there {
            kill(pid, &mut found);
        }
        if since(begun) >= limit {
            break;
        }
        if !again {
            Poller::new()?.wait(Some(INTERVAL))?;
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

    /// Whether a process without an environment may still be in the middle of execve.
    fn may_be_in_execve(&mut self, pid: i32, stat: &ProcStat) -> bool {
        let now = clock::now();
        now.saturating_sub(*self.bare.entry((pid, stat.started)).or_insert(now)) < EXEC_PATIENCE
    }
}

/// Takes processes out of the list while they have time to end by themselves. Whether there was one. Reads the clock for
/// each process: to read the command line of one that forks without pause took 50 ms.
fn spare_helpers(there: &mut BTreeSet<i32>, begun: Duration) -> bool {
    let all = there.len();
    there.retain(|pid| {
        let spent = since(begun);
        if spent >= MULTIPROCESSING_PATIENCE {
            return spent >= TORCH_PATIENCE || !CleanupHelper::is_torch_shm_manager(*pid);
        }
        let patience = match CleanupHelper::of(*pid) {
            Some(CleanupHelper::TorchShmManager) => TORCH_PATIENCE,
            Some(CleanupHelper::Multiprocessing) => MULTIPROCESSING_PATIENCE,
            // A process in the middle of execve may become one of them.
            None if spent < EXEC_PATIENCE && tree::has_no_command_line(*pid) => EXEC_PATIENCE,
            None if tree::is_creating_torch_memory(*pid) => MULTIPROCESSING_PATIENCE,
            None => Duration::ZERO,
        };
        spent >= patience
    });
    there.len() < all
}

/// Says once why the job takes longer to end.
fn say_helpers_work(spared: bool, begun: Duration, said: &mut bool) {
    if spared && !*said && since(begun) > MULTIPROCESSING_PATIENCE {
        *said = true;
        let limit = TORCH_PATIENCE.as_secs();
        info!("waiting up to {limit} s for torch_shm_manager, which removes torch's shared memory");
    }
}

fn since(begun: Duration) -> Duration {
    clock::now().saturating_sub(begun)
}

/// The state of a process that is not a zombie. One that is exiting is waited for, but neither killed nor counted.
fn living(pid: i32) -> Option<ProcStat> {
    ProcStat::of(pid).filter(|stat| !stat.is_gone())
}

/// Kills a descendant of this process and records it.
fn kill(pid: i32, found: &mut Killed) {
    let Some(stat) = ProcStat::of(pid) else { return };
    // The pid is reused only after the parent has reaped the process: then the new process has another parent.
    if tree::kill_if(pid, |now| now.parent == stat.parent || now.parent == this()) {
        found.insert(pid, stat.name);
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
        if is_urgent() {
            begun = Duration::ZERO;
        }
        // First: a process that forks and ends without pause would keep the steps below busy.
        let populated = cgroup.filter(|cgroup| cgroup.is_populated());
        if let Some(cgroup) = populated {
            kill_cgroup(cgroup, no_sweep, begun, &mut found);
        }
        let reaped = tree::reap_orphans(|pid| kept.contains(&pid));
        let mut there: BTreeSet<i32> = populated.map(JobCgroup::members).into_iter().flatten().collect();
        for child in tree::children(this()).into_iter().filter(|child| !kept.contains(child)) {
            there.insert(child);
            there.extend(tree::descendants(child));
        }
        there.retain(|pid| living(*pid).is_some());
        let left = leftovers(no_sweep.take_from(&mut there, None));
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
        let spared = spare_helpers(&mut there, begun);
        say_helpers_work(spared, begun, &mut said);
        if spared {
            killing = clock::now();
        }
        if since(killing) >= KILL_PATIENCE {
            let memory = paddle_memory::remove_of(&with_killed(seen, &found));
            let (killed, stuck) = leftovers(found).into_iter().partition(|l: &Leftover| !there.contains(&l.pid));
            return Ok(SweepResult { killed, stuck, left, memory });
        }
        for pid in there {
            kill(pid, &mut found);
        }
        poll.wait(Some(INTERVAL))?;
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
    if spare_helpers(&mut there, begun) || !is_released {
        return;
    }
    let name = |pid: &i32| ProcStat::of(*pid).filter(ProcStat::is_alive).map(|stat| (*pid, stat.name));
    let seen: Killed = there.iter().filter_map(name).collect();
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
pub fn by_key(key: &str, no_sweep: &NoSweep, ended: &BTreeSet<i32>) -> io::Result<SweepResult> {
    let mut found = Killed::new();
    let prefix = format!("{key}/");
    let begun = clock::now();
    let mut killing = begun;
    let poll = Poller::new()?;
    loop {
        let mut there: BTreeSet<i32> = tree::all_with_key(KEY, &prefix).into_iter().collect();
        // An exiting process has no environment any more.
        there.extend(found.keys());
        there.retain(|pid| living(*pid).is_some());
        let left = leftovers(no_sweep.take_from(&mut there, None));
        let is_empty = there.is_empty();
        if spare_helpers(&mut there, begun) {
            killing = clock::now();
        }
        if is_empty || since(killing) >= KILL_PATIENCE {
            let memory = paddle_memory::remove_of(&with_killed(ended.clone(), &found));
            return Ok(SweepResult { killed: leftovers(found), stuck: Vec::new(), left, memory });
        }
        for pid in there {
            let Some(stat) = ProcStat::of(pid) else { continue };
            if tree::kill_if(pid, |_| tree::has_key_prefix(pid, KEY, &prefix)) {
                found.insert(pid, stat.name);
            }
        }
        poll.wait(Some(INTERVAL))?;
    }
}
