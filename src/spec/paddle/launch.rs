//! The request of `python -m rlaunch`, checked and typed.

use crate::model::Endpoint;
use crate::spec::console;
use crate::spec::console::ConsoleSpec;
use crate::spec::endpoints;
use crate::spec::error::SpecError;
use crate::spec::forwarded_signals;
use crate::spec::frameworks;
use crate::spec::frameworks::Framework;
use crate::spec::hang;
use crate::spec::hang::HangSpec;
use crate::spec::no_sweep;
use crate::spec::options::{DryRun, EnvVars, OptValues};
use crate::spec::paddle::job;
use crate::spec::paddle::job::JobKind;
use crate::spec::paddle::nodes;
use crate::spec::paddle::nodes::JobNodes;
use crate::spec::paddle::ps::PsSpec;
use crate::spec::paddle::tuner::Tuning;
use crate::spec::preload;
use crate::spec::preload::PreloadSpec;
use crate::spec::records::log_rotation::LogRotationSpec;
use crate::spec::records::sampling::SamplingSpec;
use crate::spec::records::{log_rotation, sampling};
use crate::spec::rendezvous;
use crate::spec::rendezvous::{ElasticLevel, RendezvousSpec};
use crate::spec::restarts;
use crate::spec::restarts::RestartSpec;
use crate::spec::scheduler::preempt;
use crate::spec::scheduler::preempt::PreemptSpec;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

/// The program of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Script {
    /// A file: Python runs it if its name ends in `.py` or `.pyxes`, else it is executed.
    File(OsString),
    /// A file that Python runs, whatever its name.
    Python(OsString),
    /// A module, run like `python -m`.
    Module(OsString),
    /// A program, executed whatever its name.
    Program(OsString),
}

impl Script {
    /// Its path, unless it is a module. A program may be one on PATH.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Script::File(name) | Script::Python(name) | Script::Program(name) => Some(Path::new(name)),
            Script::Module(_) => None,
        }
    }

    /// Its name, if it is a module.
    pub fn module(&self) -> Option<&OsStr> {
        match self {
            Script::Module(name) => Some(name),
            _ => None,
        }
    }

    /// Whether Python runs it.
    pub fn runs_in_python(&self) -> bool {
        match self {
            Script::File(name) => is_python(name),
            Script::Module(_) | Script::Python(_) => true,
            Script::Program(_) => false,
        }
    }
}

/// Whether Python runs a file of this name: `.py` or `.pyxes`.
pub fn is_python(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.ends_with(b".py") || name.ends_with(b".pyxes")
}

/// A checked request for this node's part of a job.
#[derive(Clone, Debug)]
pub struct LaunchSpec {
    /// The kind of job.
    pub job: JobKind,
    /// The program of the ranks.
    pub script: Script,
    /// Its arguments, unchanged.
    pub args: Vec<OsString>,
    /// Number of ranks, if given; at least 1.
    pub nproc_per_node: Option<usize>,
    /// Devices, if given, without blanks.
    pub devices: Option<Vec<String>>,
    /// The option or variable that gives them, as the user wrote it: `--gpus`.
    pub devices_option: String,
    /// The job's nodes. With parameter servers: the source of free ports. The legacy launcher's nodes are in `job`.
    pub nodes: JobNodes,
    /// The rendezvous, if no list names the nodes.
    pub rendezvous: Option<RendezvousSpec>,
    /// The folder of the logs, as given.
    pub log_dir: String,
    /// The frameworks whose variables the ranks receive.
    pub frameworks: BTreeSet<Framework>,
    /// Whether logs are truncated first.
    pub log_overwrite: bool,
    /// The rotation of logs, if any.
    pub log_rotation: Option<LogRotationSpec>,
    /// Whether to write a log of the job's GPUs.
    pub gpu_log: bool,
    /// The lowest level of messages: `DEBUG` to `CRITICAL`.
    pub log_level: String,
    /// The job's name.
    pub job_id: String,
    /// The value of PADDLE_AUTO_CLUSTER.
    pub auto_cluster: bool,
    /// The time between SIGTERM and SIGKILL.
    pub grace_period: Duration,
    /// How long servers may run after this node's trainers; `None`: as long as they do (legacy: not at all).
    pub server_timeout: Option<Duration>,
    /// When a failed job restarts.
    pub restarts: RestartSpec,
    /// What the console shows of the ranks' output.
    pub console: ConsoleSpec,
    /// When a silent job is looked at.
    pub hang: HangSpec,
    /// What is recorded of the ranks while they run.
    pub sampling: SamplingSpec,
    /// Notices of preemption, and what follows.
    pub preempt: PreemptSpec,
    /// Signals that are forwarded to the ranks, in addition to the default ones.
    pub forward_signals: BTreeSet<i32>,
    /// Whether the ranks run in a cgroup of their own, if one can be made.
    pub cgroup: bool,
    /// Names of processes that no sweep ends.
    pub no_sweep: BTreeSet<String>,
    /// The modules to preload, if ranks are forked.
    pub preload: Option<PreloadSpec>,
    /// Only print the plan.
    pub dry_run: Option<DryRun>,
    /// The file of automatic parallelism.
    pub auto_parallel_config: Option<String>,
    /// The content of that file, once it is read.
    pub tuning: Option<Tuning>,
    /// Messages at level WARNING, in order.
    pub warnings: Vec<String>,
    /// Messages at level INFO, in order.
    pub infos: Vec<String>,
}

/// Checks the merged options. `rest`: the script and its arguments.
pub fn check(values: &OptValues, vars: &EnvVars, rest: &[OsString]) -> Result<LaunchSpec, SpecError> {
    for (name, value) in values.iter() {
        if value.text.contains('\0') {
            return Err(values.error(name, "contains a NUL byte", "leave it out"));
        }
    }
    let (mut warnings, mut infos) = (Vec::new(), Vec::new());
    let job = job::check(values, vars, &mut warnings)?;
    refuse_unsupported(values, &job)?;
    let is_legacy = matches!(job, JobKind::Legacy(_));
    if job != JobKind::Collective && values.given("auto_parallel_config").is_some() {
        return Err(values.error("auto_parallel_config", "is only for collective jobs", "leave it out"));
    }
    match job {
        JobKind::Collective if values.given("auto_parallel_config").is_none() => {}
        JobKind::Collective => frameworks::only_paddle(values, "jobs with --auto_parallel_config")?,
        JobKind::Legacy(_) => frameworks::only_paddle(values, "jobs of the legacy launcher (--legacy)")?,
        JobKind::Ps(_) => frameworks::only_paddle(values, "parameter servers")?,
        JobKind::Rpc => frameworks::only_paddle(values, "jobs of --run_mode rpc")?,
    }
    let (name, args) = rest.split_first().ok_or_else(|| {
        SpecError::new("training_script", "", "is missing", "give the script to run after the options")
    })?;
    if name == "ipu" {
        let hint = "use poprun; to run a program of that name, give ./ipu";
        return Err(SpecError::new("training_script", "ipu", "rlaunch does not start IPU jobs", hint));
    }
    let module = values.bool("module")?.unwrap_or(false);
    let no_python = values.bool("no_python")?.unwrap_or(false);
    let script = match (module, no_python) {
        (true, true) => {
            return Err(SpecError::new("--module", "", "cannot be combined with --no_python", "give one of the two"));
        }
        (true, false) => Script::Module(name.clone()),
        (false, true) => Script::Program(name.clone()),
        (false, false) if is_legacy => Script::Python(name.clone()),
        (false, false) => Script::File(name.clone()),
    };
    for (index, arg) in rest.iter().enumerate() {
        if arg.as_encoded_bytes().contains(&0) {
            let field = if index == 0 { "training_script".into() } else { format!("script argument {index}") };
            return Err(SpecError::new(
                field,
                arg.to_string_lossy(),
                "contains a NUL byte",
                "remove it: arguments of programs cannot contain one",
            ));
        }
    }
    let nodes = match &job {
        JobKind::Legacy(_) => JobNodes::single(),
        JobKind::Ps(ps) => {
            let mut unless_idle = Vec::new();
            let nodes = nodes::single_node(values, vars, &mut unless_idle)?;
            let is_used = values.text("host").is_some_and(|host| ps.has_host(endpoints::without_brackets(host)));
            warnings.extend(unless_idle.into_iter().filter(|_| is_used));
            nodes
        }
        JobKind::Collective | JobKind::Rpc => nodes::check(values, vars, &mut warnings, &mut infos)?,
    };
    let is_open = matches!((&job, &nodes), (JobKind::Collective | JobKind::Rpc, JobNodes::One { .. }));
    let rendezvous = match &job {
        JobKind::Ps(ps) if ps.is_by_number() => servers_rendezvous(values, &mut warnings)?,
        JobKind::Legacy(legacy) => legacy.elastic.as_ref().map(|elastic| elastic.rendezvous.clone()),
        _ if is_open => rendezvous::check(values, &mut warnings)?,
        _ => None,
    };
    if rendezvous.is_none() {
        check_nnodes(values, &nodes, &job)?;
    }
    let nproc = values.int("nproc_per_node")?.map(|n| usize::try_from(n).unwrap_or(0));
    let nproc_per_node = match nproc {
        Some(0) if values.text("nproc_per_node") == Some("0") => None,
        Some(0) => Some(1),
        other => other,
    };
    if nproc == Some(0) && matches!(job, JobKind::Collective | JobKind::Rpc) {
        let instead = if nproc_per_node.is_none() { "one rank per device, else one," } else { "one rank" };
        let error = values.error(
            "nproc_per_node",
            &format!("is not a number of ranks; {instead} is started, as by Paddle's launcher"),
            "give 1 or more, or leave it out",
        );
        warnings.push(error.to_string());
    }
    let log_dir = values.text("log_dir").unwrap_or("log").to_owned();
    if log_dir.is_empty() {
        return Err(values.error("log_dir", "is empty", "name a folder, or leave the option out for ./log"));
    }
    let elastic = rendezvous.as_ref().filter(|_| is_legacy);
    let job_id = elastic.map_or(values.text("job_id").unwrap_or("default"), |spec| &spec.job_name).to_owned();
    Ok(LaunchSpec {
        job,
        script,
        args: args.to_vec(),
        nproc_per_node,
        devices: devices(values)?,
        devices_option: values.field(devices_name(values).unwrap_or("devices")),
        nodes,
        rendezvous,
        log_dir,
        frameworks: frameworks::check(values)?,
        log_overwrite: values.bool("log_overwrite")?.unwrap_or(false),
        log_rotation: log_rotation::check(values)?,
        gpu_log: values.bool("enable_gpu_log")?.unwrap_or(true),
        log_level: log_level(values)?,
        job_id,
        auto_cluster: values.bool("auto_cluster_config")?.unwrap_or(false),
        grace_period: Duration::from_secs_f64(values.seconds("grace_period")?.unwrap_or(30.0)),
        server_timeout: values.seconds("server_timeout")?.map(Duration::from_secs_f64),
        restarts: restarts::check(values)?,
        console: console::check(values)?,
        hang: hang::check(values, ["hang_timeout", "on_hang", "exit_timeout", "straggler_timeout"])?,
        sampling: sampling::check(values, ["sample", "metrics_file"])?,
        preempt: preempt::check(values, ["preempt_file", "preempt_time", "requeue"])?,
        forward_signals: forwarded_signals::check(values)?,
        cgroup: values.bool("cgroup")?.unwrap_or(true),
        no_sweep: no_sweep::check(values, "no_sweep")?,
        preload: preload::check(values, "paddle")?,
        dry_run: match values.text("dry_run") {
            None => None,
            Some("" | "table") => Some(DryRun::Table),
            Some("json") => Some(DryRun::Json),
            Some(_) => return Err(values.error("dry_run", "is not a form of the plan", "give table or json")),
        },
        auto_parallel_config: values.given("auto_parallel_config").map(str::to_owned),
        tuning: None,
        warnings,
        infos,
    })
}

/// Refuses options without support, and values that have no effect on a single node but are invalid.
fn refuse_unsupported(values: &OptValues, job: &JobKind) -> Result<(), SpecError> {
    if values.given("auto_tuner_json").is_some() {
        let hint = "run paddle.distributed.launch with it, then run rlaunch with the configuration that it finds";
        return Err(values.error("auto_tuner_json", "rlaunch does not search configurations", hint));
    }
    if let (JobKind::Ps(_), Some(_)) = (job, values.given("ips").filter(|ips| !ips.trim().is_empty())) {
        let hint = "list the nodes with --servers and --trainers, the same on each node";
        return Err(values.error("ips", "has no effect on parameter servers", hint));
    }
    let master = values.text("master").unwrap_or("");
    let is_etcd = master.starts_with("etcd://") || master.starts_with("etcds://");
    rendezvous::check_scheme(values)?;
    let address = master.strip_prefix("http://").unwrap_or(master).trim_end_matches('/');
    if !master.is_empty() && !is_etcd && Endpoint::parse(address).is_none() {
        return Err(values.error("master", "is not an address", "give ip:port, or etcd://ip:port"));
    }
    // They have no effect on a single node; an invalid value is refused all the same.
    for name in ["rank", "elastic_level", "elastic_timeout", "gloo_port", "node_failure_limit", "spares"] {
        values.int(name)?;
    }
    for name in ["join_timeout", "min_round_time", "heartbeat_timeout", "etcd_loss_timeout"] {
        values.seconds(name)?;
    }
    values.bool("sort_ip")?;
    rendezvous::require_same(values, "require_same")?;
    Ok(())
}

/// The rendezvous of a job whose nodes have parameter servers each; `None` for a single node.
fn servers_rendezvous(values: &OptValues, warnings: &mut Vec<String>) -> Result<Option<RendezvousSpec>, SpecError> {
    match rendezvous::nnodes(values)? {
        (_, 1) => Ok(None),
        (min, max) if min < max => {
            let why = "a job with parameter servers has a fixed number of nodes";
            Err(values.error("nnodes", why, &format!("give {max}")))
        }
        _ => {
            let asked = rendezvous::check(values, warnings)?;
            // Paddle does not restart these jobs. What servers hold would be lost with their node.
            Ok(asked.map(|asked| RendezvousSpec { elastic_level: ElasticLevel::Off, ..asked }))
        }
    }
}

/// Checks that `--nnodes` agrees with the list of nodes.
fn check_nnodes(values: &OptValues, nodes: &JobNodes, job: &JobKind) -> Result<(), SpecError> {
    let nothing_required = || {
        let instead = "give --nnodes and --master instead of a list of nodes, or leave it out";
        rendezvous::check_nothing_required(values, "require_same", instead)
    };
    let (name, hosts) = match (job, nodes) {
        // The legacy launcher does not read PADDLE_NNODES.
        (JobKind::Legacy(_), _) | (JobKind::Ps(PsSpec::Platform { .. }), _) => return nothing_required(),
        (JobKind::Ps(ps), _) if ps.is_by_number() => return Ok(()),
        (JobKind::Ps(PsSpec::Processes(processes)), _) => ("the list of endpoints", processes.hosts().len()),
        // Without a rendezvous it is one.
        (_, JobNodes::One { .. }) => return Ok(()),
        (_, JobNodes::Fixed(list)) => (list.from.0.as_str(), list.hosts.len()),
    };
    if hosts > 1 {
        nothing_required()?;
    }
    let text = values.text("nnodes").unwrap_or("1").trim();
    let (low, high) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n > 0);
    let (Some(low), Some(high)) = (number(low), number(high)) else {
        return Err(values.error("nnodes", "is not a number of nodes", "give a number, 1 or more"));
    };
    if values.given("nnodes").is_none() || (low..=high).contains(&hosts) {
        return Ok(());
    }
    Err(values.error("nnodes", &format!("{name} has {hosts} nodes"), "leave it out, or correct the list"))
}

/// The option that gives the devices.
fn devices_name(values: &OptValues) -> Option<&'static str> {
    let given = |name: &&str| values.given(name).is_some_and(|text| !text.trim().is_empty());
    ["devices", "selected_gpus"].into_iter().find(given)
}

fn devices(values: &OptValues) -> Result<Option<Vec<String>>, SpecError> {
    let Some(name) = devices_name(values) else { return Ok(None) };
    let text = values.text(name).unwrap_or("");
    let list: Vec<String> = text.split(',').map(|d| d.trim().to_owned()).collect();
    if list.iter().any(String::is_empty) {
        return Err(values.error(name, "has an empty item", "give ids separated by commas, such as 0,1"));
    }
    Ok(Some(list))
}

fn log_level(values: &OptValues) -> Result<String, SpecError> {
    let level = values.text("log_level").unwrap_or("INFO").to_ascii_uppercase();
    match level.as_str() {
        "DEBUG" | "INFO" | "WARNING" | "ERROR" | "CRITICAL" => Ok(level),
        "WARN" => Ok("WARNING".into()),
        "FATAL" => Ok("CRITICAL".into()),
        "NOTSET" => Ok("DEBUG".into()),
        "" => Ok("INFO".into()),
        _ => Err(values.error("log_level", "is not a level", "give DEBUG, INFO, WARNING, ERROR or CRITICAL")),
    }
}
