//! Signals to a rank's process group that spare the helpers in it, such as multiprocessing's resource tracker: it ends by
//! itself once the rank has ended, after it has removed the rank's shared memory.

use super::after_rank::SweepBudget;
use super::since;
use crate::sys::clock;
use crate::sys::process::child::Child;
use crate::sys::process::procfs::reader::{LockedFile, LockedFileReader};
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::tree;
use crate::sys::process::tree::CleanupHelper;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// The time in each second for all ranks together. Once it is spent, signals go to whole groups. On a busy machine one
/// signal took 450 ms.
const LIMIT: Duration = Duration::from_millis(500);
/// The signals that helpers such as the resource tracker ignore.
const HELPERS_IGNORE: [i32; 2] = [libc::SIGTERM, libc::SIGINT];

/// Sends a signal to a child or, if it leads a process group, to the members of the group. Helpers in it do not receive a
/// signal that would end them. The group's other members are then signalled one by one. If they fork faster than that, SIGKILL
/// goes to the whole group. In any case, the rest of the group is killed when the child is reaped. `seen`: a snapshot for all
/// children that are signalled at once.
pub fn send(child: &Child, signal: i32, budget: &mut SweepBudget, seen: &OnceCell<Snapshot>) -> io::Result<()> {
    if HELPERS_IGNORE.contains(&signal) || !child.leads_group() {
        return child.signal(signal);
    }
    let begun = clock::now();
    let limit = budget.left(begun, LIMIT);
    let is_done = !limit.is_zero()
        && !helpers(&budget.reader, members(child.pid(), seen.get_or_init(Snapshot::take))).is_empty()
        && send_to_others(&budget.reader, (child.pid(), None), signal, begun, limit);
    budget.spend(since(begun));
    if is_done { Ok(()) } else { child.signal(signal) }
}

/// Sends a signal to the members of a child's process group but the child. If the child has ended, they are the group.
pub fn send_to_rest(child: &Child, signal: i32, budget: &mut SweepBudget, seen: &OnceCell<Snapshot>) -> io::Result<()> {
    if !child.leads_group() || child.has_ended()? {
        return send(child, signal, budget, seen);
    }
    let rank = child.pid();
    if HELPERS_IGNORE.contains(&signal) {
        for (pid, stat) in members(rank, seen.get_or_init(Snapshot::take)).filter(|(pid, _)| *pid != rank) {
            tree::signal_if(pid, signal, |now| now.group == rank && now.started == stat.started);
        }
        return Ok(());
    }
    let begun = clock::now();
    send_to_others(&budget.reader, (child.pid(), Some(child.pid())), signal, begun, Duration::MAX);
    budget.spend(since(begun));
    Ok(())
}

/// The helpers among these processes. One call reads all command lines, because the limit of the reader is that of a call.
fn helpers<'a>(reader: &LockedFileReader, processes: impl Iterator<Item = (i32, &'a ProcStat)>) -> BTreeSet<i32> {
    let processes: BTreeMap<i32, &ProcStat> = processes.collect();
    let lines = reader.read_all(processes.keys().copied(), LockedFile::CommandLine);
    let words = |pid: i32| lines.get(&pid).map_or(&[][..], Vec::as_slice);
    let is_helper = |pid: i32, stat: &ProcStat| CleanupHelper::of(reader, stat, words(pid)).is_some();
    processes.into_iter().filter(|(pid, stat)| is_helper(*pid, stat)).map(|(pid, _)| pid).collect()
}

/// Sends a signal to the members of a rank's process group that are neither helpers nor the process `but`. Whether all received it in
/// time.
fn send_to_others(
    reader: &LockedFileReader,
    (rank, but): (i32, Option<i32>),
    signal: i32,
    begun: Duration,
    limit: Duration,
) -> bool {
    let mut signalled = BTreeSet::new();
    loop {
        let before = signalled.len();
        let all = Snapshot::take();
        let is_new = |(pid, stat): &(i32, &ProcStat)| Some(*pid) != but && !signalled.contains(&(*pid, stat.started));
        let new: Vec<(i32, &ProcStat)> = members(rank, &all).filter(is_new).collect();
        let helpers = helpers(reader, new.iter().copied());
        for (pid, stat) in new {
            // Any other signal has gone to some of them, and must not come twice.
            if signal == libc::SIGKILL && since(begun) >= limit {
                return false;
            }
            if !helpers.contains(&pid) {
                tree::signal_if(pid, signal, |now| now.group == rank && now.started == stat.started);
                signalled.insert((pid, stat.started));
            }
        }
        // A process with a pending SIGKILL forks no more (copy_process in kernel/fork.c), so a list without a new member is
        // complete. Processes that are forked after another signal do not get it from a signal to the group either.
        if signal != libc::SIGKILL || signalled.len() == before {
            return true;
        }
    }
}

/// The members of a process group that run. Its number belongs to the rank until that is reaped.
fn members(group: i32, all: &Snapshot) -> impl Iterator<Item = (i32, &ProcStat)> {
    all.processes().filter(move |(_, stat)| stat.group == group && stat.is_alive())
}
