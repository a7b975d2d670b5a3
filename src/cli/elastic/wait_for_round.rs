//! Waits for the next round while this node runs nothing: follows the job's state, prints the missing nodes, obeys signals.

use crate::cli::common::message::print_notice;
use crate::cli::elastic::participants::describe_wait;
use crate::cli::elastic::round_frontend::RoundFrontend;
use crate::cli::node::progress_messages;
use crate::protocol::{JobPhase, JobState, NodeStatus, NodeStep};
use crate::run::launch::Launch;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::multi_node::membership::Membership;
use crate::run::record::journal::Journal;
use crate::run::record::journal_event::JournalEvent;
use crate::run::signal_inbox::SignalInbox;
use crate::run::stop_requests::{Arrival, StopRoute};
use crate::run::zygote::ZygoteEvent;
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use std::io;
use std::time::Duration;
use tracing::info;

/// Time to the first notice of what is waited for, and between later ones.
const FIRST_NOTICE: Duration = Duration::from_secs(2);
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);
/// Extra time before a notice of our own while nodes gather: the coordinator's list of participants may be under way.
const LIST_DELAY: Duration = Duration::from_secs(1);

/// How a wait ended.
pub enum WaitResult {
    /// This round begins.
    Round(u64),
    /// No further round will.
    Ended(JobOutcome),
}

/// A wait for the rounds of one job.
pub struct RoundWait<'a> {
    launch: &'a Launch<'a>,
    inbox: &'a SignalInbox<'a>,
    frontend: &'a dyn RoundFrontend,
    /// What has come and is not in the journal yet.
    unrecorded: Vec<Arrival>,
}

const MEMBERSHIP: u64 = 0;
const INBOX: u64 = 1;
const LAUNCHER: u64 = 2;
const PRELOAD: (u64, u64) = (3, 4);

impl<'a> RoundWait<'a> {
    /// A wait beside this inbox.
    pub fn new(launch: &'a Launch<'a>, inbox: &'a SignalInbox<'a>, frontend: &'a dyn RoundFrontend) -> Self {
        Self { launch, inbox, frontend, unrecorded: Vec::new() }
    }

    /// The signal that stops this node, if one has come.
    pub fn stopped_by(&self) -> Option<i32> {
        self.inbox.requests().stopped_by()
    }

    /// Takes in signals and requests. Returns whether the job may continue: no stop was requested. A stop and a suspension are
    /// remembered by the inbox; other signals have no rank to be forwarded to.
    pub fn may_continue(&mut self) -> bool {
        for arrival in self.inbox.take() {
            if arrival.route == StopRoute::User && self.launch.preempt_link.note_users_stop() {
                progress_messages::print_users_stop();
            }
            self.unrecorded.push(arrival);
        }
        self.launch.reap_orphans(|_| false);
        self.stopped_by().is_none() && !self.inbox.is_closed()
    }

    /// Writes to the journal what has come and means something.
    pub fn record(&mut self, journal: &mut Journal) {
        for arrival in self.unrecorded.drain(..).filter(|one| one.event.is_some() || one.count.is_some()) {
            journal.write(JournalEvent::signal(&arrival));
        }
    }

    /// The same, after a wait of at most `time` for a signal or a request.
    pub fn pause(&mut self, time: Duration) -> bool {
        let poll = || -> io::Result<()> {
            let poll = Poller::new()?;
            self.watch_requests(&poll)?;
            poll.ready(Some(time))
        };
        // Without a poller the caller only polls more often.
        let _ = poll();
        self.may_continue()
    }

    /// The outcome, once a stop was requested.
    pub fn stop_outcome(&mut self) -> Option<JobOutcome> {
        if self.may_continue() {
            return None;
        }
        Some(self.stopped_by().map_or(JobOutcome::LauncherKilled, JobOutcome::Stopped))
    }

    fn watch_requests(&self, poll: &Poller) -> io::Result<()> {
        self.inbox.watch(poll, (INBOX, LAUNCHER))
    }

    fn poller(&self, membership: &Membership) -> io::Result<Poller> {
        let poll = Poller::new()?;
        poll.readable(membership, MEMBERSHIP)?;
        self.watch_requests(&poll)?;
        Ok(poll)
    }

    /// Starts the preload server of a node that waits while a round of other nodes runs: its own round begins the sooner.
    fn preload(&self, membership: &Membership, poll: &Poller) -> io::Result<bool> {
        let runs = membership.state().is_some_and(|state| state.phase == JobPhase::Running);
        let Some(zygote) = self.launch.zygote.as_ref().filter(|_| runs && membership.round().is_none()) else {
            return Ok(false);
        };
        zygote.begin(&self.launch.preload_context(), poll, PRELOAD)?;
        Ok(true)
    }

    fn check_preload(&self, poll: &Poller, journal: &mut Journal) -> io::Result<()> {
        let Some(zygote) = &self.launch.zygote else { return Ok(()) };
        // Its failure is reported when a rank is to be started.
        if let Some(ZygoteEvent::Ready { pid, seconds }) = zygote.check(poll)? {
            journal.write(JournalEvent::ZygoteReady { pid, seconds, modules: zygote.modules() });
        }
        Ok(())
    }

    /// Waits until a round begins for this node, or the job is over.
    pub fn wait(&mut self, membership: &mut Membership, journal: &mut Journal) -> io::Result<WaitResult> {
        let mut has_preloaded = false;
        let poll = self.poller(membership)?;
        let began = clock::now();
        let mut next_notice = began + FIRST_NOTICE;
        loop {
            let stop = self.stop_outcome();
            self.record(journal);
            if let Some(outcome) = stop {
                return Ok(WaitResult::Ended(outcome));
            }
            if self.inbox.requests_mut().take_forgiven() {
                info!("received SIGTERM: the ranks of this node have stopped already, by a notice of preemption");
            }
            let participants = membership.receive();
            match membership.step() {
                NodeStep::ReportReady { seen } => {
                    membership.publish(NodeStatus::Ready { seen });
                    continue;
                }
                NodeStep::Start { round } => return Ok(WaitResult::Round(round)),
                NodeStep::End(end) => return Ok(WaitResult::Ended(JobOutcome::Ended(end))),
                NodeStep::Refused(why) => {
                    let job = self.launch.plan.job_id.as_str();
                    let why = if membership.is_refused_by_job() {
                        format!("{why} (job {job}, {})", membership.address())
                    } else {
                        why
                    };
                    return Ok(WaitResult::Ended(JobOutcome::Refused(why)));
                }
                NodeStep::Stop { .. } | NodeStep::Kill { .. } | NodeStep::Wait => {}
            }
            if let Some(outcome) = unreachable_outcome(membership) {
                return Ok(WaitResult::Ended(outcome));
            }
            has_preloaded = has_preloaded || self.preload(membership, &poll)?;
            let now = clock::now();
            let join_timeout = self.frontend.join_timeout();
            let deadline = Some(began + join_timeout).filter(|_| !membership.has_state());
            if deadline.is_some_and(|deadline| now >= deadline) {
                let why = membership.contact_error().unwrap_or("it does not answer");
                let seconds = join_timeout.as_secs_f64();
                let why = format!("{}: not reached within {seconds:.0} s: {why}", membership.address());
                return Ok(WaitResult::Ended(JobOutcome::NeverReached(why)));
            }
            let is_gathering = membership.contact_error().is_none()
                && membership.state().is_some_and(|state| state.phase == JobPhase::Gathering);
            let delay = if is_gathering { LIST_DELAY } else { Duration::ZERO };
            if let Some(participants) = participants {
                let own = self.frontend.waiting_notice(Some(&participants));
                let ranks_may_run = membership.state().is_some_and(|state| state.ranks_may_run);
                print_notice(&own.unwrap_or_else(|| describe_wait(&participants, ranks_may_run)));
                next_notice = now + NOTICE_INTERVAL;
            } else if now >= next_notice + delay {
                let own = self.frontend.waiting_notice(None).filter(|_| is_gathering);
                let left = deadline
                    .map_or(String::new(), |deadline| format!("; {} s left", deadline.saturating_sub(now).as_secs()));
                print_notice(&own.unwrap_or_else(|| describe_state(membership) + &left));
                next_notice = now + NOTICE_INTERVAL;
            }
            let due = membership.due().filter(|_| membership.has_state());
            let until = [due, deadline].into_iter().flatten().fold(next_notice + delay, Duration::min);
            let tokens = poll.wait(Some(until.saturating_sub(clock::now())))?;
            if tokens.iter().any(|token| [PRELOAD.0, PRELOAD.1].contains(token)) {
                self.check_preload(&poll, journal)?;
            }
        }
    }

    /// Waits until the other nodes know that this one has failed, for at most `limit`.
    pub fn wait_until_failure_is_known(&mut self, membership: &mut Membership, limit: Duration) -> io::Result<()> {
        let poll = self.poller(membership)?;
        let until = clock::now() + limit;
        while clock::now() < until && self.may_continue() {
            membership.receive();
            if membership.state().is_none_or(|state| state.phase != JobPhase::Running) {
                break;
            }
            poll.wait(Some(until.saturating_sub(clock::now())))?;
        }
        Ok(())
    }
}

/// The outcome of a job whose backend this node cannot reach any more.
fn unreachable_outcome(membership: &mut Membership) -> Option<JobOutcome> {
    // The coordinator is gone, and published how the job ends before.
    if let (Some(_), Some(JobState { phase: JobPhase::Stopping { end: Some(end), .. }, .. })) =
        (membership.contact_error(), membership.state())
    {
        return Some(JobOutcome::Ended(end.clone()));
    }
    if !membership.has_state() {
        return None;
    }
    let why = membership.given_up()?;
    // Before the first round it is the other nodes that were not found.
    Some(if membership.has_run_nothing() { JobOutcome::NeverReached(why) } else { JobOutcome::Unreachable(why) })
}

/// What this node waits for.
fn describe_state(membership: &Membership) -> String {
    let at = membership.address();
    if let Some(why) = membership.contact_error().or(membership.hindrance()) {
        return format!("waiting for {at}: {why}");
    }
    match membership.state() {
        None => format!("waiting for {at}"),
        Some(JobState { phase: JobPhase::Gathering, .. }) => format!("waiting for other nodes at {at}"),
        Some(JobState { phase: JobPhase::Running, .. }) => match membership.is_done() {
            true => "the ranks of this node exited successfully; waiting for those of the other nodes".into(),
            false if membership.is_surplus() => {
                format!(
                    "the job at {at} has all its nodes and replaces none; this node waits until it is clear that they live"
                )
            }
            false if membership.is_spare() => format!("the job at {at} runs; this node waits to replace a lost one"),
            false => format!("the job at {at} runs; waiting for its next round"),
        },
        Some(JobState { phase: JobPhase::Stopping { .. }, .. }) => {
            "waiting for the ranks of other nodes to stop".into()
        }
        Some(JobState { phase: JobPhase::Ended { .. }, .. }) => {
            format!("waiting for an earlier job of the same name at {at} to end")
        }
    }
}
