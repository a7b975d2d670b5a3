//! Runs a plan on this node, for every front end: splits into launcher and supervisor process, returns the exit status.

use crate::cli::common::error::CliError;
use crate::cli::common::exit_code;
use crate::cli::common::message::{print_error, print_notice};
use crate::cli::common::status_pipe::StatusPipe;
use crate::cli::elastic::outcome_text;
use crate::cli::elastic::round_frontend::RoundFrontend;
use crate::cli::elastic::rounds;
use crate::cli::node::build_failure_report::{print_left, print_unkillable};
use crate::cli::node::frontend::{EngineListener, Frontend};
use crate::cli::node::job_record::{open_journal, record_end};
use crate::cli::node::requeue;
use crate::cli::node::slurm;
use crate::model::Exit;
use crate::net::thread;
use crate::probe::net;
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::torch_static::StaticPeers;
use crate::report::{failure_report, secrets};
use crate::run;
use crate::run::control::live_status::working_dir;
use crate::run::control::server::ControlServer;
use crate::run::event_loop::OtherNodes;
use crate::run::launch::Launch;
use crate::run::launcher_process;
use crate::run::launcher_process::{LauncherSide, ProcessSide, SupervisorExit, SupervisorLoss};
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::preempt::notice_watch;
use crate::run::prepare::gloo_tmpdir;
use crate::run::record::history::{self, EndedJob};
use crate::run::record::journal;
use crate::run::record::result;
use crate::run::sampling::sampler::Sampler;
use crate::run::signal_inbox::SignalInbox;
use crate::run::sweep;
use crate::sys::clock;
use crate::sys::io::ports::PortLease;
use crate::sys::process::{current, procfs};
use crate::sys::signals::{self, BLOCKED_IN_LAUNCHER, Signals};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// What the job lacks where processes cannot be looked up in /proc.
const WITHOUT_PROCFS: &str = "a process that leaves the process group of its rank is not named, and outlives the job unless \
    a cgroup ends it; mount /proc in this namespace";

/// How this node's plan comes about.
pub enum NodeWork<'a> {
    /// The plan is complete.
    Once,
    /// The plan is complete; the other nodes found each other at node 0's store.
    AtStore(StaticPeers),
    /// There is a new plan for each round with the other nodes.
    Rounds(&'a dyn RoundFrontend),
}

/// Runs the job to its end and returns the exit status; in the supervisor process, never returns. `leases`: this node's
/// ports, held until its ranks have ended.
pub fn run_node(
    launch: &Launch<'_>,
    frontend: &dyn Frontend,
    (leases, work): (Vec<PortLease>, NodeWork<'_>),
    signals: &mut Signals,
    status_pipe: &mut StatusPipe,
) -> Result<i32, CliError> {
    if let Some(folder) = &launch.gloo_tmpdir {
        gloo_tmpdir::create(folder).map_err(CliError::Preflight)?;
    }
    if let Err(unusable) = procfs::verify() {
        warn!("{unusable}: {WITHOUT_PROCFS}");
    }
    // Both processes share it.
    let lease = match NodeLease::new() {
        Ok(lease) => Arc::new(lease),
        Err(error) => return Err(not_started(launch, error)),
    };
    let launcher_pid = std::process::id() as i32;
    match launcher_process::fork_supervisor(signals) {
        Ok(ProcessSide::Launcher(launcher)) => {
            // The store is the supervisor's: clients must not reach this process instead.
            drop(launch.torch_store.take());
            let rounds = if let NodeWork::Rounds(rounds) = work { Some((rounds, &*lease)) } else { None };
            drop(work);
            Ok(guard_supervisor((&launcher, rounds), signals, launch, &frontend.report_context().host, status_pipe))
        }
        Ok(ProcessSide::Supervisor(supervisor)) => current::end(|| {
            if status_pipe.is_read() {
                signals::unblock(&BLOCKED_IN_LAUNCHER);
            }
            let (host, id) = (&frontend.report_context().host, launcher_pid);
            launch.status.describe((&launch.plan.job_id, host), id, (&launch.log_dir, shown_command(launch)));
            let control = ControlServer::start(launch, &supervisor, id);
            if let Err(error) = &control {
                warn!("`rlaunch status` does not find this job, and other nodes cannot ask it: {error}");
            }
            let time_limit = slurm::time_limit();
            if let Err(error) = notice_watch::start(&launch.preempt, time_limit, &launch.preempt_link) {
                warn!("no notice of preemption by a file or by a time limit is seen: {error}");
            }
            let sampler = Sampler::start(launch).unwrap_or_else(|error| {
                warn!("no samples of the ranks are taken: {error}");
                None
            });
            let repeats = launch.policy.same_sigterm;
            let inbox =
                SignalInbox::new((&supervisor, signals), &launch.forwarded_signals, repeats, launch.status.clone());
            let meets_others = !matches!(work, NodeWork::Once);
            let done = match work {
                NodeWork::Once => run_once(launch, None, &inbox, frontend),
                NodeWork::AtStore(nodes) => run_once(launch, Some(nodes), &inbox, frontend),
                NodeWork::Rounds(rounds) => {
                    rounds::run_rounds(launch, (rounds, &lease, control.as_ref().ok()), &inbox, frontend)
                }
            };
            let is_preempted = matches!(&done, Ok((_, result)) if result["outcome"] == "preempted");
            let leads = matches!(&done, Ok((_, result)) if has_rank_0(result));
            let outcome = match &done {
                Ok((_, result)) => result["outcome"].as_str().unwrap_or_default().to_owned(),
                Err(_) => "error".to_owned(),
            };
            let is_final = done.as_ref().map_or(true, |(status, _)| frontend.is_final(launch, *status));
            let status = match done {
                // The second pass writes the result.
                Ok((status, _)) if !is_final => status,
                Ok((status, result)) => {
                    status_pipe.write(&result);
                    status
                }
                // Nothing is written to the pipe: the launcher process ends the ranks and says how the job ended.
                Err(error) if exit_code::of_error(&error) == exit_code::INTERNAL => {
                    print_error(&error.explained());
                    return exit_code::INTERNAL;
                }
                Err(error) => status_pipe.fail(&error),
            };
            drop(control);
            if let Some(sampler) = sampler {
                sampler.end(status);
            }
            // The zygote still runs after several rounds, or after an error.
            if launch.zygote.as_ref().is_some_and(|zygote| zygote.end()) {
                // Ends what its modules have started. If /proc cannot be read here, the launcher process sweeps.
                let _ = sweep::all(&BTreeSet::new(), &launch.no_sweep, None, clock::now(), &mut || false);
            }
            // Before the report: a launcher that is PID 1 ends this process when it exits.
            sweep::close(launch.cgroup.as_ref(), &launch.no_sweep);
            gloo_tmpdir::remove(launch.gloo_tmpdir.as_deref());
            // The kernel may take its time to end this process, and the next job may want these ports.
            drop(leases);
            if is_final {
                history::record(ended_job(launch, (id, std::process::id() as i32), (outcome, status)));
            }
            if is_preempted {
                requeue::after_preemption(launch.preempt.requeue, meets_others.then_some(leads));
            }
            supervisor.report(status);
            status
        }),
        Err(error) => Err(not_started(launch, error)),
    }
}

/// Whether the job's rank 0 was on this node. `result`: as `result.json` has it.
fn has_rank_0(result: &Value) -> bool {
    let ranks = result["ranks"].as_array().map_or(&[][..], Vec::as_slice);
    ranks.iter().any(|rank| rank["role"] == "rank" && rank["rank"] == 0)
}

/// The command line of the ranks, with secrets masked.
fn shown_command(launch: &Launch<'_>) -> Vec<String> {
    let argv = launch.plan.ranks.first().map_or(&[][..], |rank| &rank.argv);
    secrets::words(argv.iter().map(|arg| arg.to_string_lossy()))
}

/// This job at its end, for the history. `processes`: the launcher and its supervisor.
fn ended_job(launch: &Launch<'_>, processes: (i32, i32), (outcome, exit_status): (String, i32)) -> EndedJob {
    let (launcher, supervisor) = processes;
    EndedJob {
        job_id: launch.plan.job_id.clone(),
        host: net::host_name(),
        launcher,
        supervisor,
        command: shown_command(launch),
        working_dir: working_dir(),
        log_dir: std::path::absolute(&launch.log_dir).unwrap_or_else(|_| launch.log_dir.clone()),
        started: launch.status.started(),
        outcome,
        exit_status,
        ..EndedJob::default()
    }
}

fn not_started(launch: &Launch<'_>, error: io::Error) -> CliError {
    gloo_tmpdir::remove(launch.gloo_tmpdir.as_deref());
    CliError::SupervisorNotStarted(error)
}

/// The launcher process: waits for the supervisor process, and reports the end where the supervisor cannot.
fn guard_supervisor(
    (launcher, rounds): (&LauncherSide, Option<(&dyn RoundFrontend, &NodeLease)>),
    signals: &Signals,
    launch: &Launch<'_>,
    host: &str,
    status_pipe: &mut StatusPipe,
) -> i32 {
    let (loss, swept) = match launcher.guard(signals, launch, rounds.map(|(_, lease)| lease)) {
        Ok(SupervisorExit::Status(status)) => return status,
        Ok(SupervisorExit::Lost(loss, swept)) => {
            gloo_tmpdir::remove(launch.gloo_tmpdir.as_deref());
            (loss, swept)
        }
        Err(error) => return status_pipe.fail(&CliError::SupervisorWatch(error)),
    };
    let (status, how) = match loss {
        SupervisorLoss::Ended(exit @ Exit::Code(exit_code::INTERNAL)) => {
            (exit_code::INTERNAL, format!("had to give up, {exit}"))
        }
        SupervisorLoss::Ended(exit) => (exit_code::SUPERVISOR_LOST, format!("ended by {exit}")),
        SupervisorLoss::Stuck => (exit_code::SUPERVISOR_LOST, "did not stop in time and was killed".into()),
    };
    let text = format!("the launcher's supervisor process {how}, and the job with it");
    print_error(&text);
    print_unkillable(&swept.stuck);
    // If a process lives on, no round may begin before the lease has lapsed.
    if let Some((rounds, lease)) = rounds.filter(|_| swept.stuck.is_empty() && swept.left.is_empty()) {
        rounds.leave_for_supervisor(lease);
    }
    let names: Vec<String> = swept.killed.iter().map(|process| process.name.clone()).collect();
    if !names.is_empty() {
        print_notice(&failure_report::sweep(names.len(), &[], &names));
    }
    print_left(&swept.left);
    status_pipe.write_error(&text, status);
    let result = serde_json::to_value(result::without_supervisor(launch, host, status, &swept));
    // The supervisor may have hung at the log folder: this process must not hang there as well.
    let folder = launch.log_dir.clone();
    let write = move || journal::write_result(&folder, &result.unwrap_or_default());
    if let Some(Err(error)) = thread::within(Duration::from_secs(1), write) {
        print_notice(&error.to_string());
    }
    let outcome = JobOutcome::SupervisorLost.own_word().to_owned();
    let processes = (std::process::id() as i32, launcher.supervisor_pid());
    history::record(ended_job(launch, processes, (outcome, status)));
    status
}

/// The supervisor process: runs the ranks to their end. Returns the exit status and the content of `result.json`.
fn run_once(
    launch: &Launch<'_>,
    nodes: Option<StaticPeers>,
    inbox: &SignalInbox<'_>,
    frontend: &dyn Frontend,
) -> Result<(i32, Value), CliError> {
    frontend.before_ranks(launch);
    let journal = open_journal(launch, launch.plan.may_have_other_launchers(), frontend)?;
    frontend.before_first_rank(launch);
    let others = nodes.map_or(OtherNodes::None, |nodes| OtherNodes::AtStore(Box::new(nodes)));
    let listener = EngineListener { frontend, launch };
    let mut launched = run::event_loop::run(launch, others, inbox, journal, &listener).map_err(CliError::EventLoop)?;
    // Nodes of a static rendezvous may have learned that the job ended on another node.
    if let JobOutcome::Ended(_) = launched.outcome {
        launched.disown_failure();
    }
    let exit_status = frontend.exit_status(&launched);
    let outcome = Some(&launched.outcome).filter(|outcome| matches!(outcome, JobOutcome::Ended(_)));
    let job_end = outcome.and_then(outcome_text::of_job);
    let recorded = record_end(launch, launched, exit_status, job_end.as_deref(), frontend);
    if let Some(text) = job_end {
        print_error(&text);
    }
    Ok(recorded)
}
