//! The sweep: kills the processes that ranks leave behind, also those that lead a session of their own or whose parent is
//! gone. Only for the launcher's own processes, which are subreapers: their new descendants belong to the job.

pub mod after_rank;
pub mod group_signal;
pub mod job_children;
mod new_children;
pub mod no_sweep;
pub mod paddle_memory;
pub mod stop_recipients;
pub mod stop_watch;

use crate::run::stacks::is_reader;
use crate::run::sweep::job_children::JobChildren;
use crate::run::sweep::no_sweep::{LATE_PATIENCE, NoSweep};
use crate::run::sweep::paddle_memory::RemovedMemory;
use crate::supervise::KILL_PATIENCE;
use crate::sys::clock;
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::process::pidfd;
use crate::sys::process::procfs;
use crate::sys::process::procfs::reader::{LockedFile, LockedFileReader};
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::tree;
use crate::sys::process::tree::{CleanupHelper, KeyPlaces, KeyedProcesses};
use crate::sys::signals;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;
use thiserror::Error;
use tracing::{info, warn};

/// The variable that marks the processes of a rank, also after they have another parent.
pub const KEY: &str = "RLAUNCH_RANK_KEY";

/// How often the remaining processes are listed again.
const INTERVAL: Duration = Duration::from_millis(1);

/// The longest pause after a list that took long: thousands of killed processes need the CPU to end.
const LONGEST_INTERVAL: Duration = Duration::from_millis(50);

/// A process that a rank left behind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leftover {
    /// Its process id.
    pub pid: i32,
    /// Its name as the kernel shortens it.
    pub name: String,
}

/// How long the helpers of multiprocessing, which clean up after a rank, may take to end by themselves. They take
/// milliseconds, but far longer where they have just started or the machine is busy. After a rank, those in its process group
/// have the time of its sweep at most, because they die with the group.
const MULTIPROCESSING_PATIENCE: Duration = Duration::from_secs(1);

/// How long a data loader's worker may take to remove the name of the shared memory that it is creating.
const CREATING_PATIENCE: Duration = Duration::from_millis(200);

/// The same for torch's, which first waits 2 s for other clients. With 3 s one was killed too early on a busy machine.
const TORCH_PATIENCE: Duration = Duration::from_secs(6);

/// How many command lines are read between two looks at the clock.
const COMMAND_LINES_AT_ONCE: usize = 16;

/// How long a process may have no environment: none is visible during execve.
const EXEC_PATIENCE: Duration = Duration::from_millis(100);

/// After this time, children are killed as soon as they are there, without a list of all processes in between: what still
/// appears may fork and end without pause.
const LISTS_PATIENCE: Duration = Duration::from_millis(100);

/// How long orphans are reaped at once on the event loop.
const EVENT_LOOP_REAPING: Duration = Duration::from_millis(20);

/// How long a sweep goes on at most while there are ever new processes to kill. Less than the time after which the launcher takes
/// its supervisor for stuck.
const NEW_PROCESSES_PATIENCE: Duration = Duration::from_secs(8);

/// How long killed processes may take to leave a cgroup. Most of them have been reaped.
pub const CGROUP_PATIENCE: Duration = Duration::from_millis(100);

/// Killed processes and how each was last seen: a process may call execve in the meantime.
type Killed = BTreeMap<i32, ProcStat>;

/// What the ranks have left behind of these.
fn leftovers(found: Killed) -> Vec<Leftover> {
    let of_ranks = found.into_iter().filter(|(pid, stat)| !is_reader(*pid, stat));
    of_ranks.map(|(pid, stat)| Leftover { pid, name: stat.name }).collect()
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
    while !creating.is_empty() && since(begun) < CREATING_PATIENCE {
        pause(INTERVAL);
        creating.retain(|pid| tree::is_creating_torch_memory(*pid));
    }
}

/// The value of `KEY` for one rank.
pub fn rank_key(key: &str, attempt: u32, local_rank: usize) -> String {
    format!("{key}/{attempt}/{local_rank}")
}

/// Takes processes out of the list while they have time to end by themselves. Whether there was one. After each
/// `COMMAND_LINES_AT_ONCE` it looks at the clock: to read the command line of a process that forks without pause took 50 ms.
fn spare_helpers(reader: &LockedFileReader, there: &mut BTreeSet<i32>, all: &Snapshot, begun: Duration) -> bool {
    let count = there.len();
    let creators = if there.is_empty() { BTreeSet::new() } else { tree::torch_memory_creators() };
    let pids: Vec<i32> = there.iter().copied().collect();
    for some in pids.chunks(COMMAND_LINES_AT_ONCE) {
        let is_early = since(begun) < MULTIPROCESSING_PATIENCE;
        let lines =
            if is_early { reader.read_all(some.iter().copied(), LockedFile::CommandLine) } else { BTreeMap::new() };
        for (pid, stat) in some.iter().filter_map(|pid| Some((*pid, all.get(*pid)?))) {
            let spent = since(begun);
            let words = lines.get(&pid).map_or(&[][..], Vec::as_slice);
            let patience = match CleanupHelper::of(reader, stat, words) {
                Some(CleanupHelper::TorchShmManager) => TORCH_PATIENCE,
                Some(CleanupHelper::Multiprocessing) => MULTIPROCESSING_PATIENCE,
                None if spent >= MULTIPROCESSING_PATIENCE => Duration::ZERO,
                // A process in the middle of execve may become one of them.
                None if spent < EXEC_PATIENCE && words.is_empty() && living(pid).is_some_and(|now| now.is_alive()) => {
                    EXEC_PATIENCE
                }
                None if creators.contains(&pid) && tree::is_creating_torch_memory(pid) => CREATING_PATIENCE,
                None => Duration::ZERO,
            };
            if spent < patience {
                there.remove(&pid);
            }
        }
    }
    there.len() < count
}

/// Takes processes out of the list that may be such as no sweep ends. Whether there was one.
fn spare_late(late: &BTreeSet<i32>, there: &mut BTreeSet<i32>, begun: Duration) -> bool {
    let count = there.len();
    if since(begun) < LATE_PATIENCE {
        there.retain(|pid| !late.contains(pid));
    }
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
fn interval(begun: Duration) -> Duration {
    since(begun).clamp(INTERVAL, LONGEST_INTERVAL)
}

/// Waits for this time, or until a signal handler has run. Needs no descriptor, and so cannot fail.
fn pause(time: Duration) {
    pidfd::await_any(&[], time);
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

/// Kills processes that the snapshot shows and records them, but for readers of stacks.
fn kill(reader: &LockedFileReader, pids: &BTreeSet<i32>, all: &Snapshot, killed: &mut Killed) {
    if !pids.is_empty() {
        paddle_memory::see(reader, || pids.clone());
    }
    for (pid, stat) in pids.iter().filter_map(|pid| Some((*pid, all.get(*pid)?))) {
        // The number may have gone to another process since.
        let is_reader = is_reader(pid, stat);
        let done = tree::kill_if(pid, |now| now.started == stat.started).filter(|_| !is_reader);
        killed.extend(done.map(|stat| (pid, stat)));
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

/// Why a sweep gave up: processes may be left.
#[derive(Debug, Error)]
#[error("cannot look for the processes of the job: {source}")]
pub struct SweepError {
    /// The processes that were killed before.
    pub killed: Vec<Leftover>,
    /// The shortage.
    #[source]
    pub source: io::Error,
}

/// The result of a sweep after which the job only reports its end; what was killed, if the sweep gave up.
pub fn result_of_last(swept: Result<SweepResult, SweepError>) -> SweepResult {
    swept.unwrap_or_else(|error| {
        warn!("{error}; some may be left");
        SweepResult { killed: error.killed, ..SweepResult::default() }
    })
}

/// An empty list means nothing while there are no descriptors to read /proc.
fn check_list(found: &Killed) -> Result<(), SweepError> {
    procfs::check_descriptors().map_err(|source| SweepError { killed: leftovers(found.clone()), source })
}

/// Reaps orphans as `tree::reap_orphans` does, on the event loop, and removes their shared memory. The next turn of the loop reaps
/// those that are left.
pub fn reap_orphans(is_known: impl Fn(i32) -> bool) {
    paddle_memory::remove_of(&reap_strangers(is_known));
}

/// Reaps orphans that may be none of the job: their shared memory is left. Returns their ids.
pub fn reap_strangers(is_known: impl Fn(i32) -> bool) -> BTreeSet<i32> {
    let begun = clock::now();
    let reaped = tree::reap_orphans(EVENT_LOOP_REAPING, is_known);
    if since(begun) >= EVENT_LOOP_REAPING {
        signals::wake();
    }
    reaped.into_iter().collect()
}

/// Kills and reaps all descendants of this process and all members of the job's cgroup until none is left. `kept`: children
/// that do not belong to the job; they and their descendants are spared.
pub fn all(
    kept: &BTreeSet<i32>,
    no_sweep: &NoSweep,
    cgroup: Option<&JobCgroup>,
    begun: Duration,
    is_urgent: &mut dyn FnMut() -> bool,
) -> Result<SweepResult, SweepError> {
    of_job(&mut JobChildren::AllBut(kept), no_sweep, cgroup, begun, is_urgent)
}

/// The same with those children that belong to the job. `begun`: since when helpers could clean up;
/// `is_urgent`: whether they get no more time.
pub fn of_job(
    job: &mut JobChildren<'_>,
    no_sweep: &NoSweep,
    cgroup: Option<&JobCgroup>,
    mut begun: Duration,
    is_urgent: &mut dyn FnMut() -> bool,
) -> Result<SweepResult, SweepError> {
    let reader = LockedFileReader::default();
    let (mut found, mut said, mut seen) = (Killed::new(), false, BTreeSet::new());
    // Since when everything that is there is killed. The first list may take longer than the patience.
    let mut killing = None;
    // When the last new process was found, and which of them are known, by id and start time: some cannot be killed.
    let (mut new_at, mut known) = (Duration::ZERO, BTreeSet::new());
    loop {
        let listed = clock::now();
        if is_urgent() {
            begun = Duration::ZERO;
        }
        // First: a process that forks and ends without pause would keep the steps below busy.
        let populated = cgroup.filter(|cgroup| cgroup.is_populated());
        if let Some(cgroup) = populated {
            kill_cgroup(&reader, cgroup, no_sweep, begun, &mut found);
        }
        let reaped = tree::reap_orphans(new_children::REAPING, |pid| job.leaves_zombie(pid));
        let members = populated.map(JobCgroup::members).into_iter().flatten();
        let children = tree::children(this());
        let (mut there, mut all) = (members.collect::<BTreeSet<i32>>(), Snapshot::default());
        if !there.is_empty() || children.iter().any(|pid| !job.leaves_zombie(*pid)) {
            all = Snapshot::take();
            there.extend(job.trees(&reader, children, &all));
        }
        there.retain(|pid| all.get(*pid).is_some_and(|stat| !stat.is_gone()));
        let was_killed = |pid: i32| was_killed(pid, &all, &found);
        let spared = no_sweep.take_from(&reader, &mut there, &all, None, &was_killed);
        let (left, late) = (leftovers(spared.left), spared.late);
        let is_none_reaped = reaped.is_empty();
        let have_others_ended = reaped.iter().any(|pid| !found.contains_key(pid));
        seen.extend(reaped.into_iter().filter(|pid| job.owned(*pid)));
        seen.extend(&there);
        // Reaped processes may have left children that are not on the list.
        if there.is_empty() && populated.is_none() && is_none_reaped {
            let reaped = tree::reap_orphans(new_children::REAPING, |pid| job.leaves_zombie(pid));
            if reaped.is_empty() {
                check_list(&found)?;
                let memory = paddle_memory::remove_of(&with_killed(seen, &found));
                return Ok(SweepResult { killed: leftovers(found), stuck: Vec::new(), left, memory });
            }
            seen.extend(reaped.into_iter().filter(|pid| job.owned(*pid)));
        }
        let mut todo: BTreeSet<i32> = there.iter().copied().filter(|pid| !was_killed(*pid)).collect();
        let are_late_spared = spare_late(&late, &mut todo, begun);
        let are_helpers_spared = spare_helpers(&reader, &mut todo, &all, begun);
        say_helpers_work(are_helpers_spared, begun, &mut said);
        if are_late_spared || are_helpers_spared {
            killing = None;
        }
        let started = |pid: &i32| all.get(*pid).map(|stat| (*pid, stat.started));
        let count = known.len();
        known.extend(todo.iter().filter_map(started));
        let is_one_new = have_others_ended || known.len() > count;
        if is_one_new {
            new_at = clock::now();
        }
        let spent = since(*killing.get_or_insert_with(clock::now));
        if spent >= NEW_PROCESSES_PATIENCE || (spent >= KILL_PATIENCE && since(new_at) >= KILL_PATIENCE) {
            if is_one_new {
                warn!("gave up after {} s: processes of the job fork faster than they can be killed", spent.as_secs());
            }
            let memory = paddle_memory::remove_of(&with_killed(seen, &found));
            let (killed, stuck) = leftovers(found).into_iter().partition(|l: &Leftover| !there.contains(&l.pid));
            return Ok(SweepResult { killed, stuck, left, memory });
        }
        kill(&reader, &todo, &all, &mut found);
        let is_one_spared = !left.is_empty() || are_late_spared || are_helpers_spared;
        let must_run = spent > LISTS_PATIENCE && is_one_new && !is_one_spared && populated.is_none();
        if let JobChildren::AllBut(kept) = job
            && must_run
        {
            seen.extend(new_children::kill(kept, since(listed)));
        } else {
            pause(interval(listed));
        }
    }
}

/// Adds the killed processes: a cgroup ends members that no list of `all` has shown.
fn with_killed(mut seen: BTreeSet<i32>, found: &Killed) -> BTreeSet<i32> {
    seen.extend(found.keys());
    seen
}

/// Kills all members of the cgroup by one write and records them, after those that no sweep ends have left it. While a process
/// in the cgroup is spared, the other members are killed one by one instead.
fn kill_cgroup(reader: &LockedFileReader, cgroup: &JobCgroup, no_sweep: &NoSweep, begun: Duration, found: &mut Killed) {
    let is_released = no_sweep.release(reader, cgroup, since(begun) < LATE_PATIENCE);
    let mut there: BTreeSet<i32> = cgroup.members().into_iter().collect();
    let all = if there.is_empty() { Snapshot::default() } else { Snapshot::take() };
    if spare_helpers(reader, &mut there, &all, begun) || !is_released {
        return;
    }
    let state = |pid: &i32| Some((*pid, all.get(*pid).filter(|stat| stat.is_alive())?.clone()));
    let seen: Killed = there.iter().filter_map(state).collect();
    if !seen.is_empty() {
        paddle_memory::see(reader, || seen.keys().copied().collect());
    }
    // If it fails, the members are killed one by one.
    if cgroup.kill().is_ok() {
        found.extend(seen);
    }
    // A zombie is listed only while it has other threads, which the write does not reach (seen on Linux 6.18).
    there.into_iter().for_each(tree::kill_leaderless);
}

/// Kills the members of the job's cgroup and removes it. It stays if processes that no sweep ends could not be moved out.
pub fn close(cgroup: Option<&JobCgroup>, no_sweep: &NoSweep) {
    if let Some(cgroup) = cgroup.filter(|cgroup| no_sweep.release(&LockedFileReader::default(), cgroup, false)) {
        // A cgroup with members that the kernel holds cannot be removed.
        let _ = cgroup.close(CGROUP_PATIENCE);
    }
}

/// Kills every process of this machine that has a rank key of this job (`KEY/...`): those that are no descendants of a launcher
/// process, or that outlived it. Removes their shared memory and that of the processes `ended`. `oldest`: the start time of the
/// process that the ranks belong to; `None`: of this one.
pub fn by_key(
    (key, places): (&str, KeyPlaces),
    no_sweep: &NoSweep,
    ended: &BTreeSet<i32>,
    oldest: Option<u64>,
) -> Result<SweepResult, SweepError> {
    let (mut found, mut recognized) = (Killed::new(), BTreeSet::new());
    let prefix = format!("{key}/");
    let reader = LockedFileReader::default();
    let begun = clock::now();
    let (mut killing, mut left) = (None, Vec::new());
    loop {
        let listed = clock::now();
        let all = Snapshot::take();
        // Environments are read again once these have ended, or do not end. They may have forked before.
        let is_dying = |pid: &i32| all.get(*pid).is_some_and(|stat| !stat.is_gone()) && was_killed(*pid, &all, &found);
        let dying: BTreeSet<i32> = found.keys().copied().filter(is_dying).collect();
        let is_over = dying.is_empty() || killing.is_some_and(|at| since(at) >= KILL_PATIENCE / 2);
        let (mut there, mut late) = (BTreeSet::new(), BTreeSet::new());
        if is_over {
            let keyed = tree::with_key_prefix(&reader, all.young(oldest), (KEY, &prefix), places);
            there = with_recognized(keyed, &all, &mut recognized);
            let spared = no_sweep.take_from(&reader, &mut there, &all, None, &|_| false);
            (left, late) = (leftovers(spared.left), spared.late);
        }
        let is_empty = dying.is_empty() && there.is_empty();
        let are_late_spared = spare_late(&late, &mut there, begun);
        if spare_helpers(&reader, &mut there, &all, begun) || are_late_spared {
            killing = None;
        }
        if is_empty {
            check_list(&found)?;
        }
        if is_empty || since(*killing.get_or_insert_with(clock::now)) >= KILL_PATIENCE {
            let memory = paddle_memory::remove_of(&with_killed(ended.clone(), &found));
            let (stuck, killed) = leftovers(found).into_iter().partition(|l: &Leftover| dying.contains(&l.pid));
            return Ok(SweepResult { killed, stuck, left, memory });
        }
        let there = tree::with_key_prefix(&reader, there, (KEY, &prefix), places);
        kill(&reader, &with_recognized(there, &all, &mut recognized), &all, &mut found);
        pause(interval(listed));
    }
}

/// The processes with a key, and those that had one before and could not be read in time. `recognized`: ids and start times.
fn with_recognized(keyed: KeyedProcesses, all: &Snapshot, recognized: &mut BTreeSet<(i32, u64)>) -> BTreeSet<i32> {
    let started = |pid: i32| Some((pid, all.get(pid)?.started));
    let had_key = |pid: &i32| started(*pid).is_some_and(|process| recognized.contains(&process));
    let late: BTreeSet<i32> = keyed.late.into_iter().filter(had_key).collect();
    recognized.extend(keyed.found.iter().filter_map(|pid| started(*pid)));
    &keyed.found | &late
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_of_stacks_that_is_being_started_is_no_leftover_of_a_rank() {
        let child = ProcStat { name: "rlaunch-look".into(), parent: this(), ..ProcStat::of(this()).unwrap() };
        let other = ProcStat { name: "sleep".into(), ..child.clone() };
        assert_eq!(leftovers(Killed::from([(this(), child.clone())])), []);
        assert_eq!(leftovers(Killed::from([(this(), other)])), [Leftover { pid: this(), name: "sleep".into() }]);
        // Of a rank: with another command line, or below another process.
        let below_another = ProcStat { parent: 1, ..child.clone() };
        for (pid, stat) in [(1, child), (this(), below_another)] {
            assert_eq!(leftovers(Killed::from([(pid, stat.clone())])), [Leftover { pid, name: stat.name }]);
        }
    }
}
