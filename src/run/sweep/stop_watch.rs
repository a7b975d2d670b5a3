//! What the sweep between two attempts looks at before each list of processes: whether a stop waits for the event loop meanwhile.

use crate::rendezvous::lease::NodeLease;
use crate::run::launcher_process::SupervisorSide;
use crate::run::stop_requests::is_stop;
use crate::sys::process::pidfd;
use crate::sys::signals::Signals;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Where a stop of the job comes from.
pub struct StopWatch<'a> {
    supervisor: &'a SupervisorSide,
    signals: &'a Signals,
    /// Signals that stop nothing.
    forwarded: &'a BTreeSet<i32>,
    /// The lease that ranks run under, in an elastic job.
    lease: Option<Arc<NodeLease>>,
    is_launcher_lost: Cell<bool>,
}

impl<'a> StopWatch<'a> {
    /// `forwarded`: signals that stop nothing.
    pub fn new(
        (supervisor, signals): (&'a SupervisorSide, &'a Signals),
        forwarded: &'a BTreeSet<i32>,
        lease: Option<Arc<NodeLease>>,
    ) -> Self {
        Self { supervisor, signals, forwarded, lease, is_launcher_lost: Cell::new(false) }
    }

    /// Whether a stop waits: a stop signal by either route, the end of the launcher process, or a lease that has lapsed. Takes
    /// nothing from the event loop: signals that it reads are kept for it.
    pub fn is_stop_waiting(&self) -> bool {
        let is_stop = |signal: &i32| is_stop(*signal, self.forwarded);
        self.signals.peek(is_stop)
            || self.supervisor.peek(is_stop)
            || self.lease.as_ref().is_some_and(|lease| lease.has_lapsed())
            || !self.is_launcher_lost.get() && pidfd::await_any(&[self.supervisor.launcher.as_fd()], Duration::ZERO)
    }

    /// The event loop has noticed the end of the launcher process.
    pub fn note_launcher_lost(&self) {
        self.is_launcher_lost.set(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{LeaseTerms, OnNodeLoss};
    use crate::sys::io::fd;
    use nix::fcntl::OFlag;
    use std::io;

    #[test]
    fn each_kind_of_stop_waits_until_the_event_loop_has_seen_it() -> io::Result<()> {
        // A pipe stands for the process: a pidfd is readable after its end.
        let ((launcher, ends), (requests, passes_on)) = (fd::pipe(OFlag::empty())?, fd::pipe(OFlag::O_NONBLOCK)?);
        let (_, status) = fd::pipe(OFlag::empty())?;
        let (lease, forwarded) = (Arc::new(NodeLease::new()?), BTreeSet::from([libc::SIGUSR1, libc::SIGHUP]));
        let supervisor = SupervisorSide::stub(launcher, requests, status);
        let (signals, handler) = Signals::stub()?;
        let watch = StopWatch::new((&supervisor, &signals), &forwarded, Some(lease.clone()));
        assert!(!watch.is_stop_waiting());
        nix::unistd::write(&passes_on, &[10, 1, 28])?;
        assert!(!watch.is_stop_waiting(), "forwarded signals, and one that means nothing");
        nix::unistd::write(&passes_on, &[15])?;
        assert!(watch.is_stop_waiting() && watch.is_stop_waiting() && supervisor.has_read_ahead());
        nix::unistd::write(&passes_on, &[10])?;
        assert_eq!(supervisor.requested(), Some(vec![10, 1, 28, 15, 10]));
        assert!(!watch.is_stop_waiting() && !supervisor.has_read_ahead());
        assert_eq!(supervisor.requested(), Some(vec![]));

        nix::unistd::write(&handler, &[10, 17])?;
        assert!(!watch.is_stop_waiting() && signals.has_read_ahead());
        nix::unistd::write(&handler, &[2])?;
        assert!(watch.is_stop_waiting());
        assert_eq!(signals.drain(), [10, 17, 2]);
        assert!(!watch.is_stop_waiting());

        let soon =
            LeaseTerms { heartbeat_timeout: Duration::ZERO, loss_timeout: Duration::ZERO, on_loss: OnNodeLoss::End };
        lease.hold(1, lease.number().wrapping_add(1), &soon);
        assert!(watch.is_stop_waiting(), "another lease than that of the ranks");
        lease.release();
        assert!(!watch.is_stop_waiting());

        nix::unistd::write(&ends, &[0])?;
        assert!(watch.is_stop_waiting());
        watch.note_launcher_lost();
        nix::unistd::write(&passes_on, &[15])?;
        drop(passes_on);
        assert!(watch.is_stop_waiting(), "a stop that the launcher process passed on before its end");
        assert_eq!([supervisor.requested(), supervisor.requested()], [Some(vec![15]), None]);
        assert!(!watch.is_stop_waiting(), "the end of the pipe is no request");
        Ok(())
    }
}
