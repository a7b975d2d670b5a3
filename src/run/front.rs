//! The launcher is two processes. The *front* is the one that was started: it passes signals on and
//! watches. The *supervisor*, its only child, has a session of its own and is the ranks' parent. Both are
//! subreapers, so whichever of the two is killed, the other is the parent of all that is left, and ends it.

use super::launch::Launch;
use super::sweep::{self, Swept};
use super::zygote;
use crate::model::Exit;
use crate::sys::clock;
use crate::sys::pidfd::{self, Collected};
use crate::sys::poll::Poll;
use crate::sys::signals::{self, Signals};
use crate::sys::spawn::{Forked, Started, fork_launcher};
use crate::sys::tree;
use nix::fcntl::OFlag;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Which of the two this process is.
pub enum Side {
    /// The one that was started.
    Front(Front),
    /// The ranks' parent.
    Supervisor(Supervisor),
}

/// What the supervisor needs.
pub struct Supervisor {
    /// A pidfd of the front, whose end is the job's end.
    pub front: OwnedFd,
    /// Where the front asks: a signal's number a byte. What everybody is sent at once (systemd's way to stop a
    /// unit, `pkill`) comes to the supervisor twice, and this is how it knows that it was meant once.
    pub requests: OwnedFd,
    status: OwnedFd,
}

/// Waking up so late is no matter of a busy machine.
const FROZEN: Duration = Duration::from_secs(2);

impl Supervisor {
    /// What the front has asked for since the last call; `None` once it is gone.
    pub fn asked(&self) -> Option<Vec<i32>> {
        let mut bytes = [0; 64];
        match nix::unistd::read(&self.requests, &mut bytes) {
            Ok(0) => None,
            Ok(read) => Some(bytes[..read].iter().map(|byte| i32::from(*byte)).collect()),
            Err(_) => Some(Vec::new()),
        }
    }

    /// Tells the front the exit status: all is done. The kernel may take its time to end this process
    /// (closing an inotify descriptor took 17 ms), and nobody needs to wait for that.
    pub fn report(&self, status: i32) {
        // It has gone, or it will see that we have: no more can be done.
        let _ = nix::unistd::write(&self.status, &status.to_ne_bytes());
    }
}

/// What the front needs to watch.
pub struct Front {
    supervisor: Started,
    /// Where the supervisor reports the exit status.
    status: OwnedFd,
    /// Where it is asked.
    requests: OwnedFd,
    /// Children from before: `exec python -m rlaunch` in a shell script inherits the shell's.
    elders: BTreeSet<i32>,
}

/// How the supervisor ended.
pub enum Guarded {
    /// It reported this exit status, which is the launcher's.
    Status(i32),
    /// Without a report, in this way; this was swept up.
    Lost(Loss, Swept),
}

/// How a supervisor is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It ended.
    Ended(Exit),
    /// It did not stop in time, and was killed.
    Stuck,
}

/// How long past its time a stop may take before the supervisor is taken for stuck: it gives ranks
/// `KILL_PATIENCE`, and the console and the log folder a moment.
const STUCK: Duration = Duration::from_secs(10);

/// Becomes two processes.
pub fn split(signals: &mut Signals) -> io::Result<Side> {
    tree::become_subreaper()?;
    let elders = tree::children(std::process::id() as i32).into_iter().collect();
    for signal in [libc::SIGCHLD, libc::SIGTSTP] {
        signals.also(signal);
    }
    let (status, report) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let (asked, requests) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    // Until the supervisor has a pipe of its own, what it is sent would be read by the front.
    let held = signals::hold();
    match fork_launcher()? {
        Forked::Parent(supervisor) => Ok(Side::Front(Front { supervisor, status, requests, elders })),
        Forked::Child { parent } => {
            tree::become_subreaper()?;
            signals.also(libc::SIGCONT);
            signals.renew()?;
            drop(held);
            Ok(Side::Supervisor(Supervisor { front: parent, requests: asked, status: report }))
        }
    }
}

impl Front {
    /// Passes signals on until the supervisor has ended, and ends it when it does not long after it was asked to.
    pub fn guard(&self, signals: &Signals, launch: &Launch<'_>) -> io::Result<Guarded> {
        const ENDED: u64 = 0;
        const SIGNALS: u64 = 1;
        const STATUS: u64 = 2;
        let poll = Poll::new()?;
        let supervisor = self.supervisor.pidfd.as_fd();
        poll.readable(supervisor, ENDED)?;
        poll.readable(signals, SIGNALS)?;
        poll.readable(&self.status, STATUS)?;
        let (mut stops, mut deadline) = (0, None::<Duration>);
        loop {
            if poll.wait(deadline.map(|at| at.saturating_sub(clock::now())))?.contains(&STATUS) {
                if let Some(status) = self.reported() {
                    return Ok(Guarded::Status(status));
                }
                poll.forget(&self.status)?;
            }
            for signal in signals.drain() {
                match signal {
                    // As PID 1, or where the supervisor is gone, orphans come here.
                    libc::SIGCHLD => drop(tree::reap_strays(|pid| pid == self.supervisor.pid)),
                    libc::SIGTSTP => {
                        self.send(libc::SIGTSTP);
                        let asleep = clock::now();
                        signals.stop_self();
                        self.send(libc::SIGCONT);
                        deadline = deadline.map(|at| at + clock::now().saturating_sub(asleep));
                    }
                    signal => {
                        self.ask(signal);
                        if !launch.notify.contains(&signal) {
                            // The second one leaves no grace.
                            let grace = if stops == 0 { launch.policy.grace } else { Duration::ZERO };
                            let at = clock::now().saturating_add(grace + STUCK);
                            deadline = Some(deadline.map_or(at, |earlier| earlier.min(at)));
                            stops += 1;
                        }
                    }
                }
            }
            match pidfd::reap(supervisor)? {
                None => {}
                Some(Collected { exit, .. }) => {
                    // Since it was looked for above, as while this process was stopped.
                    if let Some(status) = self.reported() {
                        return Ok(Guarded::Status(status));
                    }
                    return Ok(Guarded::Lost(Loss::Ended(exit), self.sweep(launch)?));
                }
            }
            if let Some(late) = deadline.and_then(|at| clock::now().checked_sub(at)) {
                if let Some(status) = self.reported() {
                    return Ok(Guarded::Status(status));
                }
                // Both have been frozen (SIGSTOP, the cgroup's freezer): the supervisor has had no time either.
                if late > FROZEN {
                    deadline = Some(clock::now().saturating_add(STUCK));
                    continue;
                }
                self.send(libc::SIGKILL);
                return Ok(Guarded::Lost(Loss::Stuck, self.sweep(launch)?));
            }
        }
    }

    /// Ends whoever is below this process, the supervisor included, or carries the job's key.
    fn sweep(&self, launch: &Launch<'_>) -> io::Result<Swept> {
        let cgroup = launch.cgroup.as_ref();
        let mut swept = sweep::everybody(&self.elders, cgroup)?;
        swept.killed.extend(sweep::by_key(&launch.key)?);
        // These two are the launcher's own.
        swept.killed.retain(|process| process.pid != self.supervisor.pid && process.name != zygote::NAME);
        sweep::close(cgroup);
        Ok(swept)
    }

    fn reported(&self) -> Option<i32> {
        let mut bytes = [0; 4];
        let read = nix::unistd::read(&self.status, &mut bytes);
        (read == Ok(bytes.len())).then(|| i32::from_ne_bytes(bytes))
    }

    fn send(&self, signal: i32) {
        // An error means that it has just ended, which is seen next.
        let _ = pidfd::send_signal(self.supervisor.pidfd.as_fd(), signal);
    }

    fn ask(&self, signal: i32) {
        // The same, or that it has not read any for long: then it is stuck.
        let _ = nix::unistd::write(&self.requests, &[signal as u8]);
    }
}
