//! The request of `python -m rlaunch.run`, checked and typed. Contract: `torchrun` of torch 2.15.

use crate::model::exit::signal_number;
use crate::spec::console;
use crate::spec::error::{SpecError, shown};
use crate::spec::forwarded_signals;
use crate::spec::frameworks;
use crate::spec::frameworks::Framework;
use crate::spec::hang;
use crate::spec::hang::HangSpec;
use crate::spec::no_sweep;
use crate::spec::options::{DryRun, EnvVars, OptValues};
use crate::spec::preload;
use crate::spec::preload::PreloadSpec;
use crate::spec::records::sampling;
use crate::spec::records::sampling::SamplingSpec;
use crate::spec::scheduler::preempt;
use crate::spec::scheduler::preempt::PreemptSpec;
use crate::spec::torchrun::rendezvous;
use crate::spec::torchrun::rendezvous::TorchrunBackend;
use crate::spec::torchrun::streams;
use crate::spec::torchrun::streams::StreamRoutes;
use crate::spec::torchrun::values;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

/// The program of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TorchScript {
    /// A file that Python runs, whatever its name.
    Python(OsString),
    /// A module, run like `python -m`.
    Module(OsString),
    /// A program, searched on PATH.
    Program(OsString),
    /// A file, run with `runpy.run_path`.
    RunPath(OsString),
}

impl TorchScript {
    /// Its path, unless it is a module. A program may be one on PATH.
    pub fn path(&self) -> Option<&Path> {
        match self {
            TorchScript::Python(name) | TorchScript::Program(name) | TorchScript::RunPath(name) => {
                Some(Path::new(name))
            }
            TorchScript::Module(_) => None,
        }
    }

    /// Its name, if it is a module.
    pub fn module(&self) -> Option<&OsStr> {
        match self {
            TorchScript::Module(name) => Some(name),
            _ => None,
        }
    }
}

/// The number of ranks on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nproc {
    /// This number; at least 1.
    Count(usize),
    /// One per CPU that the launcher may run on.
    Cpu,
    /// One per visible GPU.
    Gpu,
    /// One per XPU.
    Xpu,
    /// One per device if there are any, else one per CPU.
    Auto,
}

/// The place of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDir {
    /// A new temporary folder.
    Temporary,
    /// A new folder within this one, as given.
    At(String),
    /// No logs; all streams are the launcher's own.
    Nowhere,
}

/// The addresses from which the ranks' store takes connections in a job of several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreReach {
    /// All addresses of the round's nodes.
    Nodes,
    /// Any address.
    Any,
}

/// The CPUs that a rank is bound to (`--numa-binding`), by the NUMA node of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaBinding {
    /// All CPUs of the node.
    Node,
    /// All CPUs of all nodes in the same socket.
    Socket,
    /// The node's physical cores, divided among its devices.
    Exclusive,
    /// The CPUs that share one last-level cache of the node.
    CoreComplex,
}

impl NumaBinding {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Node, Self::Socket, Self::Exclusive, Self::CoreComplex];

    /// The value of the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Socket => "socket",
            Self::Exclusive => "exclusive",
            Self::CoreComplex => "core-complex",
        }
    }

    /// The kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The handler of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLog {
    /// Events are discarded.
    Null,
    /// Events are written to stderr as lines of JSON.
    Console,
}

/// The output of ranks that the launcher reads in addition to logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputCapture {
    /// No output.
    None,
    /// stderr, which the launcher forwards at once.
    Stderr,
    /// stdout too, because its reader may go, or its terminal may be closed. `joined`: both go to the same place.
    Both {
        /// Whether they are one stream.
        joined: bool,
    },
}

/// A checked request for this node's part of a job.
#[derive(Clone, Debug)]
pub struct TorchSpec {
    /// The program of the ranks.
    pub script: TorchScript,
    /// Its arguments, unchanged.
    pub args: Vec<OsString>,
    /// Whether `--local-rank=N` precedes them.
    pub pass_local_rank: bool,
    /// Minimum and maximum number of nodes.
    pub nodes: (usize, usize),
    /// The number of ranks on this node.
    pub nproc: Nproc,
    /// The rendezvous.
    pub rendezvous: TorchrunBackend,
    /// The job's name; `None`: a UUID for each run.
    pub run_id: Option<String>,
    /// The name that commands know the job by; `None`: the run id.
    pub name: Option<String>,
    /// The name of the rendezvous backend in events; `c10d` by default.
    pub backend: String,
    /// The name of the ranks' role.
    pub role: String,
    /// Maximum number of restarts.
    pub max_restarts: u32,
    /// torchrun's time between checks; more than 0.
    pub monitor_interval: Duration,
    /// The time between the stop signal and SIGKILL.
    pub shutdown_timeout: Duration,
    /// The place of the logs.
    pub log_dir: LogDir,
    /// The streams that are written to logs or shown.
    pub streams: StreamRoutes,
    /// The prefix of lines of `--tee`, if the user gives it.
    pub prefix_template: Option<String>,
    /// The local ranks that the console shows; `None`: all.
    pub local_ranks_filter: Option<BTreeSet<usize>>,
    /// Lines of stdout that contain one of these texts are copied to a file.
    pub duplicate_stdout_filters: Vec<String>,
    /// The same of stderr.
    pub duplicate_stderr_filters: Vec<String>,
    /// Whether LOCAL_RANK is 0 in all ranks, and each sees only its own device.
    pub virtual_local_rank: bool,
    /// The addresses from which the ranks' store takes connections in a job of several nodes.
    pub store_reach: StoreReach,
    /// The CPUs that ranks are bound to.
    pub numa: Option<NumaBinding>,
    /// Whether to print the CPUs of each rank.
    pub bind_report: bool,
    /// Signals that stop the job and are forwarded.
    pub signals: Vec<i32>,
    /// The same as given, for TORCHELASTIC_SIGNALS_TO_HANDLE.
    pub signals_text: String,
    /// This node's address, if the user gives it.
    pub local_addr: Option<String>,
    /// The handler of events.
    pub event_log: EventLog,
    /// The output of ranks that the launcher reads.
    pub capture: OutputCapture,
    /// Whether captured output is written to a terminal, if the launcher's is one.
    pub pty: bool,
    /// How long the console may take to show the rest once all workers have ended.
    pub console_drain_timeout: Duration,
    /// When a silent job is looked at.
    pub hang: HangSpec,
    /// What is recorded of the ranks while they run.
    pub sampling: SamplingSpec,
    /// Notices of preemption, and what follows.
    pub preempt: PreemptSpec,
    /// Whether no message says that OMP_NUM_THREADS is 1.
    pub omp_compat: bool,
    /// Whether OMP_NUM_THREADS is the rank's share of the CPUs instead of 1.
    pub share_cpus: bool,
    /// Whether the exit status of a failed or stopped job is always 1.
    pub exit_code_compat: bool,
    /// The frameworks whose variables the ranks receive.
    pub frameworks: BTreeSet<Framework>,
    /// Names of processes that no sweep ends.
    pub no_sweep: BTreeSet<String>,
    /// The modules to preload, if ranks are forked.
    pub preload: Option<PreloadSpec>,
    /// Only print the plan.
    pub dry_run: Option<DryRun>,
    /// The lowest level of messages: `DEBUG` to `CRITICAL`.
    pub log_level: String,
    /// Messages at level WARNING, in order.
    pub warnings: Vec<String>,
}

/// Checks the merged options. `rest`: the script and its arguments.
pub fn check(values: &OptValues, vars: &EnvVars, rest: &[OsString]) -> Result<TorchSpec, SpecError> {
    for (name, value) in values.iter() {
        if value.text.contains('\0') {
            return Err(values.error(name, "contains a NUL byte", "leave it out"));
        }
    }
    let mut warnings = Vec::new();
    let rdzv = rendezvous::check(values, &mut warnings)?;
    let (script, args) = script(values, rest)?;
    if let Some(name) = values.text("logs-specs") {
        let why = format!("Could not find entrypoint under 'torchrun.logs_specs[{}]' key", shown(name));
        let hint = "rlaunch does not run plug-ins of torch; use --redirects, --tee and --log-dir";
        return Err(values.error("logs-specs", &why, hint));
    }
    // The variable is checked only if it has an effect, as in torchrun.
    if values.on_command_line("start-method").is_some() || matches!(script, TorchScript::RunPath(_)) {
        values::choice(values, "start-method")?;
    }
    let max_restarts = values::whole(values, "max-restarts")?.unwrap_or(0);
    if max_restarts < 0 {
        return Err(values.error("max-restarts", "max_restarts must be >= 0", "give 0 or more"));
    }
    let filters = |name| values.text(name).map_or_else(Vec::new, values::list);
    let text = |name| values.text(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let template = || vars.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").filter(|text| !text.is_empty()).cloned();
    Ok(TorchSpec {
        pass_local_rank: pass_local_rank(values, &script)?,
        script,
        args,
        nodes: rdzv.nodes,
        nproc: nproc(values)?,
        rendezvous: rdzv.rendezvous,
        run_id: rdzv.run_id,
        name: rdzv.name,
        backend: rdzv.backend,
        role: values.text("role").unwrap_or("default").to_owned(),
        max_restarts: max_restarts.try_into().unwrap_or(u32::MAX),
        monitor_interval: Duration::from_secs_f64(values::seconds(values, "monitor-interval")?),
        shutdown_timeout: shutdown_timeout(values, vars)?,
        log_dir: match values.text("log-dir") {
            None | Some("") => LogDir::Temporary,
            Some("/dev/null") => LogDir::Nowhere,
            Some(folder) => LogDir::At(folder.to_owned()),
        },
        streams: streams::check(values)?,
        prefix_template: text("log-line-prefix-template").or_else(template),
        local_ranks_filter: streams::local_ranks(values)?,
        duplicate_stdout_filters: filters("duplicate-stdout-filters"),
        duplicate_stderr_filters: filters("duplicate-stderr-filters"),
        virtual_local_rank: values::flag(values, "virtual-local-rank")?,
        store_reach: match values::choice(values, "store-peers")? {
            Some("any") => StoreReach::Any,
            _ => StoreReach::Nodes,
        },
        numa: values::choice(values, "numa-binding")?.and_then(NumaBinding::parse),
        bind_report: values::flag(values, "bind-report")?,
        signals: signals(values, &mut warnings),
        signals_text: values.text("signals-to-handle").unwrap_or("").to_owned(),
        local_addr: text("local-addr"),
        event_log: match values.text("event-log-handler") {
            Some("console") => EventLog::Console,
            None | Some("null" | "dynamic_rendezvous") => EventLog::Null,
            Some(_) => {
                let why = "is not an event log handler of rlaunch";
                return Err(values.error("event-log-handler", why, "give null or console"));
            }
        },
        capture: match values::choice(values, "capture")? {
            Some("none") => OutputCapture::None,
            _ => OutputCapture::Stderr,
        },
        pty: values::choice(values, "pty")? != Some("never"),
        console_drain_timeout: console::drain_timeout(values, "console-drain-timeout")?,
        hang: hang::check(values, ["hang-timeout", "on-hang", "exit-timeout", "straggler-timeout"])?,
        sampling: sampling::check(values, ["sample", "metrics-file"])?,
        preempt: preempt::check(values, ["preempt-file", "preempt-time", "requeue"])?,
        omp_compat: values::flag(values, "omp-compat")?,
        share_cpus: values::flag(values, "share-cpus")?,
        exit_code_compat: values::flag(values, "exit-code-compat")?,
        frameworks: frameworks::check(values)?,
        no_sweep: no_sweep::check(values, "no-sweep")?,
        preload: preload::check(values, "torch")?,
        dry_run: match values.text("dry-run") {
            None => None,
            Some("" | "table") => Some(DryRun::Table),
            Some("json") => Some(DryRun::Json),
            Some(_) => return Err(values.error("dry-run", "is not a form of the plan", "give table or json")),
        },
        log_level: log_level(vars)?,
        warnings,
    })
}

fn script(values: &OptValues, rest: &[OsString]) -> Result<(TorchScript, Vec<OsString>), SpecError> {
    let (name, args) = rest.split_first().ok_or_else(|| {
        SpecError::new("training_script", "", "is missing", "give the script to run after the options")
    })?;
    for (index, arg) in rest.iter().enumerate() {
        if arg.as_encoded_bytes().contains(&0) {
            let field = if index == 0 { "training_script".into() } else { format!("script argument {index}") };
            let hint = "remove it: arguments of programs cannot contain one";
            return Err(SpecError::new(field, arg.to_string_lossy(), "contains a NUL byte", hint));
        }
    }
    let [module, no_python, run_path] = ["module", "no-python", "run-path"].map(|name| values::flag(values, name));
    let script = match (run_path?, no_python?, module?) {
        (true, _, _) => TorchScript::RunPath(name.clone()),
        (false, true, true) => {
            let why = "Don't use both the '--no-python' flag and the '--module' flag at the same time";
            return Err(SpecError::new(values.field("no-python"), "", why, "leave out one of them"));
        }
        (false, true, false) => TorchScript::Program(name.clone()),
        (false, false, true) => TorchScript::Module(name.clone()),
        (false, false, false) => TorchScript::Python(name.clone()),
    };
    Ok((script, args.to_vec()))
}

fn pass_local_rank(values: &OptValues, script: &TorchScript) -> Result<bool, SpecError> {
    let pass = values::flag(values, "pass-local-rank")?;
    if pass && matches!(script, TorchScript::Program(_)) {
        let why = "is only for Python scripts, and --no-python is given";
        return Err(SpecError::new("--pass-local-rank", "", why, "add ${local_rank} to the script's arguments"));
    }
    Ok(pass)
}

fn nproc(values: &OptValues) -> Result<Nproc, SpecError> {
    let text = values.text("nproc-per-node").unwrap_or("1");
    let hint = "give a number, 1 or more, or gpu, xpu, cpu or auto";
    match (text, values::int(text)) {
        (_, Some(n)) => match usize::try_from(n).ok().filter(|n| *n > 0) {
            Some(n) => Ok(Nproc::Count(n)),
            None => Err(values.error("nproc-per-node", "is not a number of ranks", hint)),
        },
        ("cpu", _) => Ok(Nproc::Cpu),
        ("gpu", _) => Ok(Nproc::Gpu),
        ("xpu", _) => Ok(Nproc::Xpu),
        ("auto", _) => Ok(Nproc::Auto),
        _ => {
            let why = format!("Unsupported nproc_per_node value: {}", shown(text));
            Err(values.error("nproc-per-node", &why, hint))
        }
    }
}

/// Reads the option, else its variable, else torch's other variable, else 30 s.
fn shutdown_timeout(values: &OptValues, vars: &EnvVars) -> Result<Duration, SpecError> {
    const OTHER: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    let far = |seconds: i64| Duration::from_secs(seconds.unsigned_abs().min(1_000_000_000));
    if let Some(seconds) = values::whole(values, "shutdown-timeout")? {
        if seconds < 0 {
            let why = format!("shutdown_timeout must be non-negative, got {seconds}");
            return Err(values.error("shutdown-timeout", &why, "give seconds, 0 or more"));
        }
        return Ok(far(seconds));
    }
    let Some(text) = vars.get(OTHER) else { return Ok(Duration::from_secs(30)) };
    match values::int(text) {
        Some(seconds) if seconds >= 0 => Ok(far(seconds)),
        _ => Err(SpecError::new(OTHER, text, "is not a number of seconds", "give 0 or more, or unset it")),
    }
}

/// The signals that can be handled. As in torchrun, others only cause a warning.
fn signals(values: &OptValues, warnings: &mut Vec<String>) -> Vec<i32> {
    let mut signals = Vec::new();
    for item in values.text("signals-to-handle").unwrap_or("").split(',') {
        let name = item.trim();
        let number = signal_number(name).filter(|_| name.starts_with("SIG"));
        match number.ok_or("is not a signal").and_then(|n| forwarded_signals::why_not_forwardable(n).map_or(Ok(n), Err))
        {
            Ok(number) if signals.contains(&number) => {}
            Ok(number) => signals.push(number),
            Err(why) => warnings.push(format!("Failed to register signal handler for {}: it {why}", shown(name))),
        }
    }
    signals
}

fn log_level(vars: &EnvVars) -> Result<String, SpecError> {
    let text = vars.get("LOGLEVEL").map_or("WARNING", String::as_str);
    match text.to_ascii_uppercase().as_str() {
        level @ ("DEBUG" | "INFO" | "WARNING" | "ERROR" | "CRITICAL") => Ok(level.to_owned()),
        "WARN" => Ok("WARNING".into()),
        "FATAL" => Ok("CRITICAL".into()),
        "NOTSET" => Ok("DEBUG".into()),
        _ => {
            let why = format!("Unknown level: '{}'", shown(text));
            Err(SpecError::new("LOGLEVEL", text, why, "give DEBUG, INFO, WARNING, ERROR or CRITICAL, or unset it"))
        }
    }
}
