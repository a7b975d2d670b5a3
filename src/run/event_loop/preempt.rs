//! Preemption: what the event loop does about a notice. Where ranks have asked whether to stop (`rlaunch.should_stop`), the launchers of
//! all nodes agree on a step at which all ranks do, and no rank is signalled before the notice's time is over. Other jobs are stopped as by
//! SIGTERM.

use super::EventLoop;
use crate::protocol::stop_step::{Decision, StopAgreement, StopDocument, StopEffect, StopEvent, StopRecipient};
use crate::rendezvous::questions::QuestionEvent;
use crate::rendezvous::torch_static::StaticPeers;
use crate::run::preempt::link::{Notice, NoticeCause, PreemptLink};
use crate::run::preempt::{NoStopMessage, StopMessage};
use crate::run::record::journal_event::JournalEvent;
use crate::supervise::{SupervisorEvent, last_call};
use crate::sys::clock;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::{info, warn};

/// How long the nodes may take to agree.
const PATIENCE: Duration = Duration::from_secs(10);
/// After which time a message without an answer is sent again. Nodes hear ten a second of each other node.
const RESEND: Duration = Duration::from_millis(300);

/// Has the nodes of a static rendezvous hear of each other's notices.
pub(super) fn connect(peers: &StaticPeers, link: &PreemptLink) {
    let (heard, has_warned) = (link.clone(), AtomicBool::new(false));
    let listener = move |event| {
        let QuestionEvent::Asked { asker, text, .. } = event else { return };
        match StopMessage::decode(&text) {
            Ok(message) => heard.hear(asker, message),
            // The nodes of other rendezvous compare their versions when they join.
            Err(NoStopMessage::OtherVersion) if !has_warned.swap(true, Ordering::Relaxed) => warn!(
                "node {asker} cannot agree on a step at which ranks stop: its launcher has another version; use one version \
                 on all nodes"
            ),
            Err(_) => {}
        }
    };
    match peers.connect_messages(Box::new(listener)) {
        Ok(others) => link.connect(others),
        Err(error) => info!("the nodes cannot agree on a step at which ranks stop: {error}"),
    }
}

impl EventLoop<'_> {
    /// A signal to this launcher, or a request: the first SIGTERM is a notice where ranks ask whether to stop.
    pub(super) fn signalled(&mut self, event: SupervisorEvent, cause: NoticeCause) -> io::Result<()> {
        let (SupervisorEvent::Stop(signal) | SupervisorEvent::StopAgain(signal)) = event else {
            return self.send(event);
        };
        let is_first = !std::mem::replace(&mut self.was_signalled, true);
        if is_first && signal == libc::SIGTERM && (self.can_agree() || self.has_decided()) {
            self.inbox.requests_mut().forgive();
            return self.begin(self.notice_by_signal(cause));
        }
        if is_first && signal == libc::SIGTERM {
            return self.stop_without_agreement();
        }
        if !is_first && self.launch.preempt_link.notice().is_some() && !self.engine.is_stopping() {
            // The second signal ends the time that the first one gave.
            self.send(SupervisorEvent::Stop(signal))?;
        }
        self.send(event)
    }

    /// Whether a signal to this launcher has given the ranks time to stop at a step, which they have not used up.
    pub(super) fn has_notice_by_signal(&self) -> bool {
        let notice = self.launch.preempt_link.notice().filter(|_| !self.engine.is_stopping());
        notice.is_some_and(|notice| matches!(notice.cause, NoticeCause::Signal | NoticeCause::Stop))
    }

    fn notice_by_signal(&self, cause: NoticeCause) -> Notice {
        let (now, policy) = (clock::now(), self.launch.policy_of_stop());
        let left = policy.stop_by.map(|at| at.saturating_sub(now));
        let grace = left.map_or(policy.grace, |left| left.min(policy.grace));
        let kills = now.saturating_add(grace);
        Notice { cause, ends: kills.saturating_sub(last_call(grace)), kills: Some(kills) }
    }

    /// A user shortens the grace period while a notice holds.
    pub(super) fn shorten_notice(&mut self, grace: Duration) {
        if let Some(notice) = self.launch.preempt_link.notice().filter(|notice| notice.kills.is_some()) {
            let kills = clock::now().saturating_add(grace).min(notice.kills.unwrap_or(Duration::MAX));
            let ends = kills.saturating_sub(last_call(grace)).min(notice.ends);
            self.hold(Notice { ends, kills: Some(kills), ..notice });
        }
    }

    /// Whether the ranks of this node take part in an agreement, and the other nodes can be reached.
    fn can_agree(&self) -> bool {
        let ask = self.ranks.stop_words.as_ref().is_some_and(|words| words.newest().is_some());
        if !ask || self.engine.running_attempt().is_none() && !self.engine.is_suspended() {
            return false;
        }
        self.is_connected()
    }

    /// Whether the ranks of this node stop, or have stopped, at a step that is agreed.
    fn has_decided(&self) -> bool {
        matches!(self.agreement.as_ref().and_then(StopAgreement::decision), Some(Decision::StopAt(_)))
    }

    fn is_connected(&self) -> bool {
        self.launch.plan.nnodes == 1 || self.launch.preempt_link.is_connected()
    }

    /// Stops the ranks by SIGTERM at once.
    fn stop_without_agreement(&mut self) -> io::Result<()> {
        let ask = self.ranks.stop_words.as_ref().is_some_and(|words| words.newest().is_some());
        let cannot_agree = ask && !self.is_connected();
        // A message may wait for the terminal.
        self.send(SupervisorEvent::Stop(libc::SIGTERM))?;
        if cannot_agree {
            warn!(
                "this launcher cannot agree on a step with those of other nodes: they have no common rendezvous (--master or etcd; \
                 rlaunch.run: --rdzv-backend), or it has no control socket; the ranks of this node are stopped at once"
            );
        }
        Ok(())
    }

    /// This node among those that agree, and their number.
    fn place(&self) -> (usize, usize) {
        let nnodes = self.launch.plan.nnodes;
        match (&self.peers, self.membership.as_ref().and_then(|membership| membership.round())) {
            (Some(peers), _) => (peers.node(), nnodes),
            (None, Some((members, own))) => (own, members.len()),
            (None, None) => (0, 1),
        }
    }

    /// The number of the node with this id.
    fn node_of(&self, id: &str) -> Option<usize> {
        match self.membership.as_ref().and_then(|membership| membership.round()) {
            Some((members, _)) => members.iter().position(|member| member.id == id),
            None => id.parse().ok(),
        }
    }

    /// The id of the node with this number.
    fn id_of(&self, node: usize) -> Option<String> {
        match self.membership.as_ref().and_then(|membership| membership.round()) {
            Some((members, _)) => members.get(node).map(|member| member.id.clone()),
            None => Some(node.to_string()),
        }
    }

    fn round_number(&self) -> u64 {
        self.launch.round.as_ref().map_or(0, |round| round.number)
    }

    /// Acts on what other threads have noted, and on the times of a notice.
    pub(super) fn check_notices(&mut self) -> io::Result<()> {
        let link = &self.launch.preempt_link;
        if self.launch.plan.nnodes > 1 && self.place().0 == 0 {
            link.receive_own();
        }
        if let Some(notice) = link.take_request() {
            match link.notice() {
                Some(standing) if standing.ends <= notice.ends => {}
                _ if self.engine.is_stopping() => {}
                _ if self.can_agree() => self.begin(notice)?,
                // Slurm's own SIGTERM comes at that time.
                _ if notice.cause == NoticeCause::TimeLimit => {}
                _ => self.stop_without_agreement()?,
            }
        }
        // Ranks of a later round stop as well.
        if self.agreement.is_none()
            && let Some(notice) = self.launch.preempt_link.notice().filter(|_| !self.engine.living().is_empty())
        {
            self.begin(notice)?;
        }
        for (node, message) in self.launch.preempt_link.take_messages() {
            self.hear_message(&node, &message)?;
        }
        let (now, mut effects) = (clock::now(), Vec::new());
        if let Some(agreement) = &mut self.agreement {
            agreement.handle_timeout(now, &mut effects);
        }
        self.carry_out(effects)?;
        match self.launch.preempt_link.notice() {
            Some(notice) if now >= notice.ends && !self.engine.is_stopping() => self.end_ranks(&notice),
            _ => Ok(()),
        }
    }

    /// When `check_notices` has to be called without an event.
    pub(super) fn notice_due(&self) -> Option<Duration> {
        let ends = self.launch.preempt_link.notice().map(|notice| notice.ends);
        let ends = ends.filter(|_| !self.engine.is_stopping());
        [ends, self.agreement.as_ref().and_then(StopAgreement::due)].into_iter().flatten().min()
    }

    fn hold(&mut self, notice: Notice) {
        self.launch.preempt_link.set_notice(notice);
        // Ranks that have their SIGTERM keep the time of it.
        if let Some(words) = self.ranks.stop_words.as_ref().filter(|_| !self.engine.is_stopping()) {
            words.set_end(notice.ends);
        }
        if let Some(agreement) = &mut self.agreement {
            agreement.limit_time(clock::now(), notice.ends);
        }
    }

    /// The ranks are to stop soon.
    fn begin(&mut self, notice: Notice) -> io::Result<()> {
        let standing = self.launch.preempt_link.notice();
        let notice = Notice { ends: standing.map_or(notice.ends, |standing| standing.ends.min(notice.ends)), ..notice };
        self.hold(notice);
        self.ranks.wait_for_no_reader();
        if let Some(membership) = &mut self.membership {
            membership.report_notice();
        }
        let left = notice.ends.saturating_sub(clock::now()).as_secs_f64();
        self.ranks.journal.write_later(JournalEvent::PreemptNotice { cause: notice.cause.word(), left_seconds: left });
        self.send(SupervisorEvent::Resume)?;
        self.send(SupervisorEvent::ForbidRestarts)?;
        info!("notice of preemption ({}): the ranks stop at a common step, within {left:.0} s", notice.cause.word());
        self.agree(StopEvent::Noticed)
    }

    fn hear_message(&mut self, node: &str, message: &StopMessage) -> io::Result<()> {
        let Some(from) = self.node_of(node).filter(|_| message.round == self.round_number()) else { return Ok(()) };
        if message.is_users_stop {
            self.launch.preempt_link.note_users_stop();
        }
        let at = |left| clock::now().saturating_add(left);
        let (ends, kills) = message.left();
        let heard = Notice { cause: NoticeCause::OtherNode, ends: at(ends), kills: kills.map(at) };
        match self.launch.preempt_link.notice() {
            None => self.begin(heard)?,
            // What a message takes on its way never makes its times earlier than they were.
            Some(standing) if heard.ends < standing.ends => {
                let kills = [standing.kills, heard.kills].into_iter().flatten().min();
                self.hold(Notice { ends: heard.ends, kills, ..standing });
            }
            Some(_) => {}
        }
        self.agreement_in_place().hear_time(clock::now(), (from, heard.ends), message.asks_for_time);
        self.agree(StopEvent::Heard { from, document: message.stop })
    }

    fn message(&self, document: StopDocument) -> StopMessage {
        let left = |at: Duration| at.saturating_sub(clock::now());
        let notice = self.launch.preempt_link.notice();
        let times = notice.map_or((Duration::ZERO, None), |one| (left(one.ends), one.kills.map(left)));
        let asks_for_time = self.agreement.as_ref().is_some_and(StopAgreement::asks_for_time);
        let is_users_stop = self.launch.preempt_link.is_users_stop();
        StopMessage::new(self.round_number(), times, document).asking_for_time(asks_for_time).by_user(is_users_stop)
    }

    /// The other nodes may have agreed already: they learn that a user stops the job.
    pub(super) fn tell_users_stop(&self) {
        if let Some(agreement) = &self.agreement {
            self.launch.preempt_link.send(&self.message(agreement.document()), None);
        }
    }

    /// The ranks of this node have ended: nodes that do not know of the decision hear of it nevertheless.
    pub(super) fn keep_last_message(&mut self) {
        self.inbox.requests_mut().end_ranks();
        if self.has_decided() && !self.was_signalled {
            self.inbox.requests_mut().forgive_next_sigterm();
        }
        if let Some(agreement) = &self.agreement {
            self.launch.preempt_link.conclude(self.message(agreement.document()));
        }
    }

    /// The agreement, which begins with the notice that holds.
    fn agreement_in_place(&mut self) -> &mut StopAgreement {
        let (place, notice) = (self.place(), self.launch.preempt_link.notice());
        self.agreement.get_or_insert_with(|| {
            let mut agreement = StopAgreement::new(place, PATIENCE, RESEND);
            notice.into_iter().for_each(|notice| agreement.limit_time(clock::now(), notice.ends));
            agreement
        })
    }

    fn agree(&mut self, event: StopEvent) -> io::Result<()> {
        let newest = self.ranks.stop_words.as_ref().and_then(|words| words.newest());
        let mut effects = Vec::new();
        self.agreement_in_place().handle(clock::now(), event, newest, &mut effects);
        self.carry_out(effects)
    }

    fn carry_out(&mut self, effects: Vec<StopEffect>) -> io::Result<()> {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                StopEffect::Raise(proposal) => {
                    let newest = self.ranks.stop_words.as_ref().and_then(|words| {
                        words.raise(proposal.step);
                        words.newest()
                    });
                    let (event, mut more) = (StopEvent::Raised { serial: proposal.serial, newest }, Vec::new());
                    if let Some(agreement) = &mut self.agreement {
                        agreement.handle(clock::now(), event, newest, &mut more);
                    }
                    effects.extend(more);
                }
                StopEffect::Send(to, document) => {
                    let to = if to == StopRecipient::Coordinator { self.id_of(0) } else { None };
                    self.launch.preempt_link.send(&self.message(document), to);
                }
                StopEffect::Decide(Decision::StopAt(step)) => {
                    if let Some(words) = &self.ranks.stop_words {
                        words.decide(step);
                    }
                    self.ranks.journal.write_later(JournalEvent::StopStep { step: Some(step) });
                    info!("all ranks stop at step {step}");
                }
                StopEffect::Decide(Decision::Abandoned) => {
                    if let Some(words) = &self.ranks.stop_words {
                        words.lower();
                    }
                    self.ranks.journal.write_later(JournalEvent::StopStep { step: None });
                    // A second stop would kill them.
                    if let Some(notice) = self.launch.preempt_link.notice().filter(|_| !self.engine.is_stopping()) {
                        self.end_ranks(&notice)?;
                    }
                    warn!("the nodes could not agree on a step in time; the ranks are stopped by SIGTERM");
                }
            }
        }
        Ok(())
    }

    /// The time of the notice is over, or the nodes could not agree.
    fn end_ranks(&mut self, notice: &Notice) -> io::Result<()> {
        if let Some(kills) = notice.kills {
            self.send(SupervisorEvent::LimitGrace(kills.saturating_sub(clock::now())))?;
        }
        self.send(SupervisorEvent::Stop(libc::SIGTERM))
    }
}
