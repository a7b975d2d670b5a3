//! What `python -m rlaunch.run` was asked to do, checked and typed. Contract: `torchrun` of torch 2.15.

pub mod namespace;
pub mod options;
pub mod rdzv;
pub mod read;
pub mod streams;

use super::dialects::{self, Dialect};
use super::launch::DryRun;
use super::options::{Values, Vars};
use super::zygote::{self, Zygote};
use super::{SpecError, nodes, notify, shown};
use crate::model::exit::signal_number;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

pub use rdzv::Meeting;
pub use streams::{Streams, Way, Ways};

/// What the ranks run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TorchScript {
    /// A file, run by Python whatever its name.
    Python(OsString),
    /// A module, run as `python -m` does.
    Module(OsString),
    /// A program, looked for on PATH.
    Program(OsString),
    /// A file, run as `runpy.run_path` does.
    RunPath(OsString),
}

/// How many ranks this node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nproc {
    /// So many; at least 1.
    Count(usize),
    /// As many as CPUs that the launcher may run on.
    Cpu,
    /// As many as GPUs that can be seen.
    Gpu,
    /// As many as XPUs.
    Xpu,
    /// As many as devices if there are any, else as CPUs.
    Auto,
}

/// Where the logs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDir {
    /// In a new temporary folder.
    Temporary,
    /// In a new folder within this one, as given.
    At(String),
    /// There are none; all streams are the launcher's own.
    Nowhere,
}

/// To which CPUs a rank is bound (`--numa-binding`), by the NUMA node of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numa {
    /// All CPUs of the node.
    Node,
    /// All CPUs of all nodes in the same socket.
    Socket,
    /// The node's physical cores, divided among its devices.
    Exclusive,
    /// The CPUs below one last-level cache of the node.
    CoreComplex,
}

impl Numa {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Node, Self::Socket, Self::Exclusive, Self::CoreComplex];

    /// As the option has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Socket => "socket",
            Self::Exclusive => "exclusive",
            Self::CoreComplex => "core-complex",
        }
    }

    /// By its name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What becomes of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLog {
    /// Nothing.
    Null,
    /// They are lines of JSON on stderr.
    Console,
}

/// What is read of the ranks' output, beside what goes to logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// Nothing.
    None,
    /// What they say on stderr, which is passed on at once.
    Stderr,
}

/// A checked request, for this node's part of a job.
#[derive(Clone, Debug)]
pub struct TorchSpec {
    /// What to run.
    pub script: TorchScript,
    /// Its arguments, untouched.
    pub args: Vec<OsString>,
    /// Whether `--local-rank=N` comes before them.
    pub pass_local_rank: bool,
    /// The least and the most nodes; in this version the same.
    pub nodes: (usize, usize),
    /// Ranks on this node.
    pub nproc: Nproc,
    /// How the nodes find each other.
    pub meeting: Meeting,
    /// The job's name; `None`: a UUID for each run.
    pub run_id: Option<String>,
    /// How the nodes find each other, as events name it: `c10d` for one that was asked for nothing.
    pub backend: String,
    /// What the ranks are called.
    pub role: String,
    /// How many times all ranks may be started again.
    pub max_restarts: u32,
    /// How often torchrun would look; more than 0.
    pub monitor_interval: Duration,
    /// Time between asking to stop and killing.
    pub shutdown_timeout: Duration,
    /// Where the logs are.
    pub log_dir: LogDir,
    /// Which streams go there.
    pub streams: Streams,
    /// What stands before lines that are tee'd, if the user says so.
    pub prefix_template: Option<String>,
    /// The ranks that the console shows, by number on this node; `None`: all.
    pub local_ranks_filter: Option<BTreeSet<usize>>,
    /// Lines of stdout that hold one of these are copied to a file.
    pub duplicate_stdout_filters: Vec<String>,
    /// The same of stderr.
    pub duplicate_stderr_filters: Vec<String>,
    /// Whether LOCAL_RANK is 0 for all, and each sees its own device alone.
    pub virtual_local_rank: bool,
    /// To which CPUs ranks are bound.
    pub numa: Option<Numa>,
    /// Whether that is said.
    pub bind_report: bool,
    /// Signals that stop the job, and are passed on.
    pub signals: Vec<i32>,
    /// The same as given, for TORCHELASTIC_SIGNALS_TO_HANDLE.
    pub signals_text: String,
    /// This node's address, if the user says so.
    pub local_addr: Option<String>,
    /// What becomes of events.
    pub event_log: EventLog,
    /// What is read of the ranks' output.
    pub capture: Capture,
    /// Whether OMP_NUM_THREADS is 1 where there are several ranks.
    pub omp_compat: bool,
    /// Whether the exit status of a job that did not end well is always 1.
    pub exit_code_compat: bool,
    /// Whose variables the ranks get.
    pub dialects: BTreeSet<Dialect>,
    /// From which process the ranks are forked, if from any.
    pub zygote: Option<Zygote>,
    /// Print the plan only.
    pub dry_run: Option<DryRun>,
    /// The least important level that is shown: `DEBUG` to `CRITICAL`.
    pub log_level: String,
    /// Things the user should know, in order.
    pub warnings: Vec<String>,
}

/// Checks the merged options against what this version can do. `rest`: the script and its arguments.
pub fn check(values: &Values, vars: &Vars, rest: &[OsString]) -> Result<TorchSpec, SpecError> {
    for (name, value) in values.iter() {
        if value.text.contains('\0') {
            return Err(values.error(name, "holds a NUL byte", "leave it out"));
        }
    }
    let mut warnings = Vec::new();
    let rdzv = rdzv::check(values, &mut warnings)?;
    let (script, args) = script(values, rest)?;
    if let Some(name) = values.text("logs-specs") {
        let why = format!("Could not find entrypoint under 'torchrun.logs_specs[{}]' key", shown(name));
        let hint = "rlaunch runs no plug-ins of torch; --redirects, --tee and --log-dir say where streams go";
        return Err(values.error("logs-specs", &why, hint));
    }
    // Of its variable only where it matters, as in torchrun.
    if values.on_command_line("start-method").is_some() || matches!(script, TorchScript::RunPath(_)) {
        read::choice(values, "start-method")?;
    }
    let max_restarts = read::whole(values, "max-restarts")?.unwrap_or(0);
    if max_restarts < 0 {
        return Err(values.error("max-restarts", "max_restarts must be >= 0", "give 0 or more"));
    }
    let filters = |name| values.text(name).map_or_else(Vec::new, read::list);
    let text = |name| values.text(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let template = || vars.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").filter(|text| !text.is_empty()).cloned();
    Ok(TorchSpec {
        pass_local_rank: pass_local_rank(values, &script)?,
        script,
        args,
        nodes: rdzv.nodes,
        nproc: nproc(values)?,
        meeting: rdzv.meeting,
        run_id: rdzv.run_id,
        backend: rdzv.backend,
        role: values.text("role").unwrap_or("default").to_owned(),
        max_restarts: max_restarts.try_into().unwrap_or(u32::MAX),
        monitor_interval: Duration::from_secs_f64(read::seconds(values, "monitor-interval")?),
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
        virtual_local_rank: read::flag(values, "virtual-local-rank")?,
        numa: read::choice(values, "numa-binding")?.and_then(Numa::parse),
        bind_report: read::flag(values, "bind-report")?,
        signals: signals(values, &mut warnings),
        signals_text: values.text("signals-to-handle").unwrap_or("").to_owned(),
        local_addr: text("local-addr"),
        event_log: match values.text("event-log-handler") {
            Some("console") => EventLog::Console,
            None | Some("null" | "dynamic_rendezvous") => EventLog::Null,
            Some(_) => {
                let why = "is no event log handler that rlaunch has";
                return Err(values.error("event-log-handler", why, "give null or console"));
            }
        },
        capture: match read::choice(values, "capture")? {
            Some("none") => Capture::None,
            _ => Capture::Stderr,
        },
        omp_compat: read::flag(values, "omp-compat")?,
        exit_code_compat: read::flag(values, "exit-code-compat")?,
        dialects: dialects::check(values)?,
        zygote: zygote::check(values, "torch")?,
        dry_run: match values.text("dry-run") {
            None => None,
            Some("" | "table") => Some(DryRun::Table),
            Some("json") => Some(DryRun::Json),
            Some(_) => return Err(values.error("dry-run", "is no form of a plan", "give table or json")),
        },
        log_level: log_level(vars)?,
        warnings,
    })
}

fn script(values: &Values, rest: &[OsString]) -> Result<(TorchScript, Vec<OsString>), SpecError> {
    let (name, args) = rest.split_first().ok_or_else(|| {
        SpecError::new("training_script", "", "is missing", "give the script to run after the options")
    })?;
    for (index, arg) in rest.iter().enumerate() {
        if arg.as_encoded_bytes().contains(&0) {
            let field = if index == 0 { "training_script".into() } else { format!("script argument {index}") };
            let hint = "no program can be given one";
            return Err(SpecError::new(field, arg.to_string_lossy(), "holds a NUL byte", hint));
        }
    }
    let [module, no_python, run_path] = ["module", "no-python", "run-path"].map(|name| read::flag(values, name));
    let script = match (run_path?, no_python?, module?) {
        (true, _, _) => TorchScript::RunPath(name.clone()),
        (false, true, true) => {
            let why = "Don't use both the '--no-python' flag and the '--module' flag at the same time";
            return Err(SpecError::new(nodes::field(values, "no-python"), "", why, "leave one of them out"));
        }
        (false, true, false) => TorchScript::Program(name.clone()),
        (false, false, true) => TorchScript::Module(name.clone()),
        (false, false, false) => TorchScript::Python(name.clone()),
    };
    Ok((script, args.to_vec()))
}

fn pass_local_rank(values: &Values, script: &TorchScript) -> Result<bool, SpecError> {
    let pass = read::flag(values, "pass-local-rank")?;
    if pass && matches!(script, TorchScript::Program(_)) {
        let why = "is for scripts in Python, and --no-python says that this is none";
        return Err(SpecError::new("--pass-local-rank", "", why, "write ${local_rank} among its arguments"));
    }
    Ok(pass)
}

fn nproc(values: &Values) -> Result<Nproc, SpecError> {
    let text = values.text("nproc-per-node").unwrap_or("1");
    let hint = "give a number, 1 or more, or gpu, xpu, cpu or auto";
    match (text, read::int(text)) {
        (_, Some(n)) => match usize::try_from(n).ok().filter(|n| *n > 0) {
            Some(n) => Ok(Nproc::Count(n)),
            None => Err(values.error("nproc-per-node", "is no number of ranks", hint)),
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

/// The option, its variable, torch's other variable, 30 s.
fn shutdown_timeout(values: &Values, vars: &Vars) -> Result<Duration, SpecError> {
    const OTHER: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    let far = |seconds: i64| Duration::from_secs(seconds.unsigned_abs().min(1_000_000_000));
    if let Some(seconds) = read::whole(values, "shutdown-timeout")? {
        if seconds < 0 {
            let why = format!("shutdown_timeout must be non-negative, got {seconds}");
            return Err(values.error("shutdown-timeout", &why, "give seconds, 0 or more"));
        }
        return Ok(far(seconds));
    }
    let Some(text) = vars.get(OTHER) else { return Ok(Duration::from_secs(30)) };
    match read::int(text) {
        Some(seconds) if seconds >= 0 => Ok(far(seconds)),
        _ => Err(SpecError::new(OTHER, text, "is no number of seconds", "give 0 or more, or unset it")),
    }
}

/// Those that can be handled; what cannot is warned of, as in torchrun.
fn signals(values: &Values, said: &mut Vec<String>) -> Vec<i32> {
    let mut signals = Vec::new();
    for word in values.text("signals-to-handle").unwrap_or("").split(',') {
        let name = word.trim();
        let number = signal_number(name).filter(|_| name.starts_with("SIG"));
        match number.ok_or("is no signal").and_then(|n| notify::unfit(n).map_or(Ok(n), Err)) {
            Ok(number) if signals.contains(&number) => {}
            Ok(number) => signals.push(number),
            Err(why) => said.push(format!("Failed to register signal handler for {}: it {why}", shown(name))),
        }
    }
    signals
}

fn log_level(vars: &Vars) -> Result<String, SpecError> {
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
