//! Signals to a rank's process group that spare the helpers in it, such as multiprocessing's resource tracker: it ends by
//! itself once the rank has ended, after it has removed the rank's shared memory.

use crate::run::sweep::{SweepBudget, since};
use crate::sys::clock;
use crate::sys::process::child::Child;
use crate::sys::process::procfs::reader::LockedFileReader;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::tree;
use crate::sys::process::tree::CleanupHelper;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

/// The time in each second for all ranks together. Once it is spent, signals go to whole groups.
const LIMIT: Duration = Duration::from_millis(100);

/// Sends a signal to a child or, if it leads a process group, to the members of the group. Helpers in it do not receive a
/// signal that would end them. The group's other members are then signalled one by one. If they fork faster than that, SIGKILL
/// goes to the whole group. In any case, the rest of the group is killed when the child is reaped. `seen`: a snapshot for all
/// children that are signalled at once.
pub fn send(child: &Child, signal: i32, budget: &mut SweepBudget, seen: &OnceCell<Snapshot>) -> io::Result<()> {
    // The resource tracker ignores these two.
    if matches!(signal, libc::SIGTERM | libc::SIGINT) || !child.leads_group() {
        return child.signal(signal);
    }
    let begun = clock::now();
    let limit = budget.left(begun, LIMIT);
    let is_done = !limit.is_zero()
        && has_helper(&budget.reader, child.pid(), seen.get_or_init(Snapshot::take))
        && send_to_others(&budget.reader, child.pid(), signal, begun, limit);
    budget.spend(since(begun));
    if is_done { Ok(()) } else { child.signal(signal) }
}

/// Whether a helper is in a rank's process group.
fn has_helper(reader: &LockedFileReader, rank: i32, all: &Snapshot) -> bool {
    members(rank, all).any(|(pid, stat)| is_helper(reader, pid, stat))
}

fn is_helper(reader: &LockedFileReader, pid: i32, stat: &ProcStat) -> bool {
    CleanupHelper::of(reader, stat, &tree::command_line(reader, pid)).is_some()
}

/// Sends a signal to the members of a rank's process group that are no helpers. Whether all received it in time.
fn send_to_others(reader: &LockedFileReader, rank: i32, signal: i32, begun: Duration, limit: Duration) -> bool {
    let mut signalled = BTreeSet::new();
    loop {
        let before = signalled.len();
        let all = Snapshot::take();
        for (pid, stat) in members(rank, &all) {
            // Any other signal has gone to some of them, and must not come twice.
            if signal == libc::SIGKILL && since(begun) >= limit {
                return false;
            }
            if !signalled.contains(&(pid, stat.started)) && !is_helper(reader, pid, stat) {
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
