//! The options of `python -m rlaunch`: one table, from which come the command line, the help, the
//! variables that override it, and the docs. Contract: the options of `paddle.distributed.launch`.

use super::SpecError;
use std::collections::BTreeMap;

/// What a value has to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A whole number.
    Int,
    /// Seconds, whole or not.
    Seconds,
    /// `y yes t true on 1` or `n no f false off 0`.
    Bool,
    /// Takes no value.
    Flag,
}

/// One option.
#[derive(Debug)]
pub struct Opt {
    /// Its name without dashes; `_` may also be written `-`.
    pub name: &'static str,
    /// Other names for the same option.
    pub aliases: &'static [&'static str],
    /// Its one-letter name.
    pub short: Option<char>,
    /// The value's kind.
    pub kind: Kind,
    /// The only values there are; empty where there are others.
    pub choices: &'static [&'static str],
    /// Its variables, the last one that is set winning. They override the command line in Paddle's launcher and stand
    /// for what it does not say in torch's.
    pub env: &'static [&'static str],
    /// The value when nothing is given; `None` when there is none.
    pub default: Option<&'static str>,
    /// One line of help.
    pub help: &'static str,
}

/// An option with neither other names nor a list of values.
pub const fn opt(
    name: &'static str,
    kind: Kind,
    env: &'static [&'static str],
    default: Option<&'static str>,
    help: &'static str,
) -> Opt {
    Opt { name, aliases: &[], short: None, kind, choices: &[], env, default, help }
}

use Kind::{Bool, Flag, Int, Seconds, Text};

/// Every option.
#[rustfmt::skip]
pub const OPTIONS: &[Opt] = &[
    opt("nproc_per_node", Int, &["PADDLE_NPROC_PER_NODE"], None, "Ranks on this node [default: one per device, else 1]"),
    Opt { aliases: &["gpus", "npus", "xpus"], ..opt("devices", Text, &["PADDLE_DEVICES"], None, "Devices to use: a comma list of visible ids, or GPU- or MIG- UUIDs; one named twice gets two ranks") },
    Opt { short: Some('m'), ..opt("module", Flag, &[], None, "The script is a module name, run as python -m does") },
    opt("no_python", Flag, &[], None, "The script is a program of its own, not run by Python"),
    opt("run_mode", Text, &["PADDLE_RUN_MODE"], None, "Kind of job: collective, ps (parameter servers), ps-heter (those with later stages) or rpc [default: by the other options, else collective]"),
    opt("job_id", Text, &["PADDLE_JOB_ID"], Some("default"), "The job's name, used in file names"),
    opt("dialect", Text, &["RLAUNCH_DIALECT"], Some("paddle"), "Frameworks whose variables the ranks get: paddle, torch, jax, joined by commas"),
    opt("auto_parallel_config", Text, &["PADDLE_AUTO_PARALLEL_CONFIG"], None, "JSON file of automatic parallelism: runs the script as its tuner, then as the job"),
    opt("auto_cluster_config", Bool, &["PADDLE_AUTO_CLUSTER"], None, "Passed to the ranks as PADDLE_AUTO_CLUSTER, 0 or 1"),
    opt("dry_run", Text, &[], None, "Print the plan as a table (or =json) and start nothing"),
    opt("zygote", Text, &["RLAUNCH_ZYGOTE"], None, "Import these modules once, in a process that the ranks are forked from: paddle, torch or any, joined by commas; auto among them: only where that is safe"),
    opt("log_dir", Text, &["PADDLE_LOG_DIR"], Some("log"), "Folder for the ranks' logs, workerlog.0 and so on"),
    opt("log_overwrite", Bool, &["PADDLE_LOG_OVERWRITE"], Some("false"), "Empty the logs first instead of appending to them, and forget the last job's attempts"),
    opt("log_max_size", Text, &["RLAUNCH_LOG_MAX_SIZE"], None, "Keep each rank's log about this short, such as 100M or 2G, by moving its older part to workerlog.N.1 and so on"),
    opt("log_backups", Int, &["RLAUNCH_LOG_BACKUPS"], Some("4"), "With --log_max_size: how many older parts of a log are kept"),
    opt("log_level", Text, &["PADDLE_LOG_LEVEL"], Some("INFO"), "What the launcher itself says: DEBUG, INFO, WARNING, ERROR or CRITICAL"),
    opt("console_ranks", Text, &["RLAUNCH_CONSOLE_RANKS"], Some("first"), "Ranks whose output is shown: numbers in the job joined by commas, first (of this node), all, or none"),
    opt("prefix", Text, &["RLAUNCH_PREFIX"], Some("auto"), "What stands before each line shown: none, rank, host or rank,host; auto is rank if several are shown"),
    opt("enable_gpu_log", Bool, &[], Some("true"), "Write what the job's GPUs are and, every 5 s, how busy they are to JOB_ID.gpu.log in the log folder"),
    opt("grace", Seconds, &["RLAUNCH_GRACE"], Some("30"), "Time between asking ranks to stop and killing them"),
    opt("notify_signals", Text, &["RLAUNCH_NOTIFY_SIGNALS"], None, "Signals passed on to the ranks, which never stop the job, beside USR1 and USR2; such as TERM,URG"),
    opt("cgroup", Bool, &["RLAUNCH_CGROUP"], Some("true"), "Start the ranks in a cgroup of their own where one can be made, so that one write ends them all"),
    opt("max_restart", Int, &["PADDLE_MAX_RESTART"], None, "How many times all ranks are started again after one has failed [default: 0]"),
    opt("restart_on", Text, &["RLAUNCH_RESTART_ON"], None, "Restart only after these exit codes and signals, such as 1,137,SIGKILL [default: any]"),
    opt("never_restart_on", Text, &["RLAUNCH_NEVER_RESTART_ON"], None, "Never restart after these exit codes and signals [default: none]"),
    opt("restart_delay", Seconds, &["RLAUNCH_RESTART_DELAY"], Some("1"), "Time before the first restart; twice as long before each further one, less a random half"),
    opt("restart_delay_max", Seconds, &["RLAUNCH_RESTART_DELAY_MAX"], Some("60"), "Longest time before a restart"),
    opt("restart_window", Seconds, &["RLAUNCH_RESTART_WINDOW"], None, "Count only the restarts within this time [default: count all]"),
    opt("same_failure_limit", Int, &["RLAUNCH_SAME_FAILURE_LIMIT"], None, "Do not restart once the same rank has failed in the same way this many times in a row [default: no limit]"),
    opt("ips", Text, &["PADDLE_IPS"], None, "The nodes' addresses, the same list on each of them"),
    opt("host", Text, &["POD_IP"], None, "This node's address; else found among those of its interfaces, 127.0.0.1 for a node alone"),
    opt("start_port", Int, &["PADDLE_START_PORT"], Some("6070"), "First port, with --ips"),
    opt("nnodes", Text, &["PADDLE_NNODES"], Some("1"), "Nodes: a number, or MIN:MAX, with which they may come and go; they meet at --master unless --ips names them"),
    opt("rank", Int, &["PADDLE_TRAINER_ID", "PADDLE_RANK"], Some("-1"), "This node's number, from 0 on; -1: any"),
    opt("master", Text, &["PADDLE_MASTER"], None, "Where nodes meet: ip:port, of a node that serves it, or etcd://ip:port,ip:port (etcds:// by TLS); with --nnodes and without it this node serves and says where"),
    opt("sort_ip", Bool, &["PADDLE_SORT_IP"], Some("false"), "Order nodes without numbers by address, not by name"),
    opt("elastic_level", Int, &["PADDLE_ELASTIC_LEVEL"], Some("-1"), "After a failed rank or a lost node: -1: the job ends; 0: that node goes and the others wait for another; 1: all start again with who is there, --max_restart times (3) after failures"),
    opt("elastic_timeout", Int, &["PADDLE_ELASTIC_TIMEOUT"], Some("30"), "With MIN:MAX nodes: seconds that more are waited for after the last one came or went"),
    opt("join_timeout", Seconds, &["RLAUNCH_JOIN_TIMEOUT"], None, "How long nodes are waited for in all [default: 10 times --elastic_timeout]"),
    opt("lease", Seconds, &["RLAUNCH_LEASE"], Some("10"), "After how long a silence a node is taken for lost, 2 or more"),
    opt("lost_timeout", Seconds, &["RLAUNCH_LOST_TIMEOUT"], Some("60"), "How long ranks run on while etcd does not answer, though other machines do; a node that nobody answers, or without the master, ends its ranks before --lease is over"),
    opt("job_key", Text, &["RLAUNCH_JOB_KEY"], None, "A secret that all nodes of the job have: the embedded master listens to nobody else; better given in the variable"),
    opt("etcd_ca", Text, &["RLAUNCH_ETCD_CA"], None, "File of the certificates that etcd's is signed by [default: those that the system trusts]"),
    opt("etcd_cert", Text, &["RLAUNCH_ETCD_CERT"], None, "File of this node's certificate for etcd"),
    opt("etcd_key", Text, &["RLAUNCH_ETCD_KEY"], None, "File of its key"),
    opt("etcd_user", Text, &["RLAUNCH_ETCD_USER"], None, "USER:PASSWORD for etcd; better given in the variable"),
    opt("servers", Text, &["PADDLE_SERVERS_ENDPOINTS"], None, "Their endpoints, joined by commas, the same list on each node"),
    opt("trainers", Text, &["PADDLE_TRAINERS_ENDPOINTS"], None, "Their trainers' endpoints, joined by commas; goes with --servers"),
    opt("server_num", Int, &["PADDLE_SERVER_NUM"], None, "How many on this node, with free ports [default: 1]"),
    opt("trainer_num", Int, &["PADDLE_TRAINER_NUM"], None, "Their trainers on this node [default: 1]"),
    opt("gloo_port", Int, &["PADDLE_GLOO_PORT"], Some("6767"), "Port of their rendezvous on the first server's node, with --servers"),
    opt("with_gloo", Text, &["PADDLE_WITH_GLOO"], Some("1"), "PADDLE_WITH_GLOO of the processes, 1: for trainers, 2: for all [older words, --legacy: 0]"),
    opt("workers", Text, &[], None, "Older words: workers' endpoints, joined by commas; ports from 6170 on may be left out"),
    opt("worker_num", Int, &[], None, "Older words: workers on this node"),
    opt("coordinators", Text, &[], None, "Older words: coordinators' endpoints, joined by commas"),
    opt("coordinator_num", Int, &[], None, "Older words: coordinators on this node"),
    opt("heter_workers", Text, &[], None, "Older words: endpoints of later stages' workers; commas within a stage, ; between stages"),
    opt("heter_worker_num", Text, &[], None, "Older words: workers of each later stage, joined by ;"),
    opt("heter_devices", Text, &[], None, "Older words: kind of device of each later stage, joined by ;"),
    opt("http_port", Int, &[], None, "Older words: port of their rendezvous on the first server's node [default: a free one, with several nodes --gloo_port]"),
    opt("legacy", Bool, &[], Some("false"), "Do as the older launcher, paddle.distributed.fleet.launch, did; its own options do so too"),
    opt("backend", Text, &[], None, "What ranks talk by: auto, gloo, nccl, bkcl or heter [default: PADDLE_DISTRI_BACKEND, else auto]"),
    Opt { aliases: &["selected_xpus"], ..opt("selected_gpus", Text, &[], None, "The same as --gpus") },
    opt("enable_auto_mapping", Bool, &[], None, "Place ranks by --rank_mapping_path, or let a process a machine work it out first"),
    opt("cluster_topo_path", Text, &[], None, "JSON file of the machines, for --enable_auto_mapping"),
    opt("rank_mapping_path", Text, &[], None, "JSON file of which rank runs where [default: PADDLE_RANK_MAPPING_PATH; else it is made first]"),
    opt("elastic_server", Text, &[], None, "Elastic jobs in older words: etcd's host:port [default: PADDLE_ELASTIC_SERVER]; goes with --job_id and --np"),
    opt("np", Text, &[], None, "Their nodes: a number, or MIN:MAX, with which they may come and go [default: PADDLE_ELASTIC_NP]"),
    opt("elastic_pre_hook", Text, &[], None, "A command for a shell before their ranks are started, each time"),
    opt("scale", Int, &[], None, "No effect, as on the older launcher"),
    opt("force", Text, &[], None, "No effect, as on the older launcher"),
    opt("auto_tuner_json", Text, &[], None, "Refused: rlaunch searches no configurations"),
];

/// The headings of the help, each with the option that it stands above.
pub const HEADINGS: &[(&str, &str)] = &[
    ("What runs", "nproc_per_node"),
    ("Logs and console", "log_dir"),
    ("Stops and restarts", "grace"),
    ("Several nodes", "ips"),
    ("Parameter servers", "servers"),
    ("The older launcher", "legacy"),
    ("Not in this version", "auto_tuner_json"),
];

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The table's default.
    Default,
    /// The command line.
    Flag,
    /// This variable.
    Env(&'static str),
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The text.
    pub text: String,
    /// Its source.
    pub source: Source,
}

/// Options whose values nobody is shown.
const SECRET: [&str; 3] = ["job_key", "job-key", "etcd_user"];

/// An option's value, as whoever watches may see it.
pub fn shown<'a>(name: &str, text: &'a str) -> &'a str {
    if SECRET.contains(&name) { "***" } else { text }
}

/// An option that a scheduler stands for.
pub type Filled = (&'static str, String, &'static str);

/// All options that have a value, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    map: BTreeMap<&'static str, Value>,
    /// Options that a variable overrides, with the variable and its value, in table order; nothing is said of secrets.
    pub overridden: Vec<(&'static str, &'static str, String)>,
}

/// The variables of a process, by name.
pub type Vars = BTreeMap<String, String>;

/// Merges the layers: a variable beats the command line, which beats the default.
pub fn merge(flags: &BTreeMap<&'static str, String>, vars: &Vars) -> Values {
    let mut values = Values::default();
    for opt in OPTIONS {
        let mut value = opt.default.map(|text| Value { text: text.into(), source: Source::Default });
        if let Some(text) = flags.get(opt.name) {
            value = Some(Value { text: text.clone(), source: Source::Flag });
        }
        for &var in opt.env {
            let Some(text) = vars.get(var) else { continue };
            // PADDLE_TRAINER_ID numbers this node only when it is a number of one.
            if var == "PADDLE_TRAINER_ID" && !text.parse::<i64>().is_ok_and(|rank| rank >= 0) {
                continue;
            }
            if var != "PADDLE_TRAINER_ID" && !SECRET.contains(&opt.name) {
                values.overridden.push((opt.name, var, text.clone()));
            }
            value = Some(Value { text: text.clone(), source: Source::Env(var) });
        }
        if let Some(value) = value {
            values.map.insert(opt.name, value);
        }
    }
    values
}

/// Merges the layers of another table: the command line beats a variable, which beats the default.
pub fn prefer_flags(table: &'static [Opt], flags: &BTreeMap<&'static str, String>, vars: &Vars) -> Values {
    let layered = |opt: &'static Opt| {
        let flag = || Some(Value { text: flags.get(opt.name)?.clone(), source: Source::Flag });
        let set = |var: &&'static str| Some(Value { text: vars.get(*var)?.clone(), source: Source::Env(var) });
        let default = || Some(Value { text: opt.default?.into(), source: Source::Default });
        flag().or_else(|| opt.env.iter().rev().find_map(set)).or_else(default).map(|value| (opt.name, value))
    };
    Values { map: table.iter().filter_map(layered).collect(), overridden: Vec::new() }
}

/// `y yes t true on 1` and `n no f false off 0`, in any case; `None` for anything else.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "y" | "yes" | "t" | "true" | "on" | "1" => Some(true),
        "n" | "no" | "f" | "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

impl Values {
    /// Takes what a scheduler's variables say of options that the user has not given.
    pub fn fill(&mut self, found: Vec<Filled>) {
        for (name, text, var) in found {
            if self.given(name).is_none() {
                self.map.insert(name, Value { text, source: Source::Env(var) });
            }
        }
    }

    /// The text of an option, if it has one.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.map.get(name).map(|v| v.text.as_str())
    }

    /// The text of an option that the user gave, on the command line or in a variable.
    pub fn given(&self, name: &str) -> Option<&str> {
        self.map.get(name).filter(|v| v.source != Source::Default).map(|v| v.text.as_str())
    }

    /// The text of an option whose value comes from the command line.
    pub fn on_command_line(&self, name: &str) -> Option<&str> {
        self.map.get(name).filter(|v| v.source == Source::Flag).map(|v| v.text.as_str())
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> Result<Option<i64>, SpecError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(self.error(name, "is not a whole number", "give digits only")),
        }
    }

    /// Seconds, not negative.
    pub fn seconds(&self, name: &str) -> Result<Option<f64>, SpecError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.trim().parse::<f64>() {
            Ok(s) if s.is_finite() && (0.0..=1e9).contains(&s) => Ok(Some(s)),
            _ => Err(self.error(name, "is not a number of seconds", "give 0 or more")),
        }
    }

    /// Yes or no.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, SpecError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match parse_bool(text) {
            Some(yes) => Ok(Some(yes)),
            None => {
                Err(self.error(name, "is neither true nor false", "give one of y yes t true on 1, n no f false off 0"))
            }
        }
    }

    /// An error about an option, naming it as the user gave it.
    pub fn error(&self, name: &str, why: &str, hint: &str) -> SpecError {
        let value = self.map.get(name);
        let field = match value.map(|v| &v.source) {
            Some(Source::Env(var)) => (*var).to_owned(),
            _ => format!("--{name}"),
        };
        SpecError::new(field, value.map_or("", |v| shown(name, &v.text)), why, hint)
    }

    /// All options with their values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.map.iter().map(|(name, value)| (*name, value))
    }
}
