//! Signals and requests: what the event loop does about what its inbox has received.

use super::EventLoop;
use crate::run::control::live_status::RestartRequest;
use crate::run::preempt::link::NoticeCause;
use crate::run::record::journal_event::JournalEvent;
use crate::run::stop_requests::{Arrival, StopCount, StopRoute};
use crate::supervise::SupervisorEvent;
use std::io;

impl EventLoop<'_> {
    /// Acts on what has come, and on what other threads have noted before they woke this one.
    pub(super) fn handle_inbox(&mut self) -> io::Result<()> {
        for arrival in self.inbox.take() {
            self.handle_arrival(&arrival)?;
        }
        if self.inbox.is_closed() && !std::mem::replace(&mut self.is_inbox_closed, true) {
            self.inbox.forget_closed(self.engine.poll())?;
        }
        self.reap_orphans();
        self.note_failed_ranks();
        if let Some(RestartRequest { grace }) = self.launch.status.take_restart() {
            self.send(SupervisorEvent::Restart { grace })?;
        }
        if let Some(grace) = self.launch.status.take_grace_limit() {
            self.send(SupervisorEvent::LimitGrace(grace))?;
            self.shorten_notice(grace);
        }
        Ok(())
    }

    fn handle_arrival(&mut self, arrival: &Arrival) -> io::Result<()> {
        let &Arrival { signal, route, count, .. } = arrival;
        if route == StopRoute::Directly && matches!(signal, libc::SIGWINCH | libc::SIGCONT) {
            self.ranks.resize_terminals();
        }
        let is_users = route == StopRoute::User;
        if arrival.event.is_some() || is_users || count == Some(StopCount::Other) {
            self.ranks.journal.write_later(JournalEvent::signal(arrival));
        }
        let first = self.inbox.requests().stopped_by();
        if is_users {
            self.note_users_stop();
        } else if let Some(first) = first.filter(|_| count == Some(StopCount::Other) && self.engine.is_stopping()) {
            self.listener.other_stop_signal(signal, first);
        }
        let Some(event) = &arrival.event else { return Ok(()) };
        // Ranks that receive it too print a traceback each.
        if matches!(event, SupervisorEvent::Stop(libc::SIGINT) | SupervisorEvent::StopAgain(libc::SIGINT)) {
            self.ranks.leave_out_interrupts();
        }
        self.ranks.suspend_or_resume_zygote(event);
        self.signalled(event.clone(), if is_users { NoticeCause::Stop } else { NoticeCause::Signal })
    }

    /// `rlaunch stop`: the ranks stop as by SIGTERM, but the job is not preempted, whatever there was a notice of before.
    fn note_users_stop(&mut self) {
        if self.launch.preempt_link.note_users_stop() {
            self.listener.user_stops();
            self.tell_users_stop();
        }
    }
}
