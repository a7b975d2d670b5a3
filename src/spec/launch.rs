//! What `python -m rlaunch` was asked to do, checked and typed.

use super::SpecError;
use super::console::{self, ConsoleSpec};
use super::notify;
use super::options::{Values, Vars};
use super::restarts::{self, Restarts};
use super::rotation::{self, Rotation};
use crate::model::Endpoint;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

/// What the ranks run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Script {
    /// A file, run by Python if its name ends in `.py` or `.pyxes`, else by itself.
    File(OsString),
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
            Script::Module(_) => true,
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

/// Which ports the ranks' endpoints get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Free ones within a range, both ends included.
    Range {
        /// The lowest.
        low: u16,
        /// The highest.
        high: u16,
    },
    /// Consecutive ones from here, and the first endpoint is the master (`--ips`).
    Layout {
        /// The first rank's.
        first: u16,
    },
    /// Consecutive ones from here for the ranks, a free one for the master (`FLAGS_FIXED_PORT`).
    Fixed {
        /// The first rank's.
        first: u16,
        /// Where the master's port is taken from.
        low: u16,
        /// The same.
        high: u16,
    },
}

/// A checked request for one node.
#[derive(Clone, Debug)]
pub struct LaunchSpec {
    /// What to run.
    pub script: Script,
    /// Its arguments, untouched.
    pub args: Vec<OsString>,
    /// Ranks, if asked for; at least 1.
    pub nproc_per_node: Option<usize>,
    /// Devices, if asked for, as given and stripped.
    pub devices: Option<Vec<String>>,
    /// This node's address.
    pub host: String,
    /// Where ports come from.
    pub ports: Ports,
    /// Folder of the logs, as given.
    pub log_dir: String,
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
    /// Print the plan only.
    pub dry_run: Option<DryRun>,
    /// Things the user should know, in order.
    pub warnings: Vec<String>,
}

/// Paddle's default for PORT_RANGE.
const PORT_RANGE: (u16, u16) = (35100, 64000);

/// Checks the merged options against what this version can do. `rest`: the script and its arguments.
pub fn check(values: &Values, vars: &Vars, rest: &[OsString]) -> Result<LaunchSpec, SpecError> {
    for (name, value) in values.iter() {
        if value.text.contains('\0') {
            return Err(values.error(name, "holds a NUL byte", "leave it out"));
        }
    }
    refuse_later_work(values, vars)?;
    let (name, args) = rest.split_first().ok_or_else(|| {
        SpecError::new("training_script", "", "is missing", "give the script to run after the options")
    })?;
    let module = values.bool("module")?.unwrap_or(false);
    let no_python = values.bool("no_python")?.unwrap_or(false);
    let script = match (module, no_python) {
        (true, true) => {
            return Err(SpecError::new("--module", "", "cannot go with --no_python", "give one of them"));
        }
        (true, false) => Script::Module(name.clone()),
        (false, true) => Script::Program(name.clone()),
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
    let mut warnings = Vec::new();
    let (host, ports) = address(values, vars, &mut warnings)?;
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
    let job_id = values.text("job_id").unwrap_or("default").to_owned();
    if job_id.is_empty() || job_id.contains(['/', '\0']) {
        return Err(values.error("job_id", "cannot be part of a file name", "use letters, digits, '-' and '_'"));
    }
    Ok(LaunchSpec {
        script,
        args: args.to_vec(),
        nproc_per_node,
        devices: devices(values)?,
        host,
        ports,
        log_dir,
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
        dry_run: match values.text("dry_run") {
            None => None,
            Some("" | "table") => Some(DryRun::Table),
            Some("json") => Some(DryRun::Json),
            Some(_) => return Err(values.error("dry_run", "is no form of the plan", "give table or json")),
        },
        warnings,
    })
}

/// What later versions bring is refused, never ignored.
fn refuse_later_work(values: &Values, vars: &Vars) -> Result<(), SpecError> {
    let later = |name: &str, what: &str| {
        Err(values.error(
            name,
            &format!("{what} are not in this version of rlaunch"),
            "leave it out, or use the launcher you come from",
        ))
    };
    if values.bool("legacy")? == Some(true) {
        return later("legacy", "the older launcher's ways");
    }
    for name in ["auto_tuner_json", "auto_parallel_config"] {
        if values.given(name).is_some() {
            return later(name, "auto-tuners");
        }
    }
    let mode = values.text("run_mode").unwrap_or("").to_ascii_lowercase();
    match mode.as_str() {
        "" | "collective" => {}
        "ps" | "ps-heter" => return later("run_mode", "parameter servers"),
        "rpc" => return later("run_mode", "RPC jobs"),
        _ => return Err(values.error("run_mode", "is no mode", "give collective")),
    }
    for name in ["servers", "trainers", "server_num", "trainer_num"] {
        if values.given(name).is_some_and(|text| !text.is_empty() && text != "0") {
            return later(name, "parameter servers");
        }
    }
    let master = values.text("master").unwrap_or("");
    if master.starts_with("etcd://") {
        return later("master", "etcd and elastic jobs");
    }
    if !master.is_empty() && Endpoint::parse(master).is_none() {
        return Err(values.error("master", "is no address", "give ip:port"));
    }
    let nnodes = values.text("nnodes").unwrap_or("1").trim();
    match nnodes.split_once(':').unwrap_or((nnodes, nnodes)) {
        (low, high) if low.parse() == Ok(1u32) && high.parse() == Ok(1u32) => {}
        (low, high) if low.parse::<u32>().is_ok_and(|n| n > 0) && high.parse::<u32>().is_ok_and(|n| n > 0) => {
            return later("nnodes", "jobs on several nodes");
        }
        _ => return Err(values.error("nnodes", "is no number of nodes", "give 1")),
    }
    if values.text("ips").is_some_and(|ips| ips.contains(',')) {
        return later("ips", "jobs on several nodes");
    }
    if values.int("elastic_level")?.is_some_and(|level| level >= 0) {
        return later("elastic_level", "elastic jobs");
    }
    // Paddle's launcher takes its nodes from these lists; this version takes one node.
    for var in ["PADDLE_TRAINER_ENDPOINTS", "DISTRIBUTED_TRAINER_ENDPOINTS"] {
        let Some(list) = vars.get(var).filter(|list| !list.is_empty()) else { continue };
        let mut hosts: Vec<&str> = list.split(',').map(|e| e.rsplit_once(':').map_or(e, |(h, _)| h)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.len() > 1 {
            let why = format!("names {} nodes; jobs on several nodes are not in this version of rlaunch", hosts.len());
            return Err(SpecError::new(var, list, why, "unset it to run on this node alone"));
        }
    }
    // Checked so that a typing error is seen, though they have no effect on one node.
    for name in ["rank", "elastic_timeout", "gloo_port"] {
        values.int(name)?;
    }
    values.bool("sort_ip")?;
    Ok(())
}

/// This node's address and the ports' source. On one node nothing needs to be reached from outside,
/// so the address is loopback unless the user says otherwise (never an address got from the host's name).
fn address(values: &Values, vars: &Vars, warnings: &mut Vec<String>) -> Result<(String, Ports), SpecError> {
    let mut host = "127.0.0.1".to_owned();
    if let Some(given) = values.text("host").filter(|h| h.contains('.') || h.contains(':')) {
        warnings.push(format!("Host ip reset to {given}"));
        host = given.to_owned();
    }
    let (low, high) = port_range(vars)?;
    if let Some(ip) = values.text("ips").map(str::trim).filter(|ip| !ip.is_empty()) {
        let first = port(values, "start_port")?;
        if values.given("master").is_some() {
            warnings.push(format!("master is set by args, it will be overwritten by {}", Endpoint::new(ip, first)));
        }
        return Ok((ip.to_owned(), Ports::Layout { first }));
    }
    if let Some(text) = vars.get("FLAGS_FIXED_PORT").filter(|t| !t.is_empty()) {
        let first = text.trim().parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(|| {
            SpecError::new("FLAGS_FIXED_PORT", text, "is no port", "give a number from 1 to 65535, or unset it")
        })?;
        return Ok((host, Ports::Fixed { first, low, high }));
    }
    Ok((host, Ports::Range { low, high }))
}

fn port(values: &Values, name: &str) -> Result<u16, SpecError> {
    let number = values.int(name)?.unwrap_or(0);
    u16::try_from(number)
        .ok()
        .filter(|p| *p > 0)
        .ok_or_else(|| values.error(name, "is no port", "give a number from 1 to 65535"))
}

fn port_range(vars: &Vars) -> Result<(u16, u16), SpecError> {
    let Some(text) = vars.get("PORT_RANGE").filter(|t| !t.is_empty()) else { return Ok(PORT_RANGE) };
    let ends = text.split_once(':').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    match ends {
        Some((low, high)) if 0u16 < low && low <= high => Ok((low, high)),
        _ => Err(SpecError::new("PORT_RANGE", text, "is no range of ports", "give low:high, such as 35100:64000")),
    }
}

fn devices(values: &Values) -> Result<Option<Vec<String>>, SpecError> {
    let Some(text) = values.text("devices").filter(|t| !t.trim().is_empty()) else { return Ok(None) };
    let list: Vec<String> = text.split(',').map(|d| d.trim().to_owned()).collect();
    if list.iter().any(String::is_empty) {
        return Err(values.error(
            "devices",
            "has an empty place in the list",
            "give ids joined by commas, such as 0,1",
        ));
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
