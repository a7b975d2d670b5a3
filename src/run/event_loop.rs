//! The event loop of the supervisor process: runs a plan to its end. It waits for signals, the preload server, the other
//! nodes and growing logs, and passes what happens on to the engine.

mod arrivals;
mod preempt;
mod watch_ranks;

use super::engine::Engine;
use super::sweep;
use super::tokens::{FOLLOWERS, GROWTH, INBOX, LAUNCHER, NODES, SAMPLES, ZYGOTE};
use super::zygote::Zygote;
use crate::plan::{Plan, RankPlan};
use crate::protocol::stop_step::StopAgreement;
use crate::rendezvous::torch_static::StaticPeers;
use crate::report::job_status::LaunchPhase;
use crate::run::control::live_status::RestartRefused;
use crate::run::hangs::exit_detector::ExitDetector;
use crate::run::hangs::hang_detector::HangDetector;
use crate::run::launch::{Launch, LaunchListener};
use crate::run::launch_result::LaunchResult;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::multi_node::membership::{Membership, RoundStop};
use crate::run::multi_node::peers::{self, PeerNews};
use crate::run::output::console::Unshown;
use crate::run::ranks::RankProcesses;
use crate::run::record::journal::Journal;
use crate::run::record::journal_event::JournalEvent;
use crate::run::signal_inbox::SignalInbox;
use crate::run::stacks::polled_reader::PolledReader;
use crate::run::sweep::stop_watch::StopWatch;
use crate::supervise::{
    Lifecycle, NodeOutcome, RankStop, RoundAction, RoundEvent, RoundPhase, StopReason, SupervisorEvent,
};
use crate::sys::clock;
use std::io;
use std::time::Duration;

/// How long a console that accepts nothing is waited for once all ranks have ended. A slow one has `--console_drain_timeout`.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(5);
/// How long the console is waited for in all after a stop: the user who stops a job waits for its end.
const STOPPED_CONSOLE_PATIENCE: Duration = Duration::from_millis(500);

/// After which time it is said what the stop after a failure waits for.
const SLOW_STOP: Duration = Duration::from_secs(2);

/// Whether ranks do not end soon after another one has failed.
#[derive(Clone, Copy)]
enum SlowStop {
    /// No rank has failed.
    No,
    /// The stop is slow at this time.
    At(Duration),
    /// It is, and that has been said.
    Said,
}

/// The other nodes of a job.
pub enum OtherNodes<'a> {
    /// None, or none that this node has contact with.
    None,
    /// Nodes with fixed numbers, which meet once at node 0's store.
    AtStore(Box<StaticPeers>),
    /// The nodes of an elastic job, in one of its rounds.
    InRounds(&'a mut Membership),
}

/// Runs the plan to its end, or to the end of the round.
pub fn run(
    launch: &Launch<'_>,
    others: OtherNodes<'_>,
    inbox: &SignalInbox<'_>,
    journal: Journal,
    listener: &dyn LaunchListener,
) -> io::Result<LaunchResult> {
    let engine = Engine::new(&lifecycles(launch.plan), launch.policy.clone())?;
    inbox.watch(engine.poll(), (INBOX, LAUNCHER))?;
    let (mut peers, membership) = match others {
        OtherNodes::None => (None, None),
        OtherNodes::AtStore(peers) => (Some(*peers), None),
        OtherNodes::InRounds(membership) => (None, Some(membership)),
    };
    if let Some(membership) = &membership {
        engine.poll().readable(&**membership, NODES)?;
    }
    if let Some(peers) = &mut peers {
        peers.resume_store()?;
        preempt::connect(peers, &launch.preempt_link);
        engine.poll().readable(&*peers, NODES)?;
    }
    inbox.requests_mut().begin_ranks();
    let round = launch.round.as_ref().map(|round| round.number);
    let refused = restart_refusal(launch.plan, membership.is_some());
    launch.status.begin(launch.plan, round, launch.policy.first_attempt, refused);
    let store = launch.torch_store.take();
    let lease = membership.as_ref().map(|membership| membership.lease().clone());
    let stop_watch = StopWatch::new(inbox, lease);
    let ranks = RankProcesses::new(launch, &store, (engine.poll().clone(), stop_watch), journal, listener)?;
    if let Some(zygote) = &launch.zygote {
        zygote.begin(&launch.preload_context(), engine.poll(), ZYGOTE)?;
    }
    let event_loop = EventLoop {
        exits: ExitDetector::new(launch.hang.exit_timeout, PolledReader::new(&launch.stack_reader)),
        hangs: HangDetector::new(launch.hang.timeout, launch.plan.nnodes > 1, PolledReader::new(&launch.stack_reader)),
        engine,
        ranks,
        launch,
        inbox,
        is_inbox_closed: false,
        listener,
        peers,
        membership,
        phase: RoundPhase::default(),
        slow_stop: SlowStop::No,
        round_stop: None,
        outcome: JobOutcome::AsReported,
        agreement: None,
        was_signalled: false,
    };
    event_loop.run()
}

/// The lifecycle of each rank.
fn lifecycles(plan: &Plan) -> Vec<Lifecycle> {
    let of = |rank: &RankPlan| match Lifecycle::of(rank.role) {
        Lifecycle::Server if plan.awaits_servers => Lifecycle::AwaitedServer,
        lifecycle => lifecycle,
    };
    plan.ranks.iter().map(of).collect()
}

/// Why a user cannot have the ranks restarted, if so.
fn restart_refusal(plan: &Plan, has_membership: bool) -> Option<RestartRefused> {
    let has_server = plan.ranks.iter().any(|rank| Lifecycle::of(rank.role) == Lifecycle::Server);
    if has_server || plan.mode == "ps" {
        Some(RestartRefused::Servers)
    } else {
        (plan.nnodes > 1 && !has_membership).then_some(RestartRefused::NoRendezvous)
    }
}

struct EventLoop<'a> {
    engine: Engine,
    ranks: RankProcesses<'a>,
    launch: &'a Launch<'a>,
    inbox: &'a SignalInbox<'a>,
    is_inbox_closed: bool,
    listener: &'a dyn LaunchListener,
    peers: Option<StaticPeers>,
    membership: Option<&'a mut Membership>,
    phase: RoundPhase,
    slow_stop: SlowStop,
    hangs: HangDetector<'a>,
    exits: ExitDetector<'a>,
    round_stop: Option<RoundStop>,
    outcome: JobOutcome,
    /// On the step at which the ranks stop, once they are to.
    agreement: Option<StopAgreement>,
    /// A stop signal has come.
    was_signalled: bool,
}

impl<'a> EventLoop<'a> {
    fn zygote(&self) -> Option<&'a Zygote> {
        self.launch.zygote.as_deref()
    }

    fn run(mut self) -> io::Result<LaunchResult> {
        // Ctrl-Z before this round holds on.
        if self.inbox.requests().is_suspended() {
            self.ranks.suspend_or_resume_zygote(&SupervisorEvent::Suspend);
        }
        while self.engine.report().is_none() {
            if !self.zygote().is_some_and(Zygote::is_importing)
                && let Some(RoundAction::StartRanks) = self.phase.handle(RoundEvent::PreloadDone)
            {
                self.launch.status.set_phase(LaunchPhase::Running);
                self.send(SupervisorEvent::Start)?;
                if self.inbox.requests().is_suspended() {
                    self.send(SupervisorEvent::Suspend)?;
                }
                continue;
            }
            let limit = self.time_left();
            let tokens = self.engine.wait(limit, &self.ranks)?;
            // Before the ends of ranks: if this node was suspended, the launcher process may have killed them.
            self.check_lease()?;
            if self.engine.expects_stop() {
                self.handle_inbox()?;
            }
            let mut tokens = self.engine.handle(tokens, &mut self.ranks)?;
            // A sweep may have read it ahead: the descriptors are not readable any more.
            tokens.extend(self.inbox.has_read_ahead().then_some(INBOX));
            for token in tokens {
                self.handle_token(token)?;
            }
            self.check_membership()?;
            self.check_notices()?;
            self.report_to_peers();
            if self.engine.start_next(&mut self.ranks)? {
                self.reap_orphans();
                // One that was forked may have failed before its process was known here.
                self.note_failed_ranks();
            }
            if let Some(zygote) = self.zygote().filter(|zygote| zygote.has_become_slow()) {
                self.listener.preload_is_slow(&zygote.names());
            }
            self.watch_stop();
            self.watch_hangs()?;
            self.launch.status.set_standstill(self.engine.is_suspended(), self.hangs.is_reported());
            self.watch_exits()?;
            for follower in self.ranks.followers() {
                follower.handle_timeout(self.engine.poll())?;
                if follower.has_more() {
                    follower.copy(self.engine.poll())?;
                }
            }
            self.ranks.journal.flush();
            self.launch.status.set_takes_restart(self.engine.takes_restart());
        }
        self.keep_last_message();
        self.finish()
    }

    fn send(&mut self, event: SupervisorEvent) -> io::Result<()> {
        if let SupervisorEvent::Stop(_) | SupervisorEvent::StopAgain(_) = event {
            // `rlaunch stop` may have asked for a shorter one.
            let grace = self.launch.policy_of_stop().grace;
            self.engine.send(SupervisorEvent::LimitGrace(grace), &mut self.ranks)?;
        }
        self.engine.send(event, &mut self.ranks)
    }

    /// How long the loop may sleep; `None`: until something happens.
    fn time_left(&mut self) -> Option<Duration> {
        if self.inbox.has_read_ahead() || self.ranks.followers().any(|follower| follower.has_more()) {
            return Some(Duration::ZERO);
        }
        let output_at = self.ranks.followers().filter_map(|follower| follower.due()).min();
        let check_at = self.phase.next_check(self.membership.as_ref().and_then(|membership| membership.due()));
        let slow_at = self.zygote().and_then(Zygote::slow_at);
        let stop_at = if let SlowStop::At(at) = self.slow_stop { Some(at) } else { None };
        let watched = [self.hangs.due(), self.exits.due(), self.notice_due()];
        let due = [check_at, output_at, slow_at, stop_at].into_iter().chain(watched).flatten().min();
        due.map(|at| at.saturating_sub(clock::now()))
    }

    /// Says what the job waits for if ranks do not end soon after another one has failed.
    fn watch_stop(&mut self) {
        let reason = self.engine.reason().filter(|_| self.engine.is_stopping() && !self.engine.is_killing());
        self.slow_stop = match (reason, self.slow_stop) {
            (Some(StopReason::RankFailed(..)), SlowStop::No) => SlowStop::At(clock::now() + SLOW_STOP),
            (Some(StopReason::RankFailed(ended_first, exit)), SlowStop::At(at)) if clock::now() >= at => {
                let failure = self.ranks.judge_now((ended_first, exit));
                self.listener.stop_is_slow(&failure, &self.engine.living(), self.engine.time_left());
                SlowStop::Said
            }
            (Some(StopReason::RankFailed(..)), slow) => slow,
            _ => SlowStop::No,
        };
    }

    /// Kills the ranks if the lease that they run under has lapsed.
    fn check_lease(&mut self) -> io::Result<()> {
        match self.membership.as_ref().and_then(|membership| membership.round_stop()) {
            Some((stop, RankStop::AtOnce)) => self.end_round(stop, RankStop::AtOnce),
            _ => Ok(()),
        }
    }

    fn end_round(&mut self, stop: RoundStop, how: RankStop) -> io::Result<()> {
        let Some(RoundAction::StopRanks(how)) = self.phase.handle(RoundEvent::RoundEnded(how)) else { return Ok(()) };
        self.engine.send(SupervisorEvent::Regroup(how), &mut self.ranks)?;
        if self.round_stop.is_none() {
            self.listener.round_stopped(&stop);
            self.round_stop = Some(stop);
        }
        Ok(())
    }

    fn check_membership(&mut self) -> io::Result<()> {
        let Some(membership) = &mut self.membership else { return Ok(()) };
        // New participants matter to nodes that wait for a round; this one runs.
        membership.receive();
        if let Some(reason) = self.engine.reason()
            && reason.is_reported_to_nodes()
            && let Some(RoundAction::ReportStop) = self.phase.handle(RoundEvent::RanksStopping)
            && let Some(stop) = self.ranks.node_stop(reason, membership)
        {
            membership.report_stop(stop);
        }
        match membership.round_stop() {
            Some((stop, how)) => self.end_round(stop, how),
            None => Ok(()),
        }
    }

    fn handle_token(&mut self, token: u64) -> io::Result<()> {
        match token {
            INBOX => self.handle_inbox()?,
            LAUNCHER => {
                self.engine.poll().forget(self.inbox.launcher())?;
                self.ranks.stop_watch.note_launcher_lost();
                self.ranks.journal.write_later(JournalEvent::FrontLost);
                // It may have passed a signal on before.
                self.handle_inbox()?;
                let is_noticed = self.has_notice_by_signal();
                if !is_noticed {
                    self.send(SupervisorEvent::LauncherKilled)?;
                }
                let have_ranks_time = is_noticed || self.engine.is_stopping() && !self.engine.is_killing();
                if let Some(membership) = self.membership.as_mut().filter(|_| !have_ranks_time) {
                    membership.end_master();
                }
            }
            token if token == ZYGOTE.0 || token == ZYGOTE.1 => self.ranks.check_zygote(self.engine.poll())?,
            NODES => self.hear_peers()?,
            GROWTH => self.ranks.logs_have_grown()?,
            SAMPLES => self.ranks.note_samples(),
            _ => {
                if let Some(follower) = self.ranks.follower(token.saturating_sub(FOLLOWERS) as usize) {
                    follower.writable(self.engine.poll())?;
                }
            }
        }
        Ok(())
    }

    /// Reaps orphans that were reparented to this process. Ranks are reaped by their pidfds.
    fn reap_orphans(&self) {
        // A rank that was forked, and may have ended, is no orphan.
        if !self.engine.is_starting() {
            self.launch.reap_orphans(|pid| self.engine.owns(pid));
        }
    }

    fn hear_peers(&mut self) -> io::Result<()> {
        let Some(peers) = &mut self.peers else { return Ok(()) };
        let PeerNews { stop, is_store_gone } = peers::hear(peers);
        if is_store_gone {
            self.engine.poll().forget(&*peers)?;
        }
        // No attempt of this node may follow without node 0's store.
        let is_news = !self.engine.is_stopping() || self.engine.may_restart();
        let Some(outcome) = stop.filter(|_| is_news) else { return Ok(()) };
        self.outcome = outcome;
        self.send(match self.outcome {
            JobOutcome::StoreLost => SupervisorEvent::Stop(libc::SIGTERM),
            _ => SupervisorEvent::Regroup(RankStop::WithGrace),
        })
    }

    /// Reports to the other nodes of a static rendezvous how the job ends, once this node stops for a reason of its own for good.
    fn report_to_peers(&mut self) {
        let restarts = self.launch.policy.restart.max_restart > 0;
        if let (Some(peers), Some(reason)) = (&mut self.peers, self.engine.reason())
            && self.outcome == JobOutcome::AsReported
            && !(restarts && reason.is_failure())
            && reason.is_reported_to_nodes()
            && let Some(RoundAction::ReportStop) = self.phase.handle(RoundEvent::RanksStopping)
            && let Some(end) = self.ranks.job_end(reason, peers.node())
        {
            peers.report_job_end(&end);
        }
    }

    /// After the last rank: sweeps, copies the rest of the logs and waits for the other nodes.
    fn finish(self) -> io::Result<LaunchResult> {
        let Self { engine, mut ranks, launch, inbox, mut peers, membership, round_stop, mut outcome, .. } = self;
        // Where nodes rendezvous, another round may follow.
        launch.status.set_phase(if membership.is_some() { LaunchPhase::Preparing } else { LaunchPhase::Ended });
        // A later round uses the same preload server.
        if let Some(zygote) = launch.zygote.as_deref().filter(|_| membership.is_none()) {
            zygote.end();
        }
        // Shared memory is removed even if the launcher process has been killed.
        let mut is_stop_pending = || inbox.is_stop_pending();
        let ((kept, readers), cgroup) = (launch.kept_in_sweep(), launch.cgroup.as_ref());
        let swept = sweep::all(&kept, &launch.no_sweep, cgroup, clock::now(), &mut is_stop_pending);
        let mut rest = match swept {
            // Another round could begin beside what is left.
            Err(error) if membership.is_some() => return Err(error.source),
            swept => sweep::result_of_last(swept),
        };
        if let Some(membership) = &membership {
            membership.ranks_have_ended();
        }
        drop(readers);
        ranks.remove_memory();
        rest.killed.append(&mut ranks.strays);
        ranks.close_outputs();
        // Ranks may fail because their peers are gone before the loss of these peers is seen.
        if let Some(peers) = &mut peers
            && outcome == JobOutcome::AsReported
        {
            if engine.poll().wait(Some(Duration::ZERO))?.contains(&NODES) {
                peers::hear(peers);
            }
            if let Some(report) = engine.report() {
                outcome = ranks.outcome_with_peers(peers, report);
            }
        }
        let waits = peers
            .as_mut()
            .is_some_and(|peers| peers::report_end(peers, engine.report().map(|report| &report.outcome), launch.plan));
        let lost = engine.report().is_some_and(|report| report.outcome == NodeOutcome::LauncherKilled);
        let limit = if lost || inbox.requests().is_stopped() { STOPPED_CONSOLE_PATIENCE } else { Duration::MAX };
        let drained_by = clock::now().saturating_add(limit.min(launch.console_drain_timeout));
        let mut give_up = || inbox.is_stop_pending() || inbox.is_closed();
        let mut unshown = Unshown::default();
        for follower in ranks.followers() {
            let left = drained_by.saturating_sub(clock::now());
            unshown = unshown.and(follower.finish(CONSOLE_PATIENCE, left, &inbox.descriptors(), &mut give_up)?);
        }
        let interrupted = ranks.followers().map(|follower| follower.interrupted_logs()).sum();
        ranks.finish_rotation();
        unshown = unshown.and(Unshown { logged: ranks.unshown(), is_reader_gone: false });
        if let Some(peers) = peers.as_mut().filter(|_| waits) {
            outcome = peers::wait_for_others(peers, inbox)?;
        }
        if let Some(peers) = &mut peers {
            peers.wait_until_learned();
        }
        let of_round = || Some(membership.as_ref()?.round()?.1);
        let node = peers.as_ref().map(StaticPeers::node).or_else(of_round);
        let Some(mut report) = engine.report().cloned() else {
            return Err(io::Error::other("the job ended without a report"));
        };
        let verdict = ranks.verdict.take().filter(|_| matches!(report.outcome, NodeOutcome::Failed(_)));
        for (end, process) in report.ranks.iter_mut().zip(&ranks.processes) {
            end.exit = end.exit.and(process.exit);
        }
        let stopped_at = ranks.stop_words.as_ref().and_then(|words| words.stopped_at());
        if let (Some(step), JobOutcome::AsReported, NodeOutcome::Completed) = (stopped_at, &outcome, &report.outcome) {
            outcome = JobOutcome::Preempted(step);
        }
        if membership.is_none() {
            outcome = launch.preempt_link.final_outcome(outcome);
        }
        let RankProcesses { processes, swept, journal, lost, .. } = ranks;
        Ok(LaunchResult {
            report,
            processes,
            swept,
            unshown,
            lost,
            interrupted,
            rest,
            round_stop,
            outcome,
            node,
            verdict,
            journal,
        })
    }
}
