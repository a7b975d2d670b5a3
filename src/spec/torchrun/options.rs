//! The option table of `python -m rlaunch.run`. The command line, the help, the variables and the Python parser are built
//! from it. Contract: the options of `torchrun`, of torch 2.15.

use crate::spec::options::OptKind::{Flag, Int, Seconds, Text};
use crate::spec::options::{EnvVars, Opt, OptGroup, OptValues, group, opt, prefer_flags};
use std::collections::BTreeMap;

/// The default signals that stop the job.
pub const SIGNALS: &str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

/// All options. Those from `FIRST_OF_OURS` on are rlaunch's own.
#[rustfmt::skip]
pub const OPTIONS: &[Opt] = &[
    opt("nnodes", Text, &["PET_NNODES"], Some("1:1"), "Number of nodes, or MIN:MAX for an elastic job (not with a static rendezvous)"),
    opt("nproc-per-node", Text, &["PET_NPROC_PER_NODE"], Some("1"), "Number of ranks on this node: a number, gpu or xpu for one per device, cpu for one per CPU, auto for one per device if there are any, else per CPU"),
    Opt { short: Some('m'), ..opt("module", Flag, &["PET_MODULE"], None, "Run the script as a module, like python -m") },
    opt("no-python", Flag, &["PET_NO_PYTHON"], None, "Run the script as a program, without Python"),
    opt("run-path", Flag, &["PET_RUN_PATH"], None, "Run the script, given by its absolute path, with runpy.run_path; --no-python then has no effect"),
    Opt { choices: &["spawn", "fork", "forkserver"], ..opt("start-method", Text, &["PET_START_METHOD"], Some("spawn"), "Start method for --run-path; accepted without effect: each rank gets an interpreter of its own") },
    opt("role", Text, &["PET_ROLE"], Some("default"), "Name of the ranks' role, for ROLE_NAME and the prefix of their lines"),
    opt("virtual-local-rank", Flag, &["PET_VIRTUAL_LOCAL_RANK"], None, "Set LOCAL_RANK to 0 in every rank and show it only its own device"),
    Opt { choices: &["node", "socket", "exclusive", "core-complex"], ..opt("numa-binding", Text, &[], None, "Bind each rank to CPUs near its device: all of the device's NUMA node or socket, an exclusive share of the node's cores, or a core complex with a shared cache") },
    opt("rdzv-backend", Text, &["PET_RDZV_BACKEND"], Some("static"), "Rendezvous backend: static (by --node-rank and --master-addr), c10d (served by one of the nodes), etcd or etcd-v2 (at etcd version 3)"),
    opt("rdzv-endpoint", Text, &["PET_RDZV_ENDPOINT"], Some(""), "Address of the rendezvous: host:port of node 0, of the node that serves it, or of etcd (several comma-separated) [default: --master-addr:--master-port]"),
    opt("rdzv-id", Text, &["PET_RDZV_ID"], Some("none"), "Name of the job, for TORCHELASTIC_RUN_ID and the name of the log folder. Nodes with the same name join each other: at etcd it has to be unique"),
    opt("rdzv-conf", Text, &["PET_RDZV_CONF"], Some(""), "Comma-separated KEY=VALUE settings of the rendezvous; timeout is the seconds that nodes wait for each other (900; join_timeout, 600, unless static)"),
    opt("standalone", Flag, &["PET_STANDALONE"], None, "Run on this node alone, with a free port and a generated job name"),
    opt("node-rank", Int, &["PET_NODE_RANK"], Some("0"), "Number of this node, from 0, for a static rendezvous"),
    opt("master-addr", Text, &["PET_MASTER_ADDR"], Some("127.0.0.1"), "Address of node 0, for a static rendezvous"),
    opt("master-port", Int, &["PET_MASTER_PORT"], None, "Port of node 0, for a static rendezvous [default: 29500; a free port for a single node]"),
    opt("local-addr", Text, &["PET_LOCAL_ADDR"], None, "Address of this node that other nodes can reach [default: localhost for a single node]"),
    opt("log-dir", Text, &["PET_LOG_DIR"], None, "Folder in which each run creates its own log folder; /dev/null for no logs [default: a temporary one]"),
    Opt { short: Some('r'), ..opt("redirects", Text, &["PET_REDIRECTS"], Some("0"), "Streams to write only to log files: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank: 0:3,1:2") },
    Opt { short: Some('t'), ..opt("tee", Text, &["PET_TEE"], Some("0"), "Streams to write to log files and to the console, in the form of --redirects") },
    opt("log-line-prefix-template", Text, &["PET_LOG_LINE_PREFIX_TEMPLATE"], Some(""), "Prefix of lines of --tee, from ${role_name} ${local_rank} ${rank} ${hostname} [default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else [${role_name}${local_rank}]:]"),
    opt("local-ranks-filter", Text, &["PET_LOCAL_RANKS_FILTER"], Some(""), "Comma-separated local ranks whose output the console shows [default: all]"),
    opt("duplicate-stdout-filters", Text, &["PET_DUPLICATE_STDOUT_FILTERS"], None, "Comma-separated texts (,, is a comma); lines of --tee that contain one are copied to filtered_stdout.log"),
    opt("duplicate-stderr-filters", Text, &["PET_DUPLICATE_STDERR_FILTERS"], None, "Same for stderr and filtered_stderr.log"),
    opt("logs-specs", Text, &[], None, "Not supported: plug-ins for logs are Python code of torch"),
    opt("event-log-handler", Text, &["PET_EVENT_LOG_HANDLER"], Some("null"), "Handler of events: console writes them to stderr as lines of JSON; null and dynamic_rendezvous discard them"),
    opt("max-restarts", Int, &["PET_MAX_RESTARTS"], Some("0"), "Number of times that all ranks are restarted after a failure"),
    opt("monitor-interval", Seconds, &["PET_MONITOR_INTERVAL"], Some("0.1"), "Seconds between checks of the ranks; accepted without effect: rlaunch sees the exit of a rank at once"),
    opt("shutdown-timeout", Int, &["PET_SHUTDOWN_TIMEOUT"], None, "Seconds between the stop signal and SIGKILL when ranks are stopped (minimum 0) [default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30]"),
    opt("signals-to-handle", Text, &["PET_SIGNALS_TO_HANDLE"], Some(SIGNALS), "Comma-separated signals that stop the job and are forwarded to the ranks"),
    Opt { choices: &["bash", "zsh", "fish"], ..opt("print-completion", Text, &[], None, "Print the completion script for bash, zsh or fish") },
    opt("frameworks", Text, &["RLAUNCH_FRAMEWORKS"], Some("torch"), "Comma-separated frameworks whose variables the ranks receive: paddle, torch, jax"),
    opt("pass-local-rank", Flag, &[], None, "Pass --local-rank=N as the script's first argument, as torch.distributed.launch does"),
    opt("omp-compat", Flag, &["RLAUNCH_OMP_COMPAT"], None, "Set OMP_NUM_THREADS to 1 for several ranks without a message"),
    opt("share-cpus", Flag, &["RLAUNCH_SHARE_CPUS"], None, "Set OMP_NUM_THREADS to the allowed CPUs divided by the ranks of this node instead of 1, unless it is already set"),
    opt("exit-code-compat", Flag, &["RLAUNCH_EXIT_CODE_COMPAT"], None, "Exit with status 1 whenever the job fails or is stopped"),
    opt("preload", Text, &["RLAUNCH_PRELOAD"], None, "Comma-separated modules that one process imports before it forks all ranks, such as torch. With auto among them, ranks import for themselves if a fork would not be safe"),
    opt("no-sweep", Text, &["RLAUNCH_NO_SWEEP"], None, "Comma-separated names of detached processes, as in /proc/PID/comm, that a rank may leave running; a longer name is compared by its first 15 bytes"),
    opt("bind-report", Flag, &["RLAUNCH_BIND_REPORT"], None, "Print the CPUs that each rank is bound to"),
    opt("dry-run", Text, &[], None, "Print the plan as a table, or with =json as JSON, and start nothing"),
    Opt { choices: &["none", "stderr"], ..opt("capture", Text, &["RLAUNCH_CAPTURE"], Some("stderr"), "Output of ranks that passes through the launcher, in addition to log files: stderr, and stdout where that is a pipe or a terminal; or none") },
    Opt { choices: &["auto", "never"], ..opt("pty", Text, &["RLAUNCH_PTY"], Some("auto"), "Terminal for captured streams, of the launcher's window size: auto if the launcher's stream is one, or never") },
    opt("console-drain-timeout", Seconds, &["RLAUNCH_CONSOLE_DRAIN_TIMEOUT"], Some("30"), "Seconds that the console may take, once all ranks have ended, for output that it has not shown yet (minimum 0). A console that takes nothing is given up after 5 s, and 0.5 s after a stop"),
    opt("sample", Seconds, &["RLAUNCH_SAMPLE"], Some("0"), "Seconds between samples of what each rank uses (CPU, memory, processes, last output, GPU), written to rlaunch/events.jsonl in the log folder (minimum 0.1; 0: none)"),
    opt("metrics-file", Text, &["RLAUNCH_METRICS_FILE"], None, "File with the job's state and what each rank uses, in Prometheus's text format for node_exporter's textfile collector: written every 15 s, or every --sample seconds, and when the state changes"),
    opt("hang-timeout", Seconds, &["RLAUNCH_HANG_TIMEOUT"], Some("600"), "Seconds without output of any rank before the launcher watches their Python stacks for 5 s. If none moves, it reports where each rank is and which one the others wait for (0: never)"),
    Opt { choices: &["report", "abort"], ..opt("on-hang", Text, &["RLAUNCH_ON_HANG"], Some("report"), "What follows when a job hangs: report, or abort. With abort, the rank that the others wait for gets SIGABRT if it is idle (all ranks if none stands out). The job then fails, or restarts as after any failure") },
    opt("exit-timeout", Seconds, &["RLAUNCH_EXIT_TIMEOUT"], Some("60"), "Seconds that a rank may take to exit after an exception, or a status other than 0, has ended its program. If its Python stacks do not move then, it gets SIGABRT (after ten times as long if it uses a CPU), and the job fails with that exception (0: any time)"),
    opt("straggler-timeout", Seconds, &["RLAUNCH_STRAGGLER_TIMEOUT"], Some("0"), "Seconds that the other ranks of a node may run after its first one has exited with 0. Those that still run then get SIGABRT, and SIGKILL after the grace period. The job then fails, or restarts as after any failure (0: any time). Parameter servers do not count"),
    opt("preempt-file", Text, &["RLAUNCH_PREEMPT_FILE"], None, "File whose appearance is a notice of preemption: ranks that call rlaunch.should_stop stop at a common step. It is looked for once a second"),
    opt("preempt-time", Seconds, &["RLAUNCH_PREEMPT_TIME"], Some("60"), "Seconds from a notice of preemption until ranks that still run get SIGTERM (minimum 0). The notice of the end of a Slurm job comes this long before. After a notice by SIGTERM, the grace period counts instead"),
    opt("requeue", Int, &["RLAUNCH_REQUEUE"], Some("0"), "Number of times that Slurm is asked to queue the job again after it was preempted, by SLURM_RESTART_COUNT (0: never)"),
    opt("min-round-time", Seconds, &["RLAUNCH_MIN_ROUND_TIME"], Some("60"), "Seconds that all ranks of an elastic job run at least before they are stopped for nodes that join later (minimum 0). Nodes that join meanwhile join together"),
    opt("node-failure-limit", Int, &["RLAUNCH_NODE_FAILURE_LIMIT"], Some("3"), "Number of failures in a row by ranks of one node after which an elastic job continues without that node, if enough others are left (0: never). These failures do not count towards --max-restarts"),
    opt("spares", Int, &["RLAUNCH_SPARES"], None, "Number of nodes beyond the maximum that wait to replace a lost one, with their --preload done (minimum 0); further ones are refused. The same on all nodes [default: any number waits]"),
    opt("require-same", Text, &["RLAUNCH_REQUIRE_SAME"], None, "Comma-separated: python, framework, git, driver. With c10d and etcd, a node that differs from the first one in one of them is refused before any rank runs. For framework, the versions of torch, Paddle and jax count; for git, the commit of the script's folder; for driver, NVIDIA's. The same on all nodes [default: none; a message names differences]"),
    opt("job-secret", Text, &["RLAUNCH_JOB_SECRET"], None, "Shared secret of a c10d job; the embedded master rejects nodes that cannot prove it. Prefer the variable: other users can read command lines"),
    opt("require-secret", Flag, &["RLAUNCH_REQUIRE_SECRET"], None, "Refuse a job of several nodes that strangers could join: with a static rendezvous, with c10d without a secret, at etcd without a user or a certificate"),
    Opt { choices: &["nodes", "any"], ..opt("store-peers", Text, &["RLAUNCH_STORE_PEERS"], Some("nodes"), "Addresses from which the store of torch's ranks takes connections, with c10d and etcd: nodes for those of the round's nodes alone; any where ranks are behind address translation") },
    opt("etcd-user", Text, &["RLAUNCH_ETCD_USER"], None, "USER:PASSWORD for etcd. Prefer the variable: other users can read command lines, and the ranks can read PET_RDZV_CONF"),
];

/// The first of rlaunch's own options.
pub const FIRST_OF_OURS: &str = "frameworks";

/// Whether torchrun has this option. An abbreviation means one of these first.
pub fn is_torchs(name: &str) -> bool {
    OPTIONS.iter().take_while(|opt| opt.name != FIRST_OF_OURS).any(|opt| opt.name == name)
}

/// The groups of the help.
pub const GROUPS: &[OptGroup] = &[
    group("job", "Job and script", "nnodes"),
    group("nodes", "Rendezvous of the nodes", "rdzv-backend"),
    group("logs", "Logs and console", "log-dir"),
    group("restarts", "Stopping and restarting", "max-restarts"),
    group("job", "Completion", "print-completion"),
    group("job", "Job and script, not in torchrun", FIRST_OF_OURS),
    group("logs", "Logs, console and metrics, not in torchrun", "capture"),
    group("hangs", "Hangs, not in torchrun", "hang-timeout"),
    group("restarts", "Stopping and restarting, not in torchrun", "preempt-file"),
    group("security", "Security, not in torchrun", "job-secret"),
];

/// Merges the layers: the command line overrides a variable, which overrides the default. `from_pet`: whether PET_
/// variables count.
pub fn merge(flags: &BTreeMap<&'static str, String>, vars: &EnvVars, from_pet: bool) -> OptValues {
    let seen = vars.iter().filter(|(name, _)| from_pet || !name.starts_with("PET_"));
    prefer_flags(OPTIONS, flags, &seen.map(|(name, value)| (name.clone(), value.clone())).collect())
}
