//! The options of `python -m rlaunch.run`: one table, from which come the command line, the help, the variables and
//! the Python parser. Contract: the options of `torchrun`, of torch 2.15.

use crate::spec::options::Kind::{Flag, Int, Seconds, Text};
use crate::spec::options::{Opt, Values, Vars, opt, prefer_flags};
use std::collections::BTreeMap;

/// Signals that stop the job.
pub const SIGNALS: &str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

/// Every option. Those from `FIRST_OF_OURS` on are rlaunch's own.
#[rustfmt::skip]
pub const OPTIONS: &[Opt] = &[
    opt("nnodes", Text, &["PET_NNODES"], Some("1:1"), "Nodes of the job; MIN:MAX, but for a static rendezvous: they may come and go"),
    opt("nproc-per-node", Text, &["PET_NPROC_PER_NODE"], Some("1"), "Ranks on this node: a number, gpu or xpu for one per device, cpu for one per CPU, auto for the devices if there are any, else cpu"),
    Opt { short: Some('m'), ..opt("module", Flag, &["PET_MODULE"], None, "The script is a module name, run as python -m does") },
    opt("no-python", Flag, &["PET_NO_PYTHON"], None, "The script is a program of its own, not run by Python"),
    opt("run-path", Flag, &["PET_RUN_PATH"], None, "Run the script, given by its absolute path, as runpy.run_path does; --no-python has no effect then"),
    Opt { choices: &["spawn", "fork", "forkserver"], ..opt("start-method", Text, &["PET_START_METHOD"], Some("spawn"), "How --run-path starts ranks; accepted, each gets an interpreter of its own") },
    opt("role", Text, &["PET_ROLE"], Some("default"), "What the ranks are called, in ROLE_NAME and before their lines"),
    opt("virtual-local-rank", Flag, &["PET_VIRTUAL_LOCAL_RANK"], None, "LOCAL_RANK is 0 for all, and each rank sees its own device alone"),
    Opt { choices: &["node", "socket", "exclusive", "core-complex"], ..opt("numa-binding", Text, &[], None, "Bind each rank to the CPUs near its device: all of its node or socket, a share of the node's cores for itself, or a group of cores with one cache") },
    opt("rdzv-backend", Text, &["PET_RDZV_BACKEND"], Some("static"), "How nodes find each other: static (by --node-rank and --master-addr), c10d (at one of them), etcd or etcd-v2 (at an etcd, version 3)"),
    opt("rdzv-endpoint", Text, &["PET_RDZV_ENDPOINT"], Some(""), "Where they meet: host:port of node 0, of the node that is to serve, or of an etcd, several joined by commas [default: --master-addr:--master-port]"),
    opt("rdzv-id", Text, &["PET_RDZV_ID"], Some("none"), "The job's name, in TORCHELASTIC_RUN_ID and the log folder's name"),
    opt("rdzv-conf", Text, &["PET_RDZV_CONF"], Some(""), "More of it: KEY=VALUE joined by commas; timeout is how many seconds nodes wait for each other (900; but for a static rendezvous join_timeout, 600)"),
    opt("standalone", Flag, &["PET_STANDALONE"], None, "This node alone, on a free port, under a name of its own"),
    opt("node-rank", Int, &["PET_NODE_RANK"], Some("0"), "This node's number, from 0, for a static rendezvous"),
    opt("master-addr", Text, &["PET_MASTER_ADDR"], Some("127.0.0.1"), "Node 0's address, for a static rendezvous"),
    opt("master-port", Int, &["PET_MASTER_PORT"], None, "Node 0's port, for a static rendezvous [default: 29500; a free one on one node]"),
    opt("local-addr", Text, &["PET_LOCAL_ADDR"], None, "This node's address, as others reach it [default: localhost on one node]"),
    opt("log-dir", Text, &["PET_LOG_DIR"], None, "Folder for logs, in which each run makes one of its own; /dev/null for none [default: a temporary one]"),
    Opt { short: Some('r'), ..opt("redirects", Text, &["PET_REDIRECTS"], Some("0"), "Streams that go to a log only: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank: 0:3,1:2") },
    Opt { short: Some('t'), ..opt("tee", Text, &["PET_TEE"], Some("0"), "Streams that go to a log and to the console, in the same form") },
    opt("log-line-prefix-template", Text, &["PET_LOG_LINE_PREFIX_TEMPLATE"], Some(""), "What stands before lines of --tee, of ${role_name} ${local_rank} ${rank} ${hostname} [default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else [${role_name}${local_rank}]:]"),
    opt("local-ranks-filter", Text, &["PET_LOCAL_RANKS_FILTER"], Some(""), "Show these local ranks on the console alone: numbers joined by commas"),
    opt("duplicate-stdout-filters", Text, &["PET_DUPLICATE_STDOUT_FILTERS"], None, "Copy lines of --tee that hold one of these texts to filtered_stdout.log; joined by commas, ,, for a comma"),
    opt("duplicate-stderr-filters", Text, &["PET_DUPLICATE_STDERR_FILTERS"], None, "The same for stderr and filtered_stderr.log"),
    opt("logs-specs", Text, &[], None, "Refused but for none: plug-ins for logs are Python code of torch"),
    opt("event-log-handler", Text, &["PET_EVENT_LOG_HANDLER"], Some("null"), "console: what happens as lines of JSON on stderr; null and dynamic_rendezvous: nothing"),
    opt("max-restarts", Int, &["PET_MAX_RESTARTS"], Some("0"), "How many times all ranks are started again after one has failed"),
    opt("monitor-interval", Seconds, &["PET_MONITOR_INTERVAL"], Some("0.1"), "Accepted; rlaunch sees the end of a rank at once"),
    opt("shutdown-timeout", Int, &["PET_SHUTDOWN_TIMEOUT"], None, "Seconds between asking ranks to stop and killing them, whatever the reason [default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30]"),
    opt("signals-to-handle", Text, &["PET_SIGNALS_TO_HANDLE"], Some(SIGNALS), "Signals that stop the job, and are passed on to the ranks"),
    Opt { choices: &["bash", "zsh", "fish"], ..opt("print-completion", Text, &[], None, "Print what completes this command line in bash, zsh or fish") },
    opt("dialect", Text, &["RLAUNCH_DIALECT"], Some("torch"), "Frameworks whose variables the ranks get: paddle, torch, jax, joined by commas"),
    opt("pass-local-rank", Flag, &[], None, "Give the script --local-rank=N first, as torch.distributed.launch does"),
    opt("omp-compat", Flag, &["RLAUNCH_OMP_COMPAT"], None, "OMP_NUM_THREADS is 1 where there are several ranks, not this node's CPUs divided among them"),
    opt("exit-code-compat", Flag, &["RLAUNCH_EXIT_CODE_COMPAT"], None, "End with 1 whenever the job failed or was stopped"),
    opt("zygote", Text, &["RLAUNCH_ZYGOTE"], None, "Import these modules once, in a process that the ranks are forked from: torch, paddle or any, joined by commas; auto among them: only where that is safe"),
    opt("bind-report", Flag, &["RLAUNCH_BIND_REPORT"], None, "Say which CPUs each rank was bound to"),
    opt("job-key", Text, &["RLAUNCH_JOB_KEY"], None, "A secret that all nodes of the job have, for c10d: its master listens to nobody else; better given in the variable"),
    Opt { choices: &["none", "stderr"], ..opt("capture", Text, &["RLAUNCH_CAPTURE"], Some("stderr"), "What is read of the ranks' output to explain a failure, beside what goes to logs") },
    opt("dry-run", Text, &[], None, "Print the plan as a table (or =json) and start nothing"),
];

/// The first of rlaunch's own options.
pub const FIRST_OF_OURS: &str = "dialect";

/// Whether torchrun has this option. A name that is cut short stands for one of these first.
pub fn is_torchs(name: &str) -> bool {
    OPTIONS.iter().take_while(|opt| opt.name != FIRST_OF_OURS).any(|opt| opt.name == name)
}

/// The headings of the help, each with the option that it stands above.
pub const HEADINGS: &[(&str, &str)] = &[
    ("What runs", "nnodes"),
    ("Rendezvous", "rdzv-backend"),
    ("Logs and console", "log-dir"),
    ("Stops and restarts", "max-restarts"),
    ("Completion", "print-completion"),
    ("Not in torchrun", FIRST_OF_OURS),
];

/// Merges the layers. `from_pet`: whether the PET_ variables stand for what the command line does not say.
pub fn merge(flags: &BTreeMap<&'static str, String>, vars: &Vars, from_pet: bool) -> Values {
    let seen = vars.iter().filter(|(name, _)| from_pet || !name.starts_with("PET_"));
    prefer_flags(OPTIONS, flags, &seen.map(|(name, value)| (name.clone(), value.clone())).collect())
}
