//! The two processes of a launch. The *launcher process* is the one that the user started: it passes signals on and
//! watches. The *supervisor process*, its only child, leads a session of its own and is the parent of the ranks. Both are
//! subreapers: if one of them is killed, the other becomes the parent of all remaining processes and ends them.
//! `supervise/supervisor.rs` decides what a stop signal (SIGTERM, SIGINT, ...) leads to.

use crate::model::Exit;
use crate::rendezvous::lease::NodeLease;
use crate::run::launch::Launch;
use crate::run::multi_node::lease_guard::LeaseGuard;
use crate::run::stop_requests::{StopCount, StopRoute, StopTable};
use crate::run::sweep;
use crate::run::sweep::job_children::JobChildren;
use crate::run::sweep::{SweepResult, paddle_memory};
use crate::run::zygote;
use crate::sys::clock;
use crate::sys::io::fd;
use crate::sys::io::poll::Poller;
use crate::sys::process::pidfd;
use crate::sys::process::pidfd::CollectedStatus;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::spawn::{ForkSide, SpawnedProcess, fork_launcher, other_threads};
use crate::sys::process::tree;
use crate::sys::signals::{self, HeldStop, ReceivedSignal, SignalPipe, Signals};
use nix::fcntl::OFlag;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// Which of the two processes this one is.
pub enum ProcessSide {
    /// The launcher process.
    Launcher(LauncherSide),
    /// The supervisor process.
    Supervisor(SupervisorSide),
}

/// The supervisor process's connection to the launcher process.
pub struct SupervisorSide {
    /// A pidfd of the launcher process, whose end ends the job.
    pub launcher: OwnedFd,
    /// A pipe with the signals that the launcher process passes on. A signal that is sent to both processes (a systemd unit that
    /// stops, `pkill`) also arrives here, so the supervisor can count it once. Only its inbox reads it (`signal_inbox.rs`).
    pub requests: OwnedFd,
    /// Tells the launcher process of a stop by the control socket.
    pub notice: StopNotice,
    status: OwnedFd,
}

/// A deadline that is missed by more than this was not missed because the machine is busy.
const SUSPENDED: Duration = Duration::from_secs(2);

/// How the launcher process learns of stops that reach the supervisor process alone, which may be stuck at a disk.
#[derive(Clone, Debug)]
pub struct StopNotice(Arc<EventFd>);

/// In the counter of a notice: the ranks have no time to end. Smaller numbers count stops with the grace period.
const AT_ONCE: u64 = 1 << 32;

impl StopNotice {
    /// One that has not been sent.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(fd::eventfd(EfdFlags::EFD_NONBLOCK)?)))
    }

    /// A client of the control socket stops the job. `at_once`: its ranks have no time to end.
    pub fn send(&self, at_once: bool) {
        // It is full only if nothing reads it.
        let _ = self.0.write(if at_once { AT_ONCE } else { 1 });
    }

    /// Whether a stop has been sent since the last call, and whether it is at once.
    fn take(&self) -> Option<bool> {
        self.0.read().ok().map(|sum| sum >= AT_ONCE)
    }
}

impl AsFd for StopNotice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for StopNotice {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl SupervisorSide {
    /// One whose pipe and end of the launcher process are these.
    #[cfg(test)]
    pub fn stub(launcher: OwnedFd, requests: OwnedFd, status: OwnedFd) -> io::Result<Self> {
        Ok(Self { launcher, requests, notice: StopNotice::new()?, status })
    }

    /// Reports the exit status to the launcher process, which then need not wait until the kernel has ended this process
    /// (closing an inotify descriptor took 17 ms).
    pub fn report(&self, status: i32) {
        // On an error the launcher process is gone, or it will see that this process is.
        let _ = nix::unistd::write(&self.status, &status.to_ne_bytes());
    }
}

/// The launcher process's connection to the supervisor process.
pub struct LauncherSide {
    supervisor: SpawnedProcess,
    /// A pipe on which the supervisor process reports the exit status.
    status: OwnedFd,
    /// A pipe for signals that the supervisor process has to act on.
    requests: OwnedFd,
    /// Stops by the control socket.
    notice: StopNotice,
    /// Ctrl-Z, unless it is ignored.
    held: Option<HeldStop>,
    /// Whether SIGWINCH means nothing else than a new window size.
    resizes: bool,
    /// Whether other programs' processes may become children of this one: it had children before (`exec python -m rlaunch` in a shell
    /// script inherits those of the shell), or it is process 1 of a container (`kubectl exec`).
    has_strangers: bool,
}

/// How the supervisor process ended.
pub enum SupervisorExit {
    /// It reported this exit status, which becomes the launcher's.
    Status(i32),
    /// It ended without a report; the result of the sweep that followed.
    Lost(SupervisorLoss, SweepResult),
}

/// How a supervisor process was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupervisorLoss {
    /// It ended.
    Ended(Exit),
    /// It did not stop in time and was killed.
    Stuck,
}

/// How long after the grace period the supervisor process is considered stuck. It needs `KILL_PATIENCE` for the ranks
/// and a moment for the console and the log folder.
const STUCK: Duration = Duration::from_secs(10);

/// Forks the supervisor process. All that may fail comes before: a failure afterwards would be one of two processes.
pub fn fork_supervisor(signals: &mut Signals) -> io::Result<ProcessSide> {
    tree::become_subreaper()?;
    let own = std::process::id() as i32;
    let has_strangers = own == 1 || !tree::children(own).is_empty();
    signals.install_one(libc::SIGCHLD);
    let resizes = signals.install_one(libc::SIGWINCH);
    let (status, report) = fd::pipe(OFlag::O_NONBLOCK)?;
    let (requested, requests) = fd::pipe(OFlag::O_NONBLOCK)?;
    let (signal_pipe, notice) = (SignalPipe::new()?, StopNotice::new()?);
    let held = HeldStop::new()?;
    // Until the supervisor process uses a signal pipe of its own, the launcher process would read its signals.
    let blocked = signals::block_all();
    let threads = other_threads();
    if !threads.is_empty() {
        warn!(
            "the launcher forks with other threads ({}), so the job may hang at its start; look for the library that starts \
             them in LD_PRELOAD, LD_AUDIT and /etc/ld.so.preload",
            threads.join(", ")
        );
    }
    match fork_launcher()? {
        ForkSide::Parent(supervisor) => Ok(ProcessSide::Launcher(LauncherSide {
            supervisor,
            status,
            requests,
            notice,
            held,
            resizes,
            has_strangers,
        })),
        ForkSide::Child { parent } => {
            // As in the launcher process, where it has not failed.
            let _ = tree::become_subreaper();
            signals.replace_pipe(signal_pipe);
            // By these the launcher process passes Ctrl-Z on.
            for signal in [libc::SIGCONT, libc::SIGTSTP] {
                signals.install_one(signal);
            }
            drop(blocked);
            signals::unblock(&[libc::SIGCONT, libc::SIGTSTP]);
            Ok(ProcessSide::Supervisor(SupervisorSide {
                launcher: parent,
                requests: requested,
                notice,
                status: report,
            }))
        }
    }
}

impl LauncherSide {
    /// The process id of the supervisor process.
    pub fn supervisor_pid(&self) -> i32 {
        self.supervisor.pid
    }

    /// Passes signals on until the supervisor process has ended, and kills it if it does not stop in time. Kills ranks that
    /// outlive this node's lease, whatever the supervisor process is doing: it may be stopped, or wait for a log folder that hangs.
    pub fn guard(
        &self,
        signals: &Signals,
        launch: &Launch<'_>,
        lease: Option<&NodeLease>,
    ) -> io::Result<SupervisorExit> {
        const ENDED: u64 = 0;
        const SIGNALS: u64 = 1;
        const STATUS: u64 = 2;
        const LEASE: u64 = 3;
        const HELD: u64 = 4;
        const NOTICE: u64 = 5;
        let poll = Poller::new()?;
        let supervisor = self.supervisor.pidfd.as_fd();
        poll.readable(supervisor, ENDED)?;
        poll.readable(signals, SIGNALS)?;
        poll.readable(&self.status, STATUS)?;
        poll.readable(&self.notice, NOTICE)?;
        if let Some(held) = &self.held {
            poll.readable(held, HELD)?;
        }
        let guard = lease.map(|lease| LeaseGuard::new(lease, &self.supervisor)).transpose()?;
        if let (Some(lease), Some(guard)) = (lease, &guard) {
            poll.readable(guard, LEASE)?;
            poll.readable(lease, LEASE)?;
        }
        let (mut stops, mut deadline) = (StopTable::new(launch.policy.same_sigterm), None::<Duration>);
        let earlier = |deadline: Option<Duration>, at: Duration| Some(deadline.map_or(at, |earlier| earlier.min(at)));
        loop {
            let ready = poll.wait(deadline.map(|at| at.saturating_sub(clock::now())))?;
            // First of all, also after a pause of this process.
            if let Some(guard) = &guard {
                guard.enforce(launch.cgroup.as_ref())?;
            }
            if ready.contains(&STATUS) {
                if let Some(status) = self.reported() {
                    return Ok(SupervisorExit::Status(status));
                }
                poll.forget(&self.status)?;
            }
            if let Some(held) = self.held.as_ref().filter(|_| ready.contains(&HELD)) {
                self.send(libc::SIGTSTP);
                let asleep = clock::now();
                held.stop_self();
                self.send(libc::SIGCONT);
                deadline = deadline.map(|at| at + clock::now().saturating_sub(asleep));
            }
            if let Some(at_once) = self.notice.take() {
                let grace = if at_once { Duration::ZERO } else { launch.policy.grace };
                deadline = earlier(deadline, clock::now().saturating_add(grace + STUCK));
            }
            for received @ ReceivedSignal { signal, at } in signals.drain() {
                match signal {
                    // Orphans are reparented to this process if it is PID 1 or the supervisor process is gone; 0: some are left.
                    libc::SIGCHLD | 0 if self.has_strangers => {
                        sweep::reap_strangers(|pid| pid == self.supervisor.pid);
                    }
                    libc::SIGCHLD | 0 => sweep::reap_orphans(|pid| pid == self.supervisor.pid),
                    libc::SIGWINCH if self.resizes => self.send(signal),
                    _ => {
                        self.request(received);
                        if !launch.forwarded_signals.contains(&signal) {
                            let grace = match stops.count(signal, StopRoute::PassedOn, at) {
                                StopCount::First => launch.policy.grace,
                                StopCount::Again => Duration::ZERO,
                                StopCount::Same | StopCount::Other => continue,
                            };
                            deadline = earlier(deadline, at.saturating_add(grace + STUCK));
                        }
                    }
                }
            }
            match pidfd::reap(supervisor)? {
                None => {}
                Some(CollectedStatus { exit, .. }) => {
                    // It may have reported after the check above, for example while this process was stopped.
                    if let Some(status) = self.reported() {
                        return Ok(SupervisorExit::Status(status));
                    }
                    return Ok(SupervisorExit::Lost(SupervisorLoss::Ended(exit), self.sweep(launch, BTreeSet::new())));
                }
            }
            if let Some(late) = deadline.and_then(|at| clock::now().checked_sub(at)) {
                if let Some(status) = self.reported() {
                    return Ok(SupervisorExit::Status(status));
                }
                // Both processes were suspended (SIGSTOP, the cgroup freezer): the supervisor had no time either.
                if late > SUSPENDED {
                    deadline = Some(clock::now().saturating_add(STUCK));
                    continue;
                }
                let all = Snapshot::take();
                let tree = all.trees([self.supervisor.pid]);
                let known = tree.into_iter().filter_map(|pid| Some((pid, all.get(pid)?.started))).collect();
                self.send(libc::SIGKILL);
                return Ok(SupervisorExit::Lost(SupervisorLoss::Stuck, self.sweep(launch, known)));
            }
        }
    }

    /// Kills the descendants of this process that belong to the job, including the supervisor process, and all processes with the job's
    /// key. `known`: the processes of the job, by id and start time, as far as they were seen below the supervisor process.
    fn sweep(&self, launch: &Launch<'_>, known: BTreeSet<(i32, u64)>) -> SweepResult {
        let (cgroup, none) = (launch.cgroup.as_ref(), BTreeSet::new());
        let key = (launch.job_key.as_str(), launch.key_places());
        let mut job = if self.has_strangers {
            JobChildren::Marked { variable: sweep::KEY, prefix: format!("{}/", key.0), places: key.1, known }
        } else {
            JobChildren::AllBut(&none)
        };
        let swept = sweep::of_job(&mut job, &launch.no_sweep, cgroup, clock::now(), &mut || false);
        let mut swept = sweep::result_of_last(swept);
        let strays = sweep::result_of_last(sweep::by_key(key, &launch.no_sweep, &BTreeSet::new(), None));
        swept.killed.extend(strays.killed);
        swept.left.extend(strays.left);
        // Descendants have the key too.
        swept.left.sort();
        swept.left.dedup();
        swept.stuck.extend(strays.stuck);
        swept.stuck.sort();
        swept.stuck.dedup();
        // These two belong to the launcher, not to the job.
        swept.killed.retain(|process| process.pid != self.supervisor.pid && process.name != zygote::NAME);
        sweep::close(cgroup, &launch.no_sweep);
        paddle_memory::warn_of_doubtful();
        swept
    }

    fn reported(&self) -> Option<i32> {
        let mut bytes = [0; 4];
        let read = nix::unistd::read(&self.status, &mut bytes);
        (read == Ok(bytes.len())).then(|| i32::from_ne_bytes(bytes))
    }

    fn send(&self, signal: i32) {
        // An error means that it has just ended, which the loop sees next.
        let _ = pidfd::send_signal(self.supervisor.pidfd.as_fd(), signal);
    }

    fn request(&self, received: ReceivedSignal) {
        // The same; or the pipe is full because it has not read for long: then it is stuck.
        let _ = nix::unistd::write(&self.requests, &received.to_bytes());
    }
}
