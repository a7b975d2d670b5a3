//! The dead-man switch of a node: the launcher process, which only waits, kills ranks that outlive the node's lease. It reads the
//! lease in shared memory and the states of processes, and touches no file that may hang.

use crate::rendezvous::lease::NodeLease;
use crate::sys::clock;
use crate::sys::io::boot_timer::BootTimer;
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::process::pidfd;
use crate::sys::process::procfs;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::spawn::SpawnedProcess;
use crate::sys::process::tree;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use tracing::warn;

/// How many times processes are listed again in a row: one that forks while it is killed leaves a child.
const PASSES: usize = 16;

/// The pause before the next look at ranks that should have ended.
const AGAIN: Duration = Duration::from_millis(200);

/// Watches the lease of this node from the launcher process.
pub struct LeaseGuard<'a> {
    lease: &'a NodeLease,
    timer: BootTimer,
    supervisor: i32,
    supervisor_pidfd: BorrowedFd<'a>,
    has_acted: Cell<bool>,
}

impl<'a> LeaseGuard<'a> {
    /// For the ranks of this supervisor process.
    pub fn new(lease: &'a NodeLease, supervisor: &'a SpawnedProcess) -> io::Result<Self> {
        let (pid, pidfd) = (supervisor.pid, supervisor.pidfd.as_fd());
        let has_acted = Cell::new(false);
        Ok(Self { lease, timer: BootTimer::new()?, supervisor: pid, supervisor_pidfd: pidfd, has_acted })
    }

    /// Kills the ranks if they have outlived the lease; else sets the timer, which wakes the caller. To be called at each wake.
    pub fn enforce(&self, cgroup: Option<&JobCgroup>) -> io::Result<()> {
        self.lease.take_changes();
        let Some(at) = self.lease.enforced_at() else {
            self.has_acted.set(false);
            return self.timer.set(None);
        };
        let now = clock::boot();
        if now < at {
            return self.timer.set(Some(at));
        }
        self.lease.enforce();
        let killed = self.kill(cgroup);
        if killed > 0 && !self.has_acted.replace(true) {
            warn!(
                "this node's lease has lapsed, and its supervisor process (pid {}) has not ended the ranks in time: the launcher \
                 process has killed {killed} process(es)",
                self.supervisor
            );
        }
        self.timer.set(Some(now + AGAIN))
    }

    /// Kills all descendants of the supervisor process, also those that no sweep would end. Returns how many. Orphans of ranks are
    /// its children; those of this process are none of the job.
    fn kill(&self, cgroup: Option<&JobCgroup>) -> usize {
        let mut killed = BTreeSet::new();
        if let Some(cgroup) = cgroup {
            let is_alive = |pid: &i32| ProcStat::of(*pid).is_some_and(|stat| stat.is_alive());
            killed.extend(cgroup.members().into_iter().filter(is_alive));
            // Without it, each process is killed by its id.
            let _ = cgroup.kill();
        }
        if procfs::verify().is_err() {
            // The kernel kills the ranks with it (`sys/process/lifeline.rs`).
            return usize::from(pidfd::send_signal(self.supervisor_pidfd, libc::SIGKILL).is_ok());
        }
        for _ in 0..PASSES {
            let all = Snapshot::take();
            let there = all.descendants(self.supervisor);
            let stats = there.iter().filter_map(|pid| Some((*pid, all.get(*pid)?)));
            let (alive, gone): (Vec<_>, Vec<_>) = stats.partition(|(_, stat)| stat.is_alive());
            // Other threads of theirs may run.
            gone.into_iter().for_each(|(pid, _)| tree::kill_leaderless(pid));
            let before = killed.len();
            killed.extend(
                alive
                    .into_iter()
                    .filter_map(|(pid, stat)| tree::kill_if(pid, |now| now.started == stat.started).map(|_| pid)),
            );
            if killed.len() == before {
                break;
            }
        }
        killed.len()
    }
}

impl AsFd for LeaseGuard<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
