//! Runs this node's part of a job whose nodes rendezvous: wait for a round, run it, report it, until the job is over.

use crate::cli::common::error::{CliError, system};
use crate::cli::common::exit_code::{self, NodePart};
use crate::cli::common::message::{print_error, print_notice};
use crate::cli::elastic::endpoints;
use crate::cli::elastic::outcome_text;
use crate::cli::elastic::round_frontend::{JoinedBackend, NodePlan, Round, RoundFrontend};
use crate::cli::elastic::wait_for_round::{RoundWait, WaitResult};
use crate::cli::node::frontend::{EngineListener, Frontend};
use crate::cli::node::job_record;
use crate::cli::node::progress_messages::describe_no_restart;
use crate::model::plain_text::escape;
use crate::plan::Plan;
use crate::protocol::admission::OTHER_NAME;
use crate::protocol::{
    FailureDetails, JobEnd, JobRules, NodeInfo, NodeStatus, NodeStep, OnNodeLoss, RankFailure, RoundMember, millis,
};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::torch_store::StoreSockets;
use crate::run;
use crate::run::control::live_status::JobNode;
use crate::run::control::server::ControlServer;
use crate::run::event_loop::OtherNodes;
use crate::run::launch::{Launch, LaunchRound, ShownRanks};
use crate::run::launch_result::LaunchResult;
use crate::run::multi_node::job_outcome::{JobOutcome, node_word};
use crate::run::multi_node::membership::{Membership, RoundStop};
use crate::run::output::log_files;
use crate::run::prepare::{gloo_tmpdir, preflight};
use crate::run::record::job_culprit;
use crate::run::record::journal;
use crate::run::record::journal::Journal;
use crate::run::record::journal_event::JournalEvent;
use crate::run::record::result;
use crate::run::signal_inbox::SignalInbox;
use crate::supervise::NodeOutcome;
use serde_json::Value;
use std::mem;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// Time in which the other nodes have to learn how this node's part ended.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A round that has ended on this node.
struct RoundResult {
    number: u64,
    plan: Plan,
    attempt: u32,
    launched: LaunchResult,
}

/// What a job's rounds on this node share.
struct Job<'a> {
    launch: &'a Launch<'a>,
    rounds: &'a dyn RoundFrontend,
    frontend: &'a dyn Frontend,
    inbox: &'a SignalInbox<'a>,
}

/// Runs this node's part of all rounds, under `lease`. Returns the exit status and the content of `result.json`.
pub fn run_rounds(
    launch: &Launch<'_>,
    (rounds, lease, control): (&dyn RoundFrontend, &Arc<NodeLease>, Option<&ControlServer>),
    inbox: &SignalInbox<'_>,
    frontend: &dyn Frontend,
) -> Result<(i32, Value), CliError> {
    let job = Job { launch, rounds, frontend, inbox };
    // A node that joins a running job stops it.
    preflight::check_interpreter(&launch.program).map_err(CliError::Preflight)?;
    let mut journal = job_record::open_journal(launch, true, frontend)?;
    let mut wait = RoundWait::new(launch, inbox, rounds);
    let joined = rounds.join(lease, &mut |time| wait.pause(time));
    wait.record(&mut journal);
    if let Some(signal) = wait.stopped_by() {
        return Ok(record_without_ranks(launch, &JobOutcome::Stopped(signal), journal, frontend));
    }
    match joined? {
        JoinedBackend::Member(mut membership) => {
            if let Some(Err(error)) = control.map(|control| control.connect(&mut membership)) {
                info!("`rlaunch status` shows the ranks of this machine alone: {error}");
            }
            job.run_as_member(membership, wait, journal)
        }
        JoinedBackend::Stopped(signal) => {
            Ok(record_without_ranks(launch, &JobOutcome::Stopped(signal), journal, frontend))
        }
        JoinedBackend::FixedList(members, own) => {
            let NodePlan { plan, shown, store } = job.plan_round(&Round { members: &members, own, failures: 0 })?;
            let this = launch.for_round(&plan, shown, store, (None, 0));
            frontend.before_ranks(&this);
            frontend.before_first_rank(&this);
            let listener = EngineListener { frontend, launch: &this };
            let ran = run::event_loop::run(&this, OtherNodes::None, inbox, journal, &listener);
            let launched = ran.map_err(CliError::EventLoop)?;
            let status = frontend.exit_status(&launched);
            Ok(job_record::record_end(&this, launched, status, None, frontend))
        }
    }
}

/// Refuses a round in which this node has other processes than it offered: a plan would look for the endpoints of the rest.
fn check_own(round: &Round<'_>, offered: &NodeInfo) -> Result<(), CliError> {
    let count = |info: &NodeInfo| (info.ranks, info.endpoints.len());
    match round.members.get(round.own) {
        Some(member) if count(&member.info) == count(offered) => Ok(()),
        _ => Err(endpoints::unusable(offered)),
    }
}

impl Job<'_> {
    /// This node's part of a round, with the files that its ranks read.
    fn plan_round(&self, round: &Round<'_>) -> Result<NodePlan, CliError> {
        let part = self.rounds.plan_round(round)?;
        let written = log_files::write_env_overflow(&part.plan);
        written.map_err(system(self.launch.log_dir.display().to_string()))?;
        Ok(part)
    }

    fn run_as_member(
        &self,
        mut membership: Box<Membership>,
        mut wait: RoundWait<'_>,
        mut journal: Journal,
    ) -> Result<(i32, Value), CliError> {
        let Job { launch, rounds, frontend, inbox } = *self;
        let mut last: Option<RoundResult> = None;
        // A failure here after which all ranks start again. The other nodes learn of it from the round's end.
        let mut failed: Option<RankFailure> = None;
        // The warnings of the round before.
        let mut warned: Vec<String> = Vec::new();
        let outcome = loop {
            let number = match wait.wait(&mut membership, &mut journal).map_err(CliError::EventLoop)? {
                WaitResult::Round(number) => number,
                WaitResult::Ended(outcome) => break outcome,
            };
            let failures = membership.state().map_or(0, |state| state.failures);
            if let Some(failure) = failed.take() {
                print_notice(&format!("{}; restarting all ranks of all nodes", outcome_text::of_failure(&failure)));
            }
            let Some((members, own)) = membership.round() else {
                break JobOutcome::Refused("it did not receive the list of participants".into());
            };
            launch.status.set_nodes(members.iter().map(job_node).collect(), own);
            let round = Round { members, own, failures };
            let prepared = rounds.prepare(&round, &mut || wait.may_continue());
            if let Some(outcome) = wait.stop_outcome() {
                break outcome;
            }
            let part = match prepared
                .and_then(|()| check_own(&round, membership.info()))
                .and_then(|()| self.plan_round(&round))
            {
                Ok(part) => part,
                Err(error) => {
                    let failure = failure_of_error(own, &error, &frontend.report_context().host);
                    membership.publish(NodeStatus::Failed { round: number, failure });
                    wait.wait_until_failure_is_known(&mut membership, LEAVE_TIMEOUT).map_err(CliError::EventLoop)?;
                    let _ = membership.close(LEAVE_TIMEOUT);
                    return Err(error);
                }
            };
            // The job may have gone on meanwhile, or the lease may be old: then it waits for what comes next.
            membership.receive();
            if membership.step() != (NodeStep::Start { round: number }) {
                continue;
            }
            let warnings = membership.state().map_or_else(Vec::new, |state| state.warnings.clone());
            // Warnings that the round before had too have been printed.
            warnings.iter().filter(|warning| !warned.contains(warning)).for_each(|warning| warn!("{warning}"));
            warned = warnings;
            let attempt = last.as_ref().map_or(0, |last| last.attempt + 1);
            if let Some(last) = &last {
                self.put_logs_aside(last);
            }
            let this_round = LaunchRound { number, lease: membership.lease_path() };
            let this = launch.for_round(&part.plan, part.shown, part.store, (Some(this_round), attempt));
            let Plan { nnodes, world_size, .. } = part.plan;
            let first_rank = part.plan.ranks.first().map_or(0, |rank| rank.rank);
            journal.write(JournalEvent::RoundStarted {
                round: number,
                attempt,
                node: own,
                nnodes,
                world_size,
                first_rank,
            });
            membership.publish(NodeStatus::runs(number));
            if attempt > 0 {
                let after = match failures {
                    0 => String::new(),
                    n => format!("; {n} restart(s) after failures so far"),
                };
                print_notice(&format!(
                    "all ranks start again: {world_size} on {nnodes} node(s), this is node {own}{after}"
                ));
            }
            frontend.before_ranks(&this);
            if attempt == 0 {
                frontend.before_first_rank(&this);
            }
            let listener = EngineListener { frontend, launch: &this };
            let others = OtherNodes::InRounds(&mut membership);
            let ran = run::event_loop::run(&this, others, inbox, mem::take(&mut journal), &listener);
            let mut launched = ran.map_err(CliError::EventLoop)?;
            journal = mem::take(&mut launched.journal);
            if let Some(last) = last.take() {
                launched.add_unshown(last.launched);
            }
            let next = match &launched.report.outcome {
                NodeOutcome::Failed { .. } | NodeOutcome::NotStarted { .. } => {
                    let failure = self.failure((own, failures, &membership.info().rules), &this, &launched);
                    failed = Some(failure.clone());
                    Continue(NodeStatus::Failed { round: number, failure })
                }
                NodeOutcome::Regrouped if is_restart_requested(&launched) => {
                    let failure = membership.restart_request();
                    failed = Some(failure.clone());
                    Continue(NodeStatus::Failed { round: number, failure })
                }
                _ => after_round(number, &launched, wait.stopped_by(), &membership),
            };
            let why = launched.round_stop.as_ref().map(outcome_text::of_round_stop);
            journal.write(JournalEvent::RoundEnded {
                round: number,
                outcome: node_word(&launched.report.outcome),
                why: why.as_deref(),
            });
            last = Some(RoundResult { number, plan: part.plan, attempt, launched });
            match next {
                Continue(status) => membership.publish(status),
                Break(outcome) => break outcome,
            }
        };
        let own = self.leave(&mut membership, &outcome);
        let state = membership.state();
        let was_in_last = last.as_ref().is_some_and(|ran| state.is_none_or(|state| state.round == ran.number));
        let outcome = match (outcome, state.and_then(|state| state.stopped_at)) {
            (JobOutcome::Ended(JobEnd::Completed), Some(step)) if !was_in_last => JobOutcome::Preempted(step),
            (outcome, _) => outcome,
        };
        let outcome = launch.preempt_link.final_outcome(outcome);
        match last {
            Some(ran) => {
                let launched = LaunchResult { journal, ..ran.launched };
                let this = launch.for_round(&ran.plan, ShownRanks::new(), StoreSockets::default(), (None, ran.attempt));
                let outcome = match (outcome, failed) {
                    // Those of other nodes stopped at the same step, or had ended before.
                    (JobOutcome::Ended(JobEnd::Completed), _) if was_in_last && is_preempted(&launched) => {
                        launch.preempt_link.final_outcome(launched.outcome.clone())
                    }
                    // Excluded: its own failure is what it reports.
                    (JobOutcome::Refused(why), Some(failure)) => {
                        JobOutcome::Ended(JobEnd::Failed { failure, no_restart: Some(why) })
                    }
                    (outcome, _) => outcome,
                };
                Ok(record_outcome(&this, launched, &outcome, own, frontend))
            }
            None => {
                let outcome = outcome_without_ranks(outcome, &membership, &launch.plan.job_id);
                Ok(record_without_ranks(launch, &outcome, journal, frontend))
            }
        }
    }

    /// Makes room for the next round's logs and temporary files.
    fn put_logs_aside(&self, last: &RoundResult) {
        let backups = self.launch.rotation.map_or(0, |kept| kept.backups);
        log_files::archive_all(&self.launch.log_dir, &last.plan, last.attempt, backups);
        if let Some(folder) = &self.launch.gloo_tmpdir {
            gloo_tmpdir::empty(folder);
        }
    }

    /// Leaves the job; returns this node's number in the last round.
    fn leave(&self, membership: &mut Membership, outcome: &JobOutcome) -> Option<usize> {
        if let JobOutcome::Stopped(signal) = outcome
            && !self.rounds.leaves_others_running()
        {
            membership.publish(NodeStatus::Leaves { signal: *signal });
        }
        if *outcome == JobOutcome::LauncherKilled {
            membership.end_master();
        }
        let own = membership.round().map(|(_, own)| own);
        if let Err(error) = membership.close(LEAVE_TIMEOUT) {
            let why = escape(&log_files::plain(&error));
            warn!("{}: this node could not leave in order: {why}", membership.address());
        }
        own
    }

    /// What the other nodes learn of a failure here.
    fn failure(
        &self,
        (node, failures, rules): (usize, u32, &JobRules),
        launch: &Launch<'_>,
        launched: &LaunchResult,
    ) -> RankFailure {
        let context = self.frontend.report_context();
        let is_preempted = launch.preempt_link.notice().is_some();
        let (no_restart, delay) = match self.rounds.restart_delay(launched, failures) {
            Ok(_) if is_preempted => (Some("there was a notice of preemption".to_owned()), Duration::ZERO),
            Ok(delay) => (None, delay),
            Err(why) => (Some(describe_no_restart(why)), Duration::ZERO),
        };
        let again = match &launched.report.outcome {
            NodeOutcome::Failed(failed) => rules.ask_for_restart(failed.decisive.shell_status()),
            _ => false,
        };
        let status = self.frontend.exit_status(launched);
        let failure = match (&launched.report.outcome, &launched.verdict) {
            (NodeOutcome::NotStarted { local_rank }, _) => {
                let label = launch.plan.ranks[*local_rank].label();
                let why = launched.report.ranks[*local_rank].start_error.as_deref().unwrap_or_default();
                RankFailure { cannot_begin: true, ..RankFailure::not_started(label, why) }
            }
            (_, Some(verdict)) => {
                job_culprit::rank_failure(launch, verdict, launched.processes[verdict.culprit].attempt)
            }
            _ => RankFailure::default(),
        };
        let no_restart = if failure.cannot_begin { Some("a rank could not be started".into()) } else { no_restart };
        let (host, delay_ms) = (context.host.clone(), millis(delay));
        RankFailure { host, node, status, again, no_restart, delay_ms, ..failure }
    }
}

/// Whether the ranks of this node were asked to stop (`rlaunch.should_stop`), and have all exited successfully.
fn is_preempted(launched: &LaunchResult) -> bool {
    matches!(launched.outcome, JobOutcome::Preempted(_))
}

/// A node as the others ask it.
fn job_node(member: &RoundMember) -> JobNode {
    let RoundMember { id, info } = member;
    JobNode { id: id.clone(), host: info.host.clone(), is_paddle_launcher: info.is_paddle_launcher }
}

/// Whether this node's ranks have ended because a user asked for another attempt, and the others wait for it.
fn is_restart_requested(launched: &LaunchResult) -> bool {
    let others_wait = matches!(launched.round_stop, None | Some(RoundStop::ByOthers { .. }));
    launched.report.restart_requested && others_wait
}

/// This node's status after a round in which none of its ranks failed, or the outcome of its part of the job.
/// `stopped_by`: the signal that stops this node.
fn after_round(
    round: u64,
    launched: &LaunchResult,
    stopped_by: Option<i32>,
    membership: &Membership,
) -> ControlFlow<JobOutcome, NodeStatus> {
    match (&launched.report.outcome, stopped_by, &launched.round_stop) {
        (NodeOutcome::Completed, ..) => {
            let stopped_at = match launched.outcome {
                JobOutcome::Preempted(step) => Some(step),
                _ => None,
            };
            Continue(NodeStatus::Done { round, stopped_at })
        }
        (NodeOutcome::LauncherKilled, ..) => Break(JobOutcome::LauncherKilled),
        (NodeOutcome::Stopped { signal }, ..) => Break(JobOutcome::Stopped(*signal)),
        (_, Some(signal), _) => Break(JobOutcome::Stopped(signal)),
        (_, None, Some(RoundStop::Refused(why))) => Break(JobOutcome::Refused(why.clone())),
        (_, None, Some(RoundStop::Unreachable(why))) if membership.info().rules.on_loss == OnNodeLoss::End => {
            Break(JobOutcome::Unreachable(why.clone()))
        }
        (_, None, Some(RoundStop::Unreachable(why))) => {
            // At the master it gives up next, if there is no contact.
            let waits = if membership.may_rejoin() { ", and it waits for contact" } else { "" };
            print_notice(&format!("{why}; the ranks of this node were killed{waits}"));
            Continue(NodeStatus::Ready { seen: round })
        }
        (_, None, _) => Continue(NodeStatus::Ready { seen: round }),
    }
}

/// What the other nodes learn of a node that cannot begin a round.
fn failure_of_error(node: usize, error: &CliError, host: &str) -> RankFailure {
    RankFailure {
        host: host.to_owned(),
        node,
        process: "the launcher".into(),
        outcome: "an error".into(),
        message: error.to_string(),
        status: exit_code::of_error(error),
        no_restart: Some("this node cannot begin".into()),
        cannot_begin: true,
        details: Box::new(FailureDetails::default().with_text(&error.to_string())),
        ..RankFailure::default()
    }
}

/// The outcome for a node that has run no rank. A job of a fixed size has ended without it: only a spare of an elastic one was a part.
fn outcome_without_ranks(outcome: JobOutcome, membership: &Membership, job: &str) -> JobOutcome {
    match outcome {
        JobOutcome::Ended(JobEnd::Completed) if !membership.info().rules.are_elastic() => {
            let (at, nodes) = (membership.address(), membership.info().rules.max);
            JobOutcome::Refused(format!(
                "job {job} at {at} has exited successfully on its {nodes} nodes without this one, which has run no rank; if this \
                 node is of another job, start that {OTHER_NAME}"
            ))
        }
        outcome => outcome,
    }
}

/// Records the end of a job that ran no rank here.
fn record_without_ranks(
    launch: &Launch<'_>,
    outcome: &JobOutcome,
    mut journal: Journal,
    frontend: &dyn Frontend,
) -> (i32, Value) {
    let has_one_status = frontend.report_context().has_one_exit_status;
    let exit_status = frontend.map_exit_status(exit_code::of_outcome(outcome, NodePart::None, has_one_status));
    journal.write(JournalEvent::JobEnded { outcome: outcome.own_word(), exit_status });
    let text = outcome_text::of_job(outcome).unwrap_or_default();
    let host = &frontend.report_context().host;
    let result = result::without_ranks(launch, host, exit_status, outcome, Some(&text));
    if let Err(error) = journal::write_result(&launch.log_dir, &result) {
        print_notice(&error.to_string());
    }
    match outcome {
        JobOutcome::Ended(JobEnd::Completed) | JobOutcome::Preempted(_) => print_notice(&text),
        _ => print_error(&text),
    }
    (exit_status, serde_json::to_value(result).unwrap_or_default())
}

/// Records the outcome of the job, and reports the rank that it failed by, here or on another node.
fn record_outcome(
    launch: &Launch<'_>,
    mut launched: LaunchResult,
    outcome: &JobOutcome,
    own: Option<usize>,
    frontend: &dyn Frontend,
) -> (i32, Value) {
    let failed_here = match outcome {
        JobOutcome::Ended(JobEnd::Failed { failure, .. }) => {
            Some(failure.node) == own && failure.host == frontend.report_context().host
        }
        _ => false,
    };
    let is_reported =
        matches!(outcome, JobOutcome::Ended(JobEnd::Completed) | JobOutcome::Preempted(_) | JobOutcome::LauncherKilled);
    if failed_here {
        if let JobOutcome::Ended(JobEnd::Failed { no_restart: Some(why), .. }) = outcome {
            print_notice(&format!("no restart: {why}"));
        }
    } else {
        launched.disown_failure();
    }
    // This node has taken part: the job has gone on, or has ended, without it.
    let outcome = &match outcome {
        JobOutcome::Refused(why) => JobOutcome::Unreachable(format!("this node cannot take part any more: {why}")),
        other => other.clone(),
    };
    launched.outcome = outcome.clone();
    let part = if failed_here { NodePart::Culprit } else { NodePart::Ran };
    let has_one_status = frontend.report_context().has_one_exit_status;
    let status = frontend.map_exit_status(exit_code::of_outcome(outcome, part, has_one_status));
    let text = outcome_text::of_job(outcome);
    let recorded = job_record::record_end(launch, launched, status, text.as_deref(), frontend);
    if let Some(text) = text.filter(|_| !failed_here && !is_reported) {
        print_error(&text);
    }
    recorded
}
