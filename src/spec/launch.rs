//! What `python -m rlaunch` was asked to do, checked and typed.

use super::SpecError;
use super::console::{self, ConsoleSpec};
use super::dialects::{self, Dialect};
use super::job::{self, Job};
use super::meeting::{self, Meeting};
use super::nodes::{self, Nodes};
use super::notify;
use super::options::{Values, Vars};
use super::ps::{Form, PsSpec};
use super::restarts::{self, Restarts};
use super::rotation::{self, Rotation};
use super::tuner::Tuning;
use super::zygote::{self, Zygote};
use crate::model::Endpoint;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

/// What the ranks run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Script {
    /// A file, run by Python if its name ends in `.py` or `.pyxes`, else by itself.
    File(OsString),
    /// A file, run by Python whatever its name.
    Python(OsString),
    /// A module, run as `python -m` does.
    Module(OsString),
    /// A program, run by itself whatever its name.
    Program(OsString),
}

impl Script {
    /// Whether Python runs it.
    pub fn runs_in_python(&self) -> bool {
        match self {
            Script::File(name) => is_python(name),
            Script::Module(_) | Script::Python(_) => true,
            Script::Program(_) => false,
        }
    }
}

/// Whether a file of this name is Python's to run: `.py`, or `.pyxes`.
pub fn is_python(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.ends_with(b".py") || name.ends_with(b".pyxes")
}

/// What to print instead of starting anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// A table for people.
    Table,
    /// JSON for programs.
    Json,
}

/// A checked request, for this node's part of a job.
#[derive(Clone, Debug)]
pub struct LaunchSpec {
    /// The kind of job.
    pub job: Job,
    /// What to run.
    pub script: Script,
    /// Its arguments, untouched.
    pub args: Vec<OsString>,
    /// Ranks, if asked for; at least 1.
    pub nproc_per_node: Option<usize>,
    /// Devices, if asked for, as given and stripped.
    pub devices: Option<Vec<String>>,
    /// The job's nodes, this one among them; with parameter servers, where free ports come from; those of the older
    /// launcher are in `job`.
    pub nodes: Nodes,
    /// How they find each other, where nobody lists them.
    pub meeting: Option<Meeting>,
    /// Folder of the logs, as given.
    pub log_dir: String,
    /// Whose variables the ranks get.
    pub dialects: BTreeSet<Dialect>,
    /// Whether logs are emptied first.
    pub log_overwrite: bool,
    /// How logs are kept short, if they are.
    pub rotation: Option<Rotation>,
    /// Whether a log of the job's GPUs is kept, if it has any.
    pub gpu_log: bool,
    /// The least important level that is shown: `DEBUG` to `CRITICAL`.
    pub log_level: String,
    /// The job's name.
    pub job_id: String,
    /// Value of PADDLE_AUTO_CLUSTER.
    pub auto_cluster: bool,
    /// Time between asking to stop and killing.
    pub grace: Duration,
    /// When a failed job is started again.
    pub restarts: Restarts,
    /// What people see of the ranks' logs.
    pub console: ConsoleSpec,
    /// Signals, beside the usual ones, that are passed on to the ranks and never stop the job.
    pub notify_signals: BTreeSet<i32>,
    /// Whether the ranks get a cgroup of their own where one can be made.
    pub cgroup: bool,
    /// From which process the ranks are forked, if from any.
    pub zygote: Option<Zygote>,
    /// Print the plan only.
    pub dry_run: Option<DryRun>,
    /// The file of automatic parallelism, if there is one.
    pub auto_parallel_config: Option<String>,
    /// What it says, once somebody has read it.
    pub tuning: Option<Tuning>,
    /// Things the user should know, in order.
    pub warnings: Vec<String>,
    /// Things the user may want to know, in order.
    pub infos: Vec<String>,
}

/// Checks the merged options against what this version can do. `rest`: the script and its arguments.
pub fn check(values: &Values, vars: &Vars, rest: &[OsString]) -> Result<LaunchSpec, SpecError> {
    for (name, value) in values.iter() {
        if value.text.contains('\0') {
            return Err(values.error(name, "holds a NUL byte", "leave it out"));
        }
    }
    let (mut warnings, mut infos) = (Vec::new(), Vec::new());
    let job = job::check(values, vars, &mut warnings)?;
    refuse_later_work(values, &job)?;
    let older = matches!(job, Job::Legacy(_));
    if job != Job::Collective && values.given("auto_parallel_config").is_some() {
        return Err(values.error("auto_parallel_config", "is for collective jobs alone", "leave it out"));
    }
    match job {
        Job::Collective if values.given("auto_parallel_config").is_none() => {}
        Job::Collective => dialects::only_paddle(values, "jobs with --auto_parallel_config")?,
        Job::Legacy(_) => dialects::only_paddle(values, "jobs of the older launcher (--legacy)")?,
        Job::Ps(_) => dialects::only_paddle(values, "parameter servers")?,
        Job::Rpc => dialects::only_paddle(values, "jobs of --run_mode rpc")?,
    }
    let (name, args) = rest.split_first().ok_or_else(|| {
        SpecError::new("training_script", "", "is missing", "give the script to run after the options")
    })?;
    if name == "ipu" {
        let hint = "use paddle.distributed.launch for them; a program of that name is ./ipu";
        return Err(SpecError::new("training_script", "ipu", "IPU jobs, by poprun, are not rlaunch's to start", hint));
    }
    let module = values.bool("module")?.unwrap_or(false);
    let no_python = values.bool("no_python")?.unwrap_or(false);
    let script = match (module, no_python) {
        (true, true) => {
            return Err(SpecError::new("--module", "", "cannot go with --no_python", "give one of them"));
        }
        (true, false) => Script::Module(name.clone()),
        (false, true) => Script::Program(name.clone()),
        (false, false) if older => Script::Python(name.clone()),
        (false, false) => Script::File(name.clone()),
    };
    for (index, arg) in rest.iter().enumerate() {
        if arg.as_encoded_bytes().contains(&0) {
            let field = if index == 0 { "training_script".into() } else { format!("script argument {index}") };
            return Err(SpecError::new(
                field,
                arg.to_string_lossy(),
                "holds a NUL byte",
                "no program can be given one",
            ));
        }
    }
    let nodes = match &job {
        Job::Legacy(_) => Nodes::alone(),
        Job::Ps(ps) => {
            let mut said = Vec::new();
            let nodes = nodes::alone(values, vars, &mut said)?;
            let used = values.text("host").is_some_and(|host| ps.has_host(nodes::bare(host)));
            warnings.extend(said.into_iter().filter(|_| used));
            nodes
        }
        Job::Collective | Job::Rpc => nodes::check(values, vars, &mut warnings, &mut infos)?,
    };
    let meets = matches!((&job, &nodes), (Job::Collective | Job::Rpc, Nodes::One { .. }));
    let meeting = match &job {
        Job::Legacy(older) => older.elastic.as_ref().map(|elastic| elastic.meeting.clone()),
        _ if meets => meeting::check(values, &mut warnings)?,
        _ => None,
    };
    if meeting.is_none() {
        check_nnodes(values, &nodes, &job)?;
    }
    let nproc = values.int("nproc_per_node")?.map(|n| usize::try_from(n).unwrap_or(0));
    let nproc_per_node = match nproc {
        Some(0) if values.text("nproc_per_node") == Some("0") => None,
        Some(0) => Some(1),
        other => other,
    };
    let log_dir = values.text("log_dir").unwrap_or("log").to_owned();
    if log_dir.is_empty() {
        return Err(values.error("log_dir", "is empty", "name a folder, or leave the option out for ./log"));
    }
    let elastic = meeting.as_ref().filter(|_| older);
    let job_id = elastic.map_or(values.text("job_id").unwrap_or("default"), |meeting| &meeting.name).to_owned();
    if job_id.is_empty() || job_id.contains(['/', '\0']) {
        return Err(values.error("job_id", "cannot be part of a file name", "use letters, digits, '-' and '_'"));
    }
    Ok(LaunchSpec {
        job,
        script,
        args: args.to_vec(),
        nproc_per_node,
        devices: devices(values)?,
        nodes,
        meeting,
        log_dir,
        dialects: dialects::check(values)?,
        log_overwrite: values.bool("log_overwrite")?.unwrap_or(false),
        rotation: rotation::check(values)?,
        gpu_log: values.bool("enable_gpu_log")?.unwrap_or(true),
        log_level: log_level(values)?,
        job_id,
        auto_cluster: values.bool("auto_cluster_config")?.unwrap_or(false),
        grace: Duration::from_secs_f64(values.seconds("grace")?.unwrap_or(30.0)),
        restarts: restarts::check(values)?,
        console: console::check(values)?,
        notify_signals: notify::check(values)?,
        cgroup: values.bool("cgroup")?.unwrap_or(true),
        zygote: zygote::check(values, "paddle")?,
        dry_run: match values.text("dry_run") {
            None => None,
            Some("" | "table") => Some(DryRun::Table),
            Some("json") => Some(DryRun::Json),
            Some(_) => return Err(values.error("dry_run", "is no form of the plan", "give table or json")),
        },
        auto_parallel_config: values.given("auto_parallel_config").map(str::to_owned),
        tuning: None,
        warnings,
        infos,
    })
}

/// What later versions bring is refused, never ignored.
fn refuse_later_work(values: &Values, job: &Job) -> Result<(), SpecError> {
    if values.given("auto_tuner_json").is_some() {
        let hint = "run paddle.distributed.launch with it, and the configuration that it finds with rlaunch";
        return Err(values.error("auto_tuner_json", "rlaunch does not search configurations", hint));
    }
    if let (Job::Ps(_), Some(_)) = (job, values.given("ips").filter(|ips| !ips.trim().is_empty())) {
        let hint = "name the nodes by --servers and --trainers, the same lists on each of them";
        return Err(values.error("ips", "has no effect on parameter servers", hint));
    }
    let master = values.text("master").unwrap_or("");
    let is_etcd = master.starts_with("etcd://") || master.starts_with("etcds://");
    meeting::check_scheme(values)?;
    let address = master.strip_prefix("http://").unwrap_or(master).trim_end_matches('/');
    if !master.is_empty() && !is_etcd && Endpoint::parse(address).is_none() {
        return Err(values.error("master", "is no address", "give ip:port, or etcd://ip:port"));
    }
    // Checked so that a typing error is seen, though they have no effect on one node.
    for name in ["rank", "elastic_level", "elastic_timeout", "gloo_port"] {
        values.int(name)?;
    }
    for name in ["join_timeout", "lease", "lost_timeout"] {
        values.seconds(name)?;
    }
    values.bool("sort_ip")?;
    Ok(())
}

/// A number of nodes beside their list has to be that of the list. One without a list needs a rendezvous.
fn check_nnodes(values: &Values, nodes: &Nodes, job: &Job) -> Result<(), SpecError> {
    let list = match (job, nodes) {
        // The older launcher knows no such number, and PADDLE_NNODES of others has no effect there.
        (Job::Legacy(_), _) | (Job::Ps(PsSpec::AsTold { .. }), _) => return Ok(()),
        (Job::Ps(PsSpec::Laid(laid)), _) if laid.form == (Form::Newer { nnodes: Some(1) }) => None,
        (Job::Ps(PsSpec::Laid(laid)), _) => Some(("the list of endpoints", laid.hosts().len())),
        (_, Nodes::One { .. }) => None,
        (_, Nodes::Fixed(list)) => Some((list.from.0.as_str(), list.hosts.len())),
    };
    let text = values.text("nnodes").unwrap_or("1").trim();
    let (low, high) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n > 0);
    let (Some(low), Some(high)) = (number(low), number(high)) else {
        return Err(values.error("nnodes", "is no number of nodes", "give a number, 1 or more"));
    };
    match list {
        None if (low, high) == (1, 1) => Ok(()),
        None => Err(values.error(
            "nnodes",
            "nodes with parameter servers do not find each other",
            "name them all with --servers and --trainers, the same lists on each node",
        )),
        Some((_, hosts)) if values.given("nnodes").is_none() || (low..=high).contains(&hosts) => Ok(()),
        Some((name, hosts)) => {
            let why = format!("{name} has {hosts} nodes");
            Err(values.error("nnodes", &why, "leave it out, or correct the list"))
        }
    }
}

fn devices(values: &Values) -> Result<Option<Vec<String>>, SpecError> {
    let given = |name: &&str| values.given(name).is_some_and(|text| !text.trim().is_empty());
    let Some(name) = ["devices", "selected_gpus"].into_iter().find(given) else { return Ok(None) };
    let text = values.text(name).unwrap_or("");
    let list: Vec<String> = text.split(',').map(|d| d.trim().to_owned()).collect();
    if list.iter().any(String::is_empty) {
        return Err(values.error(name, "has an empty place in the list", "give ids joined by commas, such as 0,1"));
    }
    Ok(Some(list))
}

fn log_level(values: &Values) -> Result<String, SpecError> {
    let level = values.text("log_level").unwrap_or("INFO").to_ascii_uppercase();
    match level.as_str() {
        "DEBUG" | "INFO" | "WARNING" | "ERROR" | "CRITICAL" => Ok(level),
        "WARN" => Ok("WARNING".into()),
        "FATAL" => Ok("CRITICAL".into()),
        "NOTSET" => Ok("DEBUG".into()),
        "" => Ok("INFO".into()),
        _ => Err(values.error("log_level", "is no level", "give DEBUG, INFO, WARNING, ERROR or CRITICAL")),
    }
}
