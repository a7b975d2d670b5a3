//! Signals to a rank's process group that spare the helpers in it, such as multiprocessing's resource tracker: it ends by
//! itself once the rank has ended, after it has removed the rank's shared memory.

use crate::run::sweep::{SweepBudget, since};
use crate::sys::clock;
use crate::sys::process::child::Child;
use crate::sys::process::tree;
use crate::sys::process::tree::{CleanupHelper, ProcStat};
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

/// The time in each second for all ranks together. Once it is spent, signals go to whole groups.
const LIMIT: Duration = Duration::from_millis(100);

/// Sends a signal to a child or, if it leads a process group, to the members of the group. Helpers in it do not receive a
/// signal that would end them. The group's other members are then signalled one by one. If they fork faster than that, SIGKILL
/// goes to the whole group. In any case, the rest of the group is killed when the child is reaped.
pub fn send(child: &Child, signal: i32, budget: &mut SweepBudget) -> io::Result<()> {
    // The resource tracker ignores these two.
    if matches!(signal, libc::SIGTERM | libc::SIGINT) || !child.leads_group() {
        return child.signal(signal);
    }
    let begun = clock::now();
    let limit = budget.left(begun, LIMIT);
    let is_done = !limit.is_zero() && has_helper(child.pid()) && send_to_others(child.pid(), signal, begun, limit);
    budget.spend(since(begun));
    if is_done { Ok(()) } else { child.signal(signal) }
}

/// Whether a helper that a rank or its descendants have started is in the rank's process group.
fn has_helper(rank: i32) -> bool {
    members(rank, tree::descendants(rank)).any(|(pid, _)| CleanupHelper::of(pid).is_some())
}

/// Sends a signal to the members of a rank's process group that are no helpers. Whether all received it in time.
fn send_to_others(rank: i32, signal: i32, begun: Duration, limit: Duration) -> bool {
    let mut signalled = BTreeSet::new();
    loop {
        let before = signalled.len();
        // The second time, what the rank has started may be a child of this process.
        let own = tree::children(std::process::id() as i32);
        let roots: Vec<i32> = members(rank, own).map(|(pid, _)| pid).collect();
        let below = roots.iter().flat_map(|pid| tree::descendants(*pid));
        for (pid, started) in members(rank, roots.iter().copied().chain(below)) {
            // Any other signal has gone to some of them, and must not come twice.
            if signal == libc::SIGKILL && since(begun) >= limit {
                return false;
            }
            if !signalled.contains(&(pid, started)) && CleanupHelper::of(pid).is_none() {
                tree::signal_if(pid, signal, |now| now.group == rank && now.started == started);
                signalled.insert((pid, started));
            }
        }
        // A process with a pending SIGKILL forks no more (copy_process in kernel/fork.c), so a list without a new member is
        // complete. Processes that are forked after another signal do not get it from a signal to the group either.
        if signal != libc::SIGKILL || signalled.len() == before {
            return true;
        }
    }
}

/// Those of these processes that are in a process group and run, with their start times.
fn members(group: i32, pids: impl IntoIterator<Item = i32>) -> impl Iterator<Item = (i32, u64)> {
    let of_group = move |pid| ProcStat::of(pid).filter(|stat| stat.group == group && stat.is_alive());
    pids.into_iter().filter_map(move |pid| Some((pid, of_group(pid)?.started)))
}
