//! The supervisor process's only reader of signals: those that it receives itself, those that the launcher process passes on, and the
//! requests of `rlaunch stop`. Each is kept until the event loop, or a wait in its place, takes it; other code asks whether a stop is
//! pending.

use crate::run::control::live_status::LiveStatus;
use crate::run::launcher_process::SupervisorSide;
use crate::run::stop_requests::{Arrival, StopRequests, StopRoute};
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use crate::sys::signals::{ReceivedSignal, Signals};
use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// What stops, suspends and resumes a job, and what is forwarded to its ranks.
pub struct SignalInbox<'a> {
    supervisor: &'a SupervisorSide,
    signals: &'a Signals,
    /// Signals that stop nothing.
    forwarded: &'a BTreeSet<i32>,
    status: LiveStatus,
    kept: RefCell<Kept>,
}

/// What has been read.
struct Kept {
    requests: StopRequests,
    /// Requests that have not been taken.
    pending: VecDeque<Arrival>,
    /// Something woke this process since the last `take`: another thread, or the end of a child.
    is_woken: bool,
    /// The launcher process is gone.
    is_closed: bool,
}

impl<'a> SignalInbox<'a> {
    /// An inbox in which nothing is. `forwarded`: signals that stop nothing; `same_sigterm`: as for `StopTable`; `status`: where clients
    /// of the control socket ask for a stop.
    pub fn new(
        (supervisor, signals): (&'a SupervisorSide, &'a Signals),
        forwarded: &'a BTreeSet<i32>,
        same_sigterm: Duration,
        status: LiveStatus,
    ) -> Self {
        let requests = StopRequests::new(same_sigterm);
        let kept = Kept { requests, pending: VecDeque::new(), is_woken: false, is_closed: false };
        Self { supervisor, signals, forwarded, status, kept: RefCell::new(kept) }
    }

    /// Reads what has come, and keeps it.
    fn read(&self) {
        let mut kept = self.kept.borrow_mut();
        let direct = self.signals.drain();
        kept.is_woken |= !direct.is_empty();
        let (passed_on, is_open) = ReceivedSignal::read_all(&self.supervisor.requests);
        kept.is_closed |= !is_open;
        let by = |route| move |one: ReceivedSignal| (one, route);
        let mut came: Vec<_> = direct.into_iter().map(by(StopRoute::Directly)).collect();
        came.extend(passed_on.into_iter().map(by(StopRoute::PassedOn)));
        if self.status.take_stop() {
            came.push((ReceivedSignal { signal: libc::SIGTERM, at: clock::now() }, StopRoute::User));
        }
        for (ReceivedSignal { signal, at }, route) in came {
            // Signal 0 and SIGCHLD only wake.
            if !matches!(signal, 0 | libc::SIGCHLD) {
                let arrival = kept.requests.handle(signal, route, at, self.forwarded);
                kept.pending.push_back(arrival);
            }
        }
    }

    /// Takes what has come. For what acts on it: the event loop, and what waits in its place.
    pub fn take(&self) -> Vec<Arrival> {
        self.read();
        let mut kept = self.kept.borrow_mut();
        kept.is_woken = false;
        kept.pending.drain(..).collect()
    }

    /// Whether a stop, or the end of a grace period, waits to be taken.
    pub fn is_stop_pending(&self) -> bool {
        self.read();
        self.kept.borrow().pending.iter().any(Arrival::is_stop)
    }

    /// Whether there is something to take, although the descriptors may not be readable any more.
    pub fn has_read_ahead(&self) -> bool {
        let kept = self.kept.borrow();
        kept.is_woken || !kept.pending.is_empty()
    }

    /// Whether the launcher process is gone, and all that it has passed on has been read.
    pub fn is_closed(&self) -> bool {
        self.kept.borrow().is_closed
    }

    /// The requests so far, those included that wait to be taken.
    pub fn requests(&self) -> Ref<'_, StopRequests> {
        Ref::map(self.kept.borrow(), |kept| &kept.requests)
    }

    /// The same, to be changed.
    pub fn requests_mut(&self) -> RefMut<'_, StopRequests> {
        RefMut::map(self.kept.borrow_mut(), |kept| &mut kept.requests)
    }

    /// A pidfd of the launcher process, whose end ends the job.
    pub fn launcher(&self) -> &OwnedFd {
        &self.supervisor.launcher
    }

    /// The descriptors that are readable when something has come.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.signals.as_fd(), self.supervisor.requests.as_fd()]
    }

    /// Has a poller wait for what comes, and for the end of the launcher process.
    pub fn watch(&self, poll: &Poller, (inbox, launcher): (u64, u64)) -> io::Result<()> {
        for fd in self.descriptors() {
            poll.readable(fd, inbox)?;
        }
        poll.readable(&self.supervisor.launcher, launcher)
    }

    /// Has a poller not wait any more for what the launcher process passes on, once it is gone.
    pub fn forget_closed(&self, poll: &Poller) -> io::Result<()> {
        poll.forget(&self.supervisor.requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::SupervisorEvent;
    use crate::sys::io::fd;
    use nix::fcntl::OFlag;

    #[test]
    fn nothing_is_lost_by_those_who_ask_for_a_stop() -> io::Result<()> {
        let ((launcher, _ends), (requests, passes_on)) = (fd::pipe(OFlag::empty())?, fd::pipe(OFlag::O_NONBLOCK)?);
        let (_, report) = fd::pipe(OFlag::empty())?;
        let (signals, handler) = Signals::stub()?;
        let supervisor = SupervisorSide::stub(launcher, requests, report)?;
        let (forwarded, status) = (BTreeSet::from([libc::SIGUSR1]), LiveStatus::default());
        let inbox = SignalInbox::new((&supervisor, &signals), &forwarded, Duration::ZERO, status.clone());
        let write = |pipe: &OwnedFd, signal, millis| {
            let at = Duration::from_millis(millis);
            nix::unistd::write(pipe, &ReceivedSignal { signal, at }.to_bytes()).map(drop)
        };
        let taken = || inbox.take().into_iter().map(|one| (one.signal, one.event.is_some())).collect::<Vec<_>>();

        assert!(!inbox.is_stop_pending() && !inbox.has_read_ahead());
        for signal in [0, libc::SIGCHLD, libc::SIGTSTP, libc::SIGWINCH] {
            write(&handler, signal, 1)?;
        }
        write(&passes_on, libc::SIGUSR1, 2)?;
        assert!(!inbox.is_stop_pending() && inbox.has_read_ahead() && inbox.requests().is_suspended());
        write(&passes_on, libc::SIGTERM, 3)?;
        assert!(inbox.is_stop_pending() && inbox.is_stop_pending());
        assert_eq!(inbox.requests().stopped_by(), Some(libc::SIGTERM));
        let expected = [(libc::SIGTSTP, true), (libc::SIGWINCH, false), (libc::SIGUSR1, true), (libc::SIGTERM, true)];
        assert_eq!(taken(), expected);
        assert!(!inbox.is_stop_pending() && !inbox.has_read_ahead());

        status.request_stop();
        write(&passes_on, libc::SIGINT, 4)?;
        assert_eq!(taken(), [(libc::SIGINT, false), (libc::SIGTERM, false)]);
        status.request_stop();
        let [users] = &inbox.take()[..] else { panic!("it is taken once") };
        assert_eq!((users.route, users.event.clone()), (StopRoute::User, None));

        write(&handler, libc::SIGTERM, 10)?;
        write(&handler, libc::SIGTERM, 2000)?;
        drop(passes_on);
        assert!(inbox.is_stop_pending() && inbox.is_closed());
        let stops: Vec<_> = inbox.take().into_iter().filter(Arrival::is_stop).map(|one| one.event).collect();
        assert_eq!(stops, [Some(SupervisorEvent::StopAgain(libc::SIGTERM))]);
        Ok(())
    }
}
