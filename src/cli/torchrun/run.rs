//! Runs this node's part of a torchrun job: from checked options to the exit status.

use crate::cli::common::error::{CliError, system};
use crate::cli::common::interpreter::Interpreter;
use crate::cli::common::message::{self, print_error, print_notice};
use crate::cli::common::status_pipe::StatusPipe;
use crate::cli::common::{dry_run, exit_code};
use crate::cli::elastic::fingerprint::FingerprintSource;
use crate::cli::node::build_failure_report::{ReportContext, print_swept, warn_of_losses};
use crate::cli::node::frontend::{Frontend, NodeEnd, OwnText};
use crate::cli::node::preload::zygote;
use crate::cli::node::progress_messages;
use crate::cli::node::run_node;
use crate::cli::node::run_node::NodeWork;
use crate::cli::node::slurm;
use crate::cli::torchrun::events::EventLogger;
use crate::cli::torchrun::extra_frameworks;
use crate::cli::torchrun::rendezvous::TorchrunRendezvous;
use crate::cli::torchrun::report;
use crate::cli::torchrun::said_today;
use crate::cli::torchrun::static_rendezvous;
use crate::cli::torchrun::static_rendezvous::{StaticRendezvous, StaticRendezvousError};
use crate::model::CpuSet;
use crate::plan::devices::affinity;
use crate::plan::torchrun as plan;
use crate::plan::{LaunchContext, Plan};
use crate::probe::limits::processes::ProcessCounters;
use crate::probe::memory::OomCounters;
use crate::probe::{cpus, net, numa, torch};
use crate::rendezvous::torch_store::StoreSockets;
use crate::report::cause::verdict::Verdict;
use crate::report::failure_report::{FailureReport, ReportStyle, render};
use crate::report::github_annotation;
use crate::run::control::live_status::LiveStatus;
use crate::run::gpu_reader::GpuReader;
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::output::{log_files, log_rotation, run_folder};
use crate::run::preempt::link::PreemptLink;
use crate::run::prepare::preflight;
use crate::run::sampling::queue::SampleQueue;
use crate::run::stacks::collector::StackReader;
use crate::run::sweep::no_sweep::NoSweep;
use crate::spec::frameworks::Framework;
use crate::spec::options::DryRun;
use crate::spec::options::{EnvVars, parse_bool};
use crate::spec::records::log_rotation::LogRotationSpec;
use crate::spec::scheduler::detect;
use crate::spec::torchrun::{EventLog, LogDir, Nproc, OutputCapture, TorchScript, TorchSpec, TorchrunBackend};
use crate::spec::{SpecError, shown};
use crate::supervise::{ChildId, NodeOutcome, ProgressNote, RestartPolicy, SupervisionPolicy};
use crate::sys::clock;
use crate::sys::io::console::{OutputKind, is_same};
use crate::sys::process::affinity as sys_affinity;
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::random;
use crate::sys::signals::{NOTIFY, Signals};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::time::Duration;
use tracing::{info, warn};

/// The maximum size of captured streams: their end is enough to explain a failure.
const CAPTURE_SIZE: u64 = 64 << 20;

/// Runs this node's part. `base`: this process's environment; `vars`: its text, without an outer launcher's exports;
/// `error_file`: where this launcher writes its own failure, if anywhere.
pub fn launch(
    spec: &TorchSpec,
    vars: &EnvVars,
    base: Vec<(OsString, OsString)>,
    interpreter: &Interpreter,
    error_file: Option<&Path>,
    signals: &mut Signals,
    status_pipe: &mut StatusPipe,
) -> Result<i32, CliError> {
    let spec = &TorchSpec { capture: captured(spec), ..spec.clone() };
    let (began, python) = (clock::now(), interpreter.executable.as_os_str());
    let allowed = sys_affinity::own().map_err(system("the CPUs of this process"))?;
    let workers = count_workers(spec, vars, &allowed)?;
    if let Some(warning) = shared_gpus(spec, vars, workers) {
        warn!("{warning}");
    }
    let nofile = preflight::raise_file_limit_for_store("--nproc-per-node", workers).map_err(CliError::Preflight)?;
    check_script(&spec.script, workers).map_err(CliError::Preflight)?;
    extra_frameworks::check(spec)?;
    let StaticRendezvous { mut place, mut leases, store, nodes, advertised } =
        match static_rendezvous::find_place(spec, workers, signals) {
            Ok(met) => met,
            Err(StaticRendezvousError::Failed(error)) => return Err(error),
            Err(StaticRendezvousError::Stopped(signal)) => return Ok(128 + signal),
        };
    let (extra_frameworks, more) = extra_frameworks::offer(spec, vars, &place)?;
    place.extra_frameworks = extra_frameworks;
    leases.extend(more);
    let run_id = spec.run_id.clone().unwrap_or_else(uuid);
    let folder = run_folder::choose(&spec.log_dir, &run_id).map_err(CliError::Preflight)?;
    let launch_context = LaunchContext {
        python: vars.get("PYTHON_EXEC").filter(|exec| !exec.is_empty()).map_or(python.to_owned(), OsString::from),
        log_dir: folder.text().map_err(CliError::Preflight)?,
        pod_name: String::new(),
        gloo_tmpdir: String::new(),
    };
    let host = net::host_name();
    let threads = omp_threads(spec, vars, workers, &allowed);
    let cpus = bind_cpus(spec, vars, workers, &allowed)?;
    let laid_out = plan::plan(spec, vars, &launch_context, (&run_id, &host), (workers, threads, &cpus), &place);
    let (mut plan, shown) = laid_out.map_err(CliError::Usage)?;
    let Some(argv) = plan.ranks.first().map(|rank| &rank.argv) else { return Ok(exit_code::OK) };
    preflight::check_lengths(argv).map_err(CliError::Preflight)?;
    let path = base.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let is_of_variable = vars.get("PYTHON_EXEC").is_some_and(|exec| argv[0] == OsStr::new(exec));
    let field = if is_of_variable { "PYTHON_EXEC" } else { "training_script" };
    let program = preflight::find_program(field, &argv[0], path).map_err(CliError::Preflight)?;
    let zygote = zygote(spec.preload.as_ref(), &plan, python)?;
    match spec.dry_run {
        Some(form) => {
            plan.ranks.iter_mut().for_each(|rank| rank.env = rank.env_of(0));
            let rendezvous = match &spec.rendezvous {
                TorchrunBackend::Dynamic(rendezvous) => Some(&**rendezvous),
                TorchrunBackend::Alone | TorchrunBackend::Static { .. } => None,
            };
            let form = if form == DryRun::Json { dry_run::json } else { dry_run::table };
            let text = form(&plan, rendezvous, zygote.as_deref());
            message::to_stdout(text.as_bytes());
            return Ok(exit_code::OK);
        }
        None => folder.create().map_err(CliError::Preflight)?,
    }
    // A user who asks for logs wants to read them, wherever they are. The output of a rank that the console leaves out is in its log alone.
    let is_hidden = |local: &usize| spec.local_ranks_filter.as_ref().is_some_and(|shown| !shown.contains(local));
    let has_log = |local: usize| spec.streams.of(local).has_log();
    let keeps_logs = spec.log_dir != LogDir::Nowhere
        && (spec.streams.has_redirects() || (0..workers).filter(is_hidden).any(has_log));
    if keeps_logs && spec.log_dir == LogDir::Temporary {
        print_notice(&format!("the logs are in {}; choose another folder with --log-dir", folder.run.display()));
    }
    log_files::write_env_overflow(&plan).map_err(system(launch_context.log_dir.clone()))?;
    let key: String = random::alphanumeric(16);
    // The variable of --cgroup in Paddle's front end.
    let without_cgroup = vars.get("RLAUNCH_CGROUP").and_then(|text| parse_bool(text)) == Some(false);
    let handled: BTreeSet<i32> = spec.signals.iter().copied().collect();
    for signal in &handled {
        signals.install_one(*signal);
    }
    let stack_reader = StackReader::new(python.into(), &base);
    let launch = Launch {
        plan: &plan,
        program,
        base,
        log_dir: folder.run.clone(),
        // Only PyTorch's ranks receive its address.
        torch_store: StoreSockets::from(if spec.frameworks.contains(&Framework::Torch) { store } else { Vec::new() })
            .into(),
        log_overwrite: false,
        rotation: log_rotation::check(&folder.run).is_ok().then_some(LogRotationSpec {
            max_size: CAPTURE_SIZE,
            backups: 0,
            until_shown: Some(spec.console_drain_timeout),
        }),
        shown,
        filters: plan::filters(spec),
        colour: vars.get("NO_COLOR").is_none_or(String::is_empty),
        console_drain_timeout: spec.console_drain_timeout,
        hang: spec.hang,
        sampling: spec.sampling.clone(),
        preempt: spec.preempt.clone(),
        preempt_link: PreemptLink::default(),
        status: LiveStatus::default(),
        samples: SampleQueue::default(),
        stack_reader,
        gpu_reader: GpuReader::default(),
        policy: policy(spec, vars),
        forwarded_signals: NOTIFY.into_iter().filter(|signal| !handled.contains(signal)).collect(),
        nofile,
        cgroup: if without_cgroup { None } else { JobCgroup::find(&key) },
        job_key: key,
        no_sweep: NoSweep::new(spec.no_sweep.clone()),
        zygote,
        round: None,
        gloo_tmpdir: None,
        removed_on_success: folder.removed_on_success.clone().filter(|_| !keeps_logs),
    };
    let context = ReportContext {
        host: host.clone(),
        memory: OomCounters::now(Path::new("/")),
        processes: ProcessCounters::now(Path::new("/")),
        colour: launch.colour && std::io::stderr().is_terminal(),
        github: vars.get("GITHUB_ACTIONS").is_some_and(|v| v == "true"),
        quiet: false,
        raised_by_caller: status_pipe.is_read(),
        legacy: false,
        has_one_exit_status: detect::have_one_exit_status(vars),
    };
    let events = (spec.event_log == EventLog::Console)
        .then(|| EventLogger::new(spec, &run_id, &host, (place.node, place.nnodes), &launch.program));
    // `rlaunch.torch.elastic_launch` runs a function, whose name is a better title than the script's.
    let title = vars.get("RLAUNCH_TITLE").cloned().unwrap_or_else(|| plan::title(spec));
    let rendezvous_took = clock::now() - began;
    let frontend = TorchrunFrontend { spec, title, error_file, context, events, rendezvous_took };
    let (TorchrunBackend::Dynamic(rendezvous), Some(advertised)) = (&spec.rendezvous, advertised) else {
        return run_node::run_node(
            &launch,
            &frontend,
            (leases, nodes.map_or(NodeWork::Once, NodeWork::AtStore)),
            signals,
            status_pipe,
        );
    };
    let rounds = TorchrunRendezvous {
        spec,
        rendezvous,
        vars,
        context: &launch_context,
        names: (&run_id, &host),
        workers: (workers, threads, &cpus),
        store: place.master,
        extra_frameworks: place.extra_frameworks,
        advertised,
        fingerprint: FingerprintSource {
            launcher: interpreter,
            python: &launch_context.python,
            frameworks: &spec.frameworks,
            script: spec.script.path(),
        },
    };
    run_node::run_node(&launch, &frontend, (leases, NodeWork::Rounds(&rounds)), signals, status_pipe)
}

/// The number of workers of this node. `allowed`: the CPUs that it may use.
fn count_workers(spec: &TorchSpec, vars: &EnvVars, allowed: &CpuSet) -> Result<usize, CliError> {
    let root = Path::new("/");
    let count = |cpus| torch::count(spec.nproc, "--nproc-per-node", root, vars, cpus).map_err(CliError::Preflight);
    if !matches!(spec.nproc, Nproc::Auto | Nproc::Cpu) {
        return count(allowed.len());
    }
    let limits = cpus::cpus(root, allowed);
    let (workers, of_mask) = (count(limits.threads(1))?, count(allowed.len())?);
    if let (Some(quota), true) = (limits.quota, workers < of_mask) {
        warn!(
            "--nproc-per-node: {workers} ranks, because the cgroup has a CPU quota of {quota}; {of_mask} CPUs are in the \
             affinity mask. Give a number for more ranks"
        );
    }
    Ok(workers)
}

/// The warning about a CUDA_VISIBLE_DEVICES with fewer GPUs of this machine than workers. The driver is asked only if the list
/// is that short.
fn shared_gpus(spec: &TorchSpec, vars: &EnvVars, workers: usize) -> Option<String> {
    let list = vars.get("CUDA_VISIBLE_DEVICES").filter(|list| list.split(',').count() < workers)?;
    let gpus = if spec.frameworks.contains(&Framework::Torch) { torch::gpus(vars).ok()?.len() } else { 0 };
    (gpus > 0).then(|| {
        format!(
            "CUDA_VISIBLE_DEVICES {}: shows {gpus} GPU(s) to {workers} local ranks, so ranks share a GPU or lack theirs; \
             request fewer ranks or show more GPUs",
            shown(list)
        )
    })
}

/// OMP_NUM_THREADS for each worker; `None` where the user has set it, or there is only one worker.
fn omp_threads(spec: &TorchSpec, vars: &EnvVars, workers: usize, allowed: &CpuSet) -> Option<usize> {
    if vars.contains_key("OMP_NUM_THREADS") || workers < 2 {
        return None;
    }
    if spec.share_cpus {
        let cpus = cpus::cpus(Path::new("/"), allowed);
        warn!("{}", cpus.note(workers));
        return Some(cpus.threads(workers));
    }
    // A person at a terminal has read it; a log is read alone.
    let is_known = || std::io::stderr().is_terminal() && said_today::omp(vars);
    if !spec.omp_compat && !is_known() {
        // Scripts match the beginning, which is torchrun's.
        warn!(
            "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being \
             overloaded; set OMP_NUM_THREADS, or give --share-cpus to divide the CPUs among the ranks"
        );
    }
    Some(1)
}

/// The CPUs that each worker is bound to; empty without `--numa-binding`.
fn bind_cpus(spec: &TorchSpec, vars: &EnvVars, workers: usize, allowed: &CpuSet) -> Result<Vec<CpuSet>, CliError> {
    let Some(kind) = spec.numa else { return Ok(Vec::new()) };
    let root = Path::new("/");
    let devices = torch::accelerators(root, vars).map_err(CliError::Usage)?;
    let facts = numa::facts(root, allowed.clone(), &devices);
    let bound = affinity::bind(kind, &facts, workers).map_err(CliError::Preflight)?;
    if spec.bind_report {
        for (local_rank, bound) in bound.iter().enumerate() {
            print_notice(&format!("local rank {local_rank} is bound to {bound}"));
        }
    }
    Ok(bound.into_iter().map(|bound| bound.cpus).collect())
}

/// The output that passes through the launcher. Ranks write to their stdout themselves where no reader of it can go. A process that
/// outlives the launcher (`--no-sweep`) could not write to a pipe any more.
fn captured(spec: &TorchSpec) -> OutputCapture {
    let may_go = match OutputKind::of(std::io::stdout()) {
        OutputKind::Terminal => spec.pty,
        OutputKind::Pipe => true,
        OutputKind::Other => false,
    };
    match spec.capture {
        OutputCapture::Stderr if may_go && spec.no_sweep.is_empty() => {
            OutputCapture::Both { joined: is_same(std::io::stdout(), std::io::stderr()) }
        }
        capture => capture,
    }
}

fn check_script(script: &TorchScript, workers: usize) -> Result<(), SpecError> {
    let (TorchScript::Python(name) | TorchScript::RunPath(name)) = script else { return Ok(()) };
    if name == "-" && workers > 1 {
        let why = format!("is the program on stdin: one of the {workers} ranks would read it, and the others nothing");
        return Err(SpecError::new("training_script", "-", why, "write it to a file and give its path"));
    }
    // Python reads `-` from stdin, and torchrun expands a `$` macro per worker.
    if name == "-" || Path::new(name).exists() || name.as_encoded_bytes().contains(&b'$') {
        return Ok(());
    }
    let hint = "check the path; options of the launcher go before the script";
    Err(SpecError::new("training_script", name.to_string_lossy(), "does not exist", hint))
}

fn policy(spec: &TorchSpec, vars: &EnvVars) -> SupervisionPolicy {
    // All nodes together decide whether another round follows.
    let max_restart = if matches!(spec.rendezvous, TorchrunBackend::Dynamic(_)) { 0 } else { spec.max_restarts };
    let restart = RestartPolicy { max_restart, ..RestartPolicy::default() };
    SupervisionPolicy {
        grace: slurm::grace_period(spec.shutdown_timeout, vars),
        stop_by: slurm::stop_by(vars),
        same_sigterm: slurm::same_sigterm(vars),
        restart,
        repeats_signal: true,
        straggler_timeout: spec.hang.straggler_timeout,
        ..SupervisionPolicy::default()
    }
}

/// A random UUID (version 4), as torchrun names a job that has no name.
fn uuid() -> String {
    let bits = random::rng().u128(..) & !(0xf000 << 64 | 0xc000 << 48) | 0x4000 << 64 | 0x8000 << 48;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// The output and exit statuses of torchrun.
struct TorchrunFrontend<'a> {
    spec: &'a TorchSpec,
    title: String,
    error_file: Option<&'a Path>,
    context: ReportContext,
    events: Option<EventLogger<'a>>,
    /// The time that the rendezvous took.
    rendezvous_took: Duration,
}

impl Frontend for TorchrunFrontend<'_> {
    fn report_context(&self) -> &ReportContext {
        &self.context
    }

    fn before_ranks(&self, launch: &Launch<'_>) {
        let Plan { ranks, nnodes, world_size, job_id, .. } = launch.plan;
        let logs = launch.log_dir.display();
        let own = ranks.first().and_then(|rank| rank.env.get("GROUP_RANK")?.parse().ok());
        if let (Some(events), Some(own)) = (&self.events, own) {
            events.set_node(own, *nnodes);
            if launch.policy.first_attempt > 0 {
                events.rendezvous_done(launch.policy.first_attempt, Duration::ZERO);
            }
        }
        info!("{job_id}: {} worker(s) here, {world_size} on {nnodes} node(s), logs in {logs}", ranks.len());
    }

    fn before_first_rank(&self, _launch: &Launch<'_>) {
        if let Some(events) = &self.events {
            events.rendezvous_done(0, self.rendezvous_took);
        }
    }

    fn rank_started(&self, id: ChildId, pid: i32, launch: &Launch<'_>) {
        if let Some(events) = &self.events {
            events.started(pid, id, launch);
        }
    }

    fn report_progress(&self, note: &ProgressNote, failure: Option<&Verdict>, launch: &Launch<'_>) {
        if let ProgressNote::Restarting { attempt, restart, of, .. } = note {
            // torchrun logs the number before it counts this restart.
            let left = of.saturating_sub(*restart) + 1;
            if let Some(events) = &self.events {
                events.rendezvous_done(*attempt, Duration::ZERO);
            }
            info!("[{}] Worker group FAILED. {left}/{of} attempts left; will restart worker group", self.spec.role);
        }
        progress_messages::print_progress(note, failure, &launch.policy_of_stop(), &|local| {
            launch.plan.ranks[local].label()
        });
    }

    fn map_exit_status(&self, status: i32) -> i32 {
        if self.spec.exit_code_compat { exit_code::as_torchrun(status) } else { status }
    }

    fn render_failure(&self, launch: &Launch<'_>, launched: &LaunchResult, failure: &FailureReport) -> Option<OwnText> {
        let terminal = std::io::stderr().is_terminal().then_some(ReportStyle { color: self.context.colour });
        report::render_report(launch, launched, failure, (&self.title, self.error_file), terminal)
    }

    fn report_end(&self, end: &NodeEnd<'_>) {
        let &NodeEnd { launch, launched, status, failure, own_text } = end;
        let own = self.error_file;
        warn_of_losses(launch, launched);
        match &launched.report.outcome {
            NodeOutcome::Completed => {
                print_swept(launch, launched);
                info!("[{}] worker group successfully finished", self.spec.role);
            }
            NodeOutcome::LauncherKilled => print_error("the launcher process was killed, and all ranks with it"),
            NodeOutcome::NotStarted { local_rank } => {
                let why = launched.report.ranks[*local_rank].start_error.as_deref();
                let why = format!("cannot start {}", why.unwrap_or_default());
                if !self.context.raised_by_caller {
                    print_error(&why);
                }
                report::write_launcher_error(own, &format!("RuntimeError: {why}"));
            }
            NodeOutcome::Stopped { .. } if launched.outcome == JobOutcome::StoreLost => {
                let why = "node 0's store has gone, so the workers of this node were stopped";
                print_error(why);
                report::write_launcher_error(own, &format!("RuntimeError: {why}"));
            }
            NodeOutcome::Stopped { signal } => {
                // torchrun names the process that received the signal; here that is the launcher process.
                let text = format!("SignalException: Process {} got signal: {signal}", parent_id());
                report::write_launcher_error(own, &text);
            }
            NodeOutcome::Failed { .. } | NodeOutcome::Regrouped => {}
        }
        info!("Exit code {status}");
        if let Some(events) = &self.events {
            events.ended(launch, launched, &|local| report::error_data(launch, launched, local));
        }
        let Some(failure) = failure else { return };
        if self.context.github {
            message::to_stdout(format!("{}\n", github_annotation(failure)).as_bytes());
        }
        let style = ReportStyle { color: self.context.colour };
        match own_text {
            Some(_) if self.context.raised_by_caller => {}
            Some(text) => message::to_stderr(text.as_bytes()),
            None => message::to_stderr(render(failure, style).as_bytes()),
        }
    }
}
