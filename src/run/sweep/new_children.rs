//! Ends processes that fork and end without pause, where no cgroup ends them together: a list of all processes is read too late.

use crate::sys::clock;
use crate::sys::process::child;
use crate::sys::process::tree;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long orphans are reaped at once at the end of the job. Thousands that are not reaped make each list take seconds.
pub(super) const REAPING: Duration = Duration::from_millis(300);

/// How long children are killed between two lists at least; longer if the last list took longer.
const AT_LEAST: Duration = Duration::from_millis(20);

/// How many children are killed in one turn. The newest come first, because thousands that have ended may wait for being reaped.
const NEWEST_CHILDREN: usize = 500;

/// Kills and reaps children of this process as they appear. A process that forks and ends without pause has ended before a list of
/// all processes is read; its last descendant is always a child of this subreaper. Returns the reaped ones.
pub(super) fn kill(kept: &BTreeSet<i32>, last_list: Duration) -> BTreeSet<i32> {
    let (begun, mut reaped) = (clock::now(), BTreeSet::new());
    let (this, time) = (std::process::id() as i32, last_list.max(AT_LEAST));
    loop {
        // The newest are the last in the kernel's list. A child keeps its number until it is reaped, and the kernel gives a number
        // again only after all others (idr_alloc_cyclic in kernel/pid.c).
        let children: Vec<i32> = tree::children(this).into_iter().filter(|pid| !kept.contains(pid)).collect();
        child::kill_unreaped(children.iter().rev().take(NEWEST_CHILDREN).copied());
        reaped.extend(tree::reap_orphans(REAPING, |pid| kept.contains(&pid)));
        if children.is_empty() || clock::now() > begun + time {
            return reaped;
        }
    }
}
