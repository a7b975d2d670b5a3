//! What the sweep between two attempts looks at before each list of processes: whether a stop waits for the event loop meanwhile.

use crate::rendezvous::lease::NodeLease;
use crate::run::signal_inbox::SignalInbox;
use crate::sys::process::pidfd;
use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Where a stop of the job comes from.
pub struct StopWatch<'a> {
    inbox: &'a SignalInbox<'a>,
    /// The lease that ranks run under, in an elastic job.
    lease: Option<Arc<NodeLease>>,
    is_launcher_lost: Cell<bool>,
}

impl<'a> StopWatch<'a> {
    /// A watch beside the event loop of this inbox.
    pub fn new(inbox: &'a SignalInbox<'a>, lease: Option<Arc<NodeLease>>) -> Self {
        Self { inbox, lease, is_launcher_lost: Cell::new(false) }
    }

    /// Whether a stop waits: a request, the end of the launcher process, or a lease that has lapsed. Takes nothing from the event loop.
    pub fn is_stop_waiting(&self) -> bool {
        self.inbox.is_stop_pending()
            || self.lease.as_ref().is_some_and(|lease| lease.has_lapsed())
            || !self.is_launcher_lost.get() && pidfd::await_any(&[self.inbox.launcher().as_fd()], Duration::ZERO)
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
    use crate::run::control::live_status::LiveStatus;
    use crate::run::launcher_process::SupervisorSide;
    use crate::sys::io::fd;
    use crate::sys::signals::{ReceivedSignal, Signals};
    use nix::fcntl::OFlag;
    use std::collections::BTreeSet;
    use std::io;

    #[test]
    fn each_kind_of_stop_waits_until_the_event_loop_has_seen_it() -> io::Result<()> {
        // A pipe stands for the process: a pidfd is readable after its end.
        let ((launcher, ends), (requests, passes_on)) = (fd::pipe(OFlag::empty())?, fd::pipe(OFlag::O_NONBLOCK)?);
        let (_, report) = fd::pipe(OFlag::empty())?;
        let (lease, forwarded) = (Arc::new(NodeLease::new()?), BTreeSet::from([libc::SIGUSR1, libc::SIGHUP]));
        let supervisor = SupervisorSide::stub(launcher, requests, report)?;
        let (signals, _handler) = Signals::stub()?;
        let inbox = SignalInbox::new((&supervisor, &signals), &forwarded, Duration::ZERO, LiveStatus::default());
        let watch = StopWatch::new(&inbox, Some(lease.clone()));
        let pass_on = |signal| {
            let record = ReceivedSignal { signal, at: Duration::ZERO }.to_bytes();
            nix::unistd::write(&passes_on, &record).map(drop)
        };
        assert!(!watch.is_stop_waiting());
        for signal in [libc::SIGUSR1, libc::SIGHUP, libc::SIGWINCH] {
            pass_on(signal)?;
        }
        assert!(!watch.is_stop_waiting(), "forwarded signals, and one that means nothing");
        pass_on(libc::SIGTERM)?;
        assert!(watch.is_stop_waiting() && watch.is_stop_waiting());
        assert_eq!(inbox.take().len(), 4);
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
        assert!(!watch.is_stop_waiting());
        Ok(())
    }
}
