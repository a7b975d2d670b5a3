//! What a sweep on the event loop looks at between two lists of processes: whether a stop waits for the loop meanwhile.

use crate::rendezvous::lease::NodeLease;
use crate::run::launcher_process::SupervisorSide;
use crate::sys::io::poll;
use crate::sys::signals;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a stop of the job comes from.
#[derive(Debug)]
pub struct StopWatch {
    /// A pidfd of the launcher process.
    launcher: OwnedFd,
    /// The pipe with the signals that the launcher process passes on.
    requests: OwnedFd,
    /// The lease that ranks run under, in an elastic job.
    lease: Option<Arc<NodeLease>>,
    is_launcher_lost: AtomicBool,
}

impl StopWatch {
    /// Has descriptors of its own.
    pub fn new(supervisor: &SupervisorSide, lease: Option<Arc<NodeLease>>) -> io::Result<Self> {
        let (launcher, requests) = (supervisor.launcher.try_clone()?, supervisor.requests.try_clone()?);
        Ok(Self { launcher, requests, lease, is_launcher_lost: AtomicBool::new(false) })
    }

    /// Whether a stop waits: a signal, a request that the launcher process has passed on, the end of that process, or a lease that
    /// has lapsed. Reads nothing of what the event loop is to read.
    pub fn is_stop_waiting(&self) -> bool {
        signals::is_stop_waiting() || self.is_stop_sent()
    }

    fn is_stop_sent(&self) -> bool {
        poll::is_readable(&self.requests)
            || self.lease.as_ref().is_some_and(|lease| lease.has_lapsed())
            || !self.is_launcher_lost.load(Ordering::Relaxed) && poll::is_readable(&self.launcher)
    }

    /// The event loop has noticed the end of the launcher process.
    pub fn note_launcher_lost(&self) {
        self.is_launcher_lost.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{LeaseTerms, OnNodeLoss};
    use crate::sys::io::fd;
    use nix::fcntl::OFlag;
    use std::time::Duration;

    #[test]
    fn each_kind_of_stop_waits_until_the_event_loop_has_seen_it() -> io::Result<()> {
        // A pipe stands for the process: a pidfd is readable after its end.
        let ((launcher, ends), (requests, passes_on)) = (fd::pipe(OFlag::empty())?, fd::pipe(OFlag::empty())?);
        let lease = Arc::new(NodeLease::new()?);
        let watch = StopWatch { launcher, requests, lease: Some(lease.clone()), is_launcher_lost: false.into() };
        assert!(!watch.is_stop_sent());
        nix::unistd::write(&passes_on, &[15])?;
        assert!(watch.is_stop_sent());
        nix::unistd::read(&watch.requests, &mut [0])?;
        assert!(!watch.is_stop_sent());

        let soon =
            LeaseTerms { heartbeat_timeout: Duration::ZERO, loss_timeout: Duration::ZERO, on_loss: OnNodeLoss::End };
        lease.hold(1, lease.number().wrapping_add(1), &soon);
        assert!(watch.is_stop_sent(), "another lease than that of the ranks");
        lease.release();
        assert!(!watch.is_stop_sent());

        nix::unistd::write(&ends, &[0])?;
        assert!(watch.is_stop_sent());
        watch.note_launcher_lost();
        drop(passes_on);
        assert!(!watch.is_stop_sent(), "the end of the pipe is no request");
        Ok(())
    }
}
