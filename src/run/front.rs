//! The launcher is two processes. The *front* is the one that was started: it passes signals on and
//! watches. The *supervisor*, its only child, has a session of its own and is the ranks' parent. Both are
//! subreapers, so whichever of the two is killed, the other is the parent of all that is left, and ends it.

use super::sweep::{self, Swept};
use crate::model::Exit;
use crate::sys::pidfd::{self, Collected};
use crate::sys::poll::Poll;
use crate::sys::signals::{self, Signals};
use crate::sys::spawn::{Forked, Started, fork_launcher};
use crate::sys::tree;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Which of the two this process is.
pub enum Side {
    /// The one that was started.
    Front(Front),
    /// The ranks' parent, with a pidfd of the front.
    Supervisor(OwnedFd),
}

/// What the front needs to watch.
pub struct Front {
    supervisor: Started,
    /// Children from before: `exec python -m rlaunch` in a shell script inherits the shell's.
    elders: BTreeSet<i32>,
}

/// How the supervisor ended.
pub enum Guarded {
    /// With this exit status, which is the launcher's.
    Status(i32),
    /// Something killed it; this was swept up.
    Lost(Exit, Swept),
}

/// Becomes two processes.
pub fn split(signals: &mut Signals) -> io::Result<Side> {
    tree::become_subreaper()?;
    let elders = tree::children(std::process::id() as i32).into_iter().collect();
    for signal in [libc::SIGCHLD, libc::SIGTSTP] {
        signals.also(signal);
    }
    // Until the supervisor has a pipe of its own, what it is sent would be read by the front.
    let held = signals::hold();
    match fork_launcher()? {
        Forked::Parent(supervisor) => Ok(Side::Front(Front { supervisor, elders })),
        Forked::Child { parent } => {
            tree::become_subreaper()?;
            signals.also(libc::SIGCONT);
            signals.renew()?;
            drop(held);
            Ok(Side::Supervisor(parent))
        }
    }
}

impl Front {
    /// Passes signals on until the supervisor has ended. `key`: the job's, for what has escaped.
    pub fn guard(&self, signals: &Signals, key: &str) -> io::Result<Guarded> {
        const ENDED: u64 = 0;
        const SIGNALS: u64 = 1;
        let poll = Poll::new()?;
        let supervisor = self.supervisor.pidfd.as_fd();
        poll.readable(supervisor, ENDED)?;
        poll.readable(signals, SIGNALS)?;
        loop {
            poll.wait(None)?;
            for signal in signals.drain() {
                match signal {
                    // As PID 1, or where the supervisor is gone, orphans come here.
                    libc::SIGCHLD => drop(tree::reap_strays(|pid| pid == self.supervisor.pid)),
                    libc::SIGTSTP => {
                        self.pass_on(libc::SIGTSTP);
                        signals.stop_self();
                        self.pass_on(libc::SIGCONT);
                    }
                    signal => self.pass_on(signal),
                }
            }
            match pidfd::reap(supervisor)? {
                None => {}
                Some(Collected { exit: Exit::Code(code), .. }) => return Ok(Guarded::Status(code)),
                Some(Collected { exit, .. }) => {
                    let mut swept = sweep::everybody(&self.elders)?;
                    swept.killed.extend(sweep::by_key(key));
                    return Ok(Guarded::Lost(exit, swept));
                }
            }
        }
    }

    fn pass_on(&self, signal: i32) {
        // An error means that it has just ended, which is seen next.
        let _ = pidfd::send_signal(self.supervisor.pidfd.as_fd(), signal);
    }
}
