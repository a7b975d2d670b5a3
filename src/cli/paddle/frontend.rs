//! `python -m rlaunch`: the front end that replaces `python -m paddle.distributed.launch`.

use crate::cli::common::command_line::{self, CommandLineError};
use crate::cli::common::error::{CliError, system};
use crate::cli::common::interpreter::Interpreter;
use crate::cli::common::startup::{self, LauncherEnv, print_output, run_launcher};
use crate::cli::common::status_pipe::StatusPipe;
use crate::cli::common::{dry_run, exit_code, message};
use crate::cli::elastic::advertise;
use crate::cli::elastic::fingerprint::FingerprintSource;
use crate::cli::legacy::prepare;
use crate::cli::legacy::rendezvous;
use crate::cli::legacy::rendezvous::{LegacyElasticFrontend, LegacyRendezvous};
use crate::cli::node::build_failure_report::ReportContext;
use crate::cli::node::frontend::{Frontend, NodeEnd};
use crate::cli::node::preload::zygote;
use crate::cli::node::restart_policy::supervision_policy;
use crate::cli::node::run_node;
use crate::cli::node::run_node::NodeWork;
use crate::cli::paddle::final_report::print_final_report;
use crate::cli::paddle::parse;
use crate::cli::paddle::parse::PaddleArgs;
use crate::cli::paddle::peer_command;
use crate::cli::paddle::rendezvous::{PaddleRendezvous, SingleNodePlan};
use crate::cli::paddle::shown_logs::shown;
use crate::cli::paddle::{build_plan::build_plan, built_plan::BuiltPlan};
use crate::model::Role;
use crate::plan::devices::visible_devices::Device;
use crate::plan::{self, LaunchContext, Plan};
use crate::probe::limits::processes::ProcessCounters;
use crate::probe::memory::OomCounters;
use crate::probe::net;
use crate::rendezvous::torch_store::StoreSockets;
use crate::run;
use crate::run::control::live_status::LiveStatus;
use crate::run::gpu_reader::GpuReader;
use crate::run::launch::Launch;
use crate::run::output::{gpu_log, log_files, log_rotation, node_folder, run_folder};
use crate::run::preempt::link::PreemptLink;
use crate::run::prepare::{gloo_tmpdir, preflight};
use crate::run::sampling::queue::SampleQueue;
use crate::run::stacks::collector::StackReader;
use crate::run::sweep::no_sweep::NoSweep;
use crate::spec::SpecError;
use crate::spec::options::DryRun;
use crate::spec::options::{self, EnvVars, OptValues, ValueSource};
use crate::spec::paddle::job;
use crate::spec::paddle::launch;
use crate::spec::paddle::launch::LaunchSpec;
use crate::spec::paddle::nodes::JobNodes;
use crate::spec::paddle::options as paddle_options;
use crate::spec::paddle::ps::PsSpec;
use crate::spec::paddle::tuner;
use crate::spec::rendezvous::check_master_is_known;
use crate::spec::scheduler::detect;
use crate::spec::scheduler::detect::SchedulerNodes;
use crate::supervise::ChildId;
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::random;
use crate::sys::signals::{NOTIFY, Signals};
use std::borrow::Cow;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use tracing::{debug, info, warn};

/// Runs the launcher and returns its exit status. `args`: without the program's name; `python`: the interpreter for the
/// ranks; `status_fd`: the write end of the status pipe, or negative.
pub fn main(args: &[OsString], python: &Interpreter, status_fd: RawFd) -> i32 {
    run_launcher(status_fd, |signals, status_pipe| parse_and_launch(args, python, signals, status_pipe))
}

fn parse_and_launch(
    args: &[OsString],
    python: &Interpreter,
    signals: &mut Signals,
    status_pipe: &mut StatusPipe,
) -> Result<i32, CliError> {
    let (flags, rest, aliases) = match parse::parse(args)? {
        PaddleArgs::Job { flags, rest, aliases } => (flags, rest, aliases),
        PaddleArgs::Print(text) => {
            print_output(&text);
            return Ok(exit_code::OK);
        }
    };
    command_line::check_copied(&flags, &aliases, &rest)?;
    if rest.is_empty() {
        return Err(CommandLineError::NoScript { example: "python -m rlaunch --nproc_per_node 2" }.into());
    }
    let (base, all) = startup::read_environment(paddle_options::OPTIONS)?;
    let LauncherEnv { base, vars, outer } = startup::separate_outer_exports(base, &all);
    let mut values = paddle_options::merge(&flags, &vars);
    values.aliases = aliases;
    let mut spec = launch::check(&values, &vars, &rest).map_err(CliError::Usage)?;
    if outer.is_none()
        && let Some(found) = ask_scheduler(&spec, &values, &vars)?
    {
        values.fill(detect::fills(&found, values.given("nnodes")));
        spec = launch::check(&values, &vars, &rest).map_err(CliError::Usage)?;
        if let (Some(number), true) = (found.rank, found.shares_folders()) {
            // Nodes have the same names of logs.
            spec.log_dir = format!("{}/node-{number}", spec.log_dir.trim_end_matches('/'));
        }
        if let Some(rendezvous) = &mut spec.rendezvous {
            spec.infos.push(format!(
                "{} started this node of {}, by {}",
                found.by,
                rendezvous.nodes.1,
                found.from.join(", ")
            ));
            rendezvous.job_name =
                found.job.filter(|_| values.given("job_id").is_none()).unwrap_or(rendezvous.job_name.clone());
        }
    }
    if let Some(rendezvous) = &spec.rendezvous {
        check_master_is_known(&values, rendezvous).map_err(CliError::Usage)?;
    }
    if let Some(path) = &spec.auto_parallel_config {
        let text = preflight::read("--auto_parallel_config", path).map_err(CliError::Preflight)?;
        spec.tuning = Some(tuner::check(path, &text).map_err(CliError::Usage)?);
    }
    if let Some(outer) = &outer {
        spec.infos.push(outer.to_string());
        let asked = values
            .given("log_dir")
            .map(|path| run_folder::absolute("--log_dir", Path::new(path)))
            .transpose()
            .map_err(CliError::Preflight)?;
        let is_outers = |outer: &str| asked.as_deref().is_none_or(|asked| is_same_place(asked, Path::new(outer)));
        if let Some(folder) = outer.nested_log_dir(is_outers) {
            spec.infos.push(format!("its logs are kept apart from that job's, in {folder}"));
            spec.log_dir = folder;
        }
    }
    if spec.dry_run.is_none() {
        for (attr, var, value) in &values.overridden {
            let line = format!("LAUNCH WARNING args {attr} will be overridden by env: {var} value: {value}\n");
            message::to_stdout(line.as_bytes());
        }
    }
    message::with_paddle_log(&spec.log_level.clone(), || {
        let set_aside = |name: &&&str| !is_legacy(&spec) && vars.contains_key(**name);
        for name in plan::env::base_env::PROXIES.iter().filter(set_aside) {
            warn!(
                "Unset '{name}' to ensure stable NCCL communication in distributed training (backed up as '{name}_original')."
            );
        }
        if let Some(warning) = plan::env::base_env::replaced_openmp_threads(&vars) {
            warn!("{warning}");
        }
        for warning in command_line::doubtful_arguments(&flags, &rest) {
            warn!("{warning}");
        }
        startup::log_ignored_stops(signals);
        for line in spec.infos.drain(..) {
            info!("{line}");
        }
        for warning in spec.warnings.drain(..) {
            warn!("{warning}");
        }
        if let Some(outer) = outer.as_ref().filter(|outer| !outer.dropped.is_empty()) {
            debug!("ignoring variables that the outer launcher exported: {}", outer.dropped.join(", "));
        }
        for (name, value) in values.iter().filter(|(_, v)| v.source != ValueSource::Default) {
            debug!("{name}: {}", options::printable(name, &value.text));
        }
        let status = launch_on_this_node(&spec, &vars, base.clone(), (python, args), signals, status_pipe)?;
        match prepare::second_pass(&spec, status) {
            Some(next) => launch_on_this_node(&next, &vars, base, (python, args), signals, status_pipe),
            None => Ok(status),
        }
    })
}

/// This job's nodes from the scheduler, where no option names them.
fn ask_scheduler(spec: &LaunchSpec, values: &OptValues, vars: &EnvVars) -> Result<Option<SchedulerNodes>, CliError> {
    let is_open = match (&spec.job, &spec.nodes) {
        (job::JobKind::Collective | job::JobKind::Rpc, JobNodes::One { .. }) => true,
        (job::JobKind::Ps(servers), _) => servers.is_by_number(),
        _ => false,
    };
    let several = values.given("nnodes").is_none_or(|text| text.trim() != "1");
    if is_open && several { detect::found(vars, "--nnodes 1").map_err(CliError::Usage) } else { Ok(None) }
}

fn is_legacy(spec: &LaunchSpec) -> bool {
    matches!(spec.job, job::JobKind::Legacy(_))
}

fn launch_on_this_node(
    spec: &LaunchSpec,
    vars: &EnvVars,
    base: Vec<(OsString, OsString)>,
    (interpreter, args): (&Interpreter, &[OsString]),
    signals: &mut Signals,
    status_pipe: &mut StatusPipe,
) -> Result<i32, CliError> {
    let python = interpreter.executable.as_os_str();
    let mut log_dir = run_folder::absolute("--log_dir", Path::new(&spec.log_dir)).map_err(CliError::Preflight)?;
    // A job by --ips that is refused for its ports has no folder yet, so its nodes are only warned, once their ranks start.
    let node_folder = (spec.rendezvous.is_some() && spec.dry_run.is_none())
        .then(|| node_folder::take(&log_dir, &net::host_name()))
        .transpose()
        .map_err(CliError::Preflight)?;
    if let Some(own) = node_folder.as_ref().filter(|own| own.path != log_dir) {
        let why = own.taken_by.as_ref().map_or("as in an earlier job".into(), |host| {
            format!("because another node of this job, on {host}, has {}", log_dir.display())
        });
        info!("the logs of this node are in {}, {why}", own.path.display());
        log_dir.clone_from(&own.path);
    }
    if spec.dry_run.is_none() {
        log_files::remove_result(&log_dir).map_err(CliError::Preflight)?;
    }
    let log_dir_text = log_dir.to_str().ok_or_else(|| {
        let (why, hint) = ("the path is not UTF-8", "choose another folder");
        CliError::Preflight(SpecError::new("--log_dir", log_dir.to_string_lossy(), why, hint))
    })?;
    let key: String = random::alphanumeric(16);
    let has_folder = matches!(spec.job, job::JobKind::Legacy(_) | job::JobKind::Ps(PsSpec::Processes(_)));
    let launch_context = LaunchContext {
        python: python.to_owned(),
        log_dir: log_dir_text.to_owned(),
        pod_name: random::lowercase(6),
        gloo_tmpdir: if has_folder { gloo_tmpdir::path(&key).map_err(CliError::Preflight)? } else { String::new() },
    };
    let advertised = spec.rendezvous.as_ref().map(advertise::advertise).transpose()?;
    let mut spec = Cow::Borrowed(spec);
    if let (Some(advertised), true) = (&advertised, is_legacy(&spec)) {
        spec = Cow::Owned(rendezvous::with_own_address(&spec, &advertised.address));
    } else if let (Some(advertised), JobNodes::One { ports, .. }) = (&advertised, &spec.nodes) {
        let nodes = JobNodes::One { host: advertised.address.clone(), ports: *ports };
        let job = match &spec.job {
            job::JobKind::Ps(servers) => job::JobKind::Ps(servers.clone().at(&advertised.address)),
            job => job.clone(),
        };
        spec = Cow::Owned(LaunchSpec { nodes, job, ..spec.into_owned() });
    }
    let spec = spec.as_ref();
    let BuiltPlan { plan, leases, kind, gpus, nofile, endpoints, part, legacy: legacy_plan } =
        build_plan(spec, vars, &launch_context, args)?;
    let Some(argv) = plan.ranks.first().map(|r| &r.argv) else { return Ok(exit_code::OK) };
    preflight::check_lengths(argv).map_err(CliError::Preflight)?;
    let program = find(spec, argv, &base).map_err(CliError::Preflight)?;
    let zygote = zygote(spec.preload.as_ref(), &plan, python)?;
    match spec.dry_run {
        Some(DryRun::Table) => {
            print_output(&dry_run::table(&plan, spec.rendezvous.as_ref(), zygote.as_deref()));
            return Ok(exit_code::OK);
        }
        Some(DryRun::Json) => {
            print_output(&dry_run::json(&plan, spec.rendezvous.as_ref(), zygote.as_deref()));
            return Ok(exit_code::OK);
        }
        None => {}
    }
    log_files::make_folder(&log_dir).map_err(CliError::Preflight)?;
    log_files::check(&plan, &log_dir).map_err(CliError::Preflight)?;
    if spec.log_rotation.is_some() {
        log_rotation::check(&log_dir).map_err(CliError::Preflight)?;
    }
    match &endpoints {
        None => log_files::write_pod_log(&plan, &log_dir, spec.log_overwrite),
        Some(endpoints) => run::prepare::legacy_files::write_endpoints(&log_dir, endpoints),
    }
    .and_then(|()| log_files::write_env_overflow(&plan))
    .map_err(system(format!("--log_dir {}", log_dir.display())))?;
    log_files::archive_attempts(&log_dir, spec.log_overwrite).map_err(CliError::Preflight)?;
    let host = net::host_name();
    let cgroup = if spec.cgroup { JobCgroup::find(&key) } else { None };
    let cgroup_path = cgroup.as_ref().map_or("none".into(), |cgroup| cgroup.path().display().to_string());
    debug!("cgroup of the ranks, if it can be made: {cgroup_path}");
    let legacy = is_legacy(spec);
    let asked = supervision_policy(spec, vars, random::rng().u64(..));
    let mut policy = asked.clone();
    if spec.rendezvous.is_some() {
        // All nodes together decide whether another round follows.
        policy.restart.max_restart = 0;
    }
    if prepare::is_mapping_pass(&plan) {
        // A mapper succeeds with a status other than 0.
        policy.restart.max_restart = 0;
    }
    let stack_reader = StackReader::new(python.into(), &base);
    let launch = Launch {
        plan: &plan,
        program,
        base,
        log_dir,
        log_overwrite: spec.log_overwrite,
        rotation: spec.log_rotation,
        shown: shown(spec, &plan, &host),
        filters: Vec::new(),
        torch_store: StoreSockets::default().into(),
        colour: vars.get("NO_COLOR").is_none_or(String::is_empty),
        console_drain_timeout: spec.console.drain_timeout,
        hang: spec.hang,
        sampling: spec.sampling.clone(),
        preempt: spec.preempt.clone(),
        preempt_link: PreemptLink::default(),
        status: LiveStatus::default(),
        samples: SampleQueue::default(),
        stack_reader,
        gpu_reader: GpuReader::default(),
        policy,
        forwarded_signals: NOTIFY.into_iter().chain(spec.forward_signals.iter().copied()).collect(),
        nofile,
        job_key: key,
        cgroup,
        no_sweep: NoSweep::new(spec.no_sweep.clone()),
        zygote,
        round: None,
        gloo_tmpdir: has_folder.then(|| PathBuf::from(&launch_context.gloo_tmpdir)),
        removed_on_success: None,
    };
    let github = vars.get("GITHUB_ACTIONS").is_some_and(|v| v == "true");
    let colour = launch.colour && std::io::stderr().is_terminal();
    let quiet = spec.log_level == "CRITICAL";
    let (memory, processes) = (OomCounters::now(Path::new("/")), ProcessCounters::now(Path::new("/")));
    let raised_by_caller = status_pipe.is_read();
    let has_one_exit_status = detect::have_one_exit_status(vars);
    let context =
        ReportContext { host, memory, processes, colour, github, quiet, raised_by_caller, legacy, has_one_exit_status };
    for signal in &spec.forward_signals {
        signals.install_one(*signal);
    }
    let name = context.host.clone();
    let nodes = spec.rendezvous.as_ref().map(|rendezvous| rendezvous.nodes);
    let (frameworks, script) = (&spec.frameworks, spec.script.path());
    let fingerprint = FingerprintSource { launcher: interpreter, python, frameworks, script };
    let frontend = PaddleFrontend { kind, gpus, nodes, context };
    if let (job::JobKind::Legacy(asked), Some(own)) = (&spec.job, &legacy_plan)
        && let (Some(elastic), Some(advertised)) = (&asked.elastic, &advertised)
    {
        let (advertised, launch_context) = (advertised.clone(), &launch_context);
        let rounds = LegacyRendezvous {
            spec,
            legacy: asked,
            elastic,
            vars,
            context: launch_context,
            own,
            advertised,
            host: name,
            fingerprint,
        };
        let legacy_frontend = LegacyElasticFrontend { inner: &frontend, elastic };
        return run_node::run_node(
            &launch,
            &legacy_frontend,
            (leases, NodeWork::Rounds(&rounds)),
            signals,
            status_pipe,
        );
    }
    let (Some(rendezvous), Some(advertised), Some(part)) = (&spec.rendezvous, advertised, &part) else {
        return run_node::run_node(&launch, &frontend, (leases, NodeWork::Once), signals, status_pipe);
    };
    let peer_arguments = peer_command::peer_arguments(args, rendezvous);
    let alone = SingleNodePlan { part, kind, peer_arguments, fingerprint };
    let rounds = PaddleRendezvous::new((spec, rendezvous), vars, &launch_context, &alone, (advertised, &name), &asked);
    run_node::run_node(&launch, &frontend, (leases, NodeWork::Rounds(&rounds)), signals, status_pipe)
}

/// The program behind the ranks' `argv[0]`.
fn find(spec: &LaunchSpec, argv: &[OsString], base: &[(OsString, OsString)]) -> Result<PathBuf, SpecError> {
    if spec.script.runs_in_python() {
        return Ok(PathBuf::from(&argv[0]));
    }
    let path = base.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    preflight::find_program("training_script", &argv[0], path)
}

/// Whether two paths lead to one folder, as far as they are there.
fn is_same_place(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    a == b || real(a).is_some_and(|a| real(b) == Some(a))
}

/// The output and exit statuses of Paddle's launcher.
struct PaddleFrontend<'a> {
    kind: &'a str,
    /// The GPUs whose usage is logged.
    gpus: Vec<Device>,
    /// The minimum and maximum number of nodes, if they rendezvous.
    nodes: Option<(usize, usize)>,
    context: ReportContext,
}

impl Frontend for PaddleFrontend<'_> {
    fn report_context(&self) -> &ReportContext {
        &self.context
    }

    fn before_ranks(&self, launch: &Launch<'_>) {
        let plan = launch.plan;
        let (id, pod, ranks, nodes) = (&plan.job_id, &plan.pod.name, plan.ranks.len(), plan.nnodes);
        let (min, max) = self.nodes.unwrap_or((nodes, nodes));
        let elastic = if min < max { "True" } else { "False" };
        info!("Job: {id}, mode {}, replicas {nodes}[{min}:{max}], elastic {elastic}", plan.mode);
        info!("Run Pod: {pod}, replicas {ranks}, status ready; {}", describe_processes(plan, self.kind));
    }

    fn rank_started(&self, id: ChildId, pid: i32, _launch: &Launch<'_>) {
        if self.context.legacy {
            prepare::print_rank_started(pid, id.local_rank);
        }
    }

    fn before_first_rank(&self, launch: &Launch<'_>) {
        if !self.gpus.is_empty() {
            let path = launch.log_dir.join(format!("{}.gpu.log", log_files::job_name(&launch.plan.job_id)));
            gpu_log::start(&path, &self.gpus, launch.gpu_reader.clone());
        }
    }

    fn is_final(&self, launch: &Launch<'_>, status: i32) -> bool {
        !prepare::has_mapped(launch.plan, status)
    }

    fn report_end(&self, end: &NodeEnd<'_>) {
        let &NodeEnd { launch, launched, status, failure, .. } = end;
        if prepare::has_mapped(launch.plan, status) {
            info!("the rank mapping is there; starting the job with it");
        } else {
            print_final_report(launch, launched, status, &self.context, failure);
        }
    }
}

/// The devices and, if there are other processes than trainers, the number by role.
fn describe_processes(plan: &Plan, kind: &str) -> String {
    let of = |r: &plan::RankPlan| match &r.binding {
        crate::framework::Binding::Cpu => None,
        crate::framework::Binding::Selected { indices, .. } => Some(indices.clone()),
    };
    let list: Vec<String> = plan.ranks.iter().filter_map(of).collect();
    let devices = if list.is_empty() { "cpu".into() } else { format!("{kind} {}", list.join(" ")) };
    if plan.ranks.iter().all(|r| r.role == Role::Trainer) {
        return format!("devices {devices}");
    }
    format!("devices {devices}; {}", dry_run::count_by_role(plan))
}
