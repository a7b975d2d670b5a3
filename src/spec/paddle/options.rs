//! The option table of `python -m rlaunch`. The command line, the help, the variables and the docs are built from it.
//! Contract: the options of `paddle.distributed.launch`.

use crate::spec::options::OptKind::{Bool, Flag, Int, Seconds, Text};
use crate::spec::options::{EnvVars, Opt, OptGroup, OptValues, group, opt, prefer_env};
use std::collections::BTreeMap;

/// All options.
#[rustfmt::skip]
pub const OPTIONS: &[Opt] = &[
    opt("nproc_per_node", Int, &["PADDLE_NPROC_PER_NODE"], None, "Number of ranks on this node [default: one per device, else 1]"),
    Opt { aliases: &["gpus", "npus", "xpus"], ..opt("devices", Text, &["PADDLE_DEVICES"], None, "Comma-separated ids of visible devices, or UUIDs (GPU-..., MIG-...). A device listed twice gets two ranks") },
    Opt { short: Some('m'), ..opt("module", Flag, &[], None, "Run the script as a module, like python -m") },
    opt("no_python", Flag, &[], None, "Run the script as a program, without Python"),
    opt("run_mode", Text, &["PADDLE_RUN_MODE"], None, "Kind of job: collective, ps (parameter servers), ps-heter (parameter servers with later stages) or rpc [default: inferred from the other options, else collective]"),
    opt("job_id", Text, &["PADDLE_JOB_ID"], Some("default"), "Name of the job, used at the rendezvous and in file names"),
    opt("frameworks", Text, &["RLAUNCH_FRAMEWORKS"], Some("paddle"), "Comma-separated frameworks whose variables the ranks receive: paddle, torch, jax"),
    opt("auto_parallel_config", Text, &["PADDLE_AUTO_PARALLEL_CONFIG"], None, "JSON file of automatic parallelism; the tuner runs first, then the job"),
    opt("auto_cluster_config", Bool, &["PADDLE_AUTO_CLUSTER"], None, "Value of PADDLE_AUTO_CLUSTER for the ranks, written as 0 or 1"),
    opt("dry_run", Text, &[], None, "Print the plan as a table, or with =json as JSON, and start nothing"),
    opt("preload", Text, &["RLAUNCH_PRELOAD"], None, "Comma-separated modules that one process imports before it forks all ranks, such as paddle. With auto among them, ranks import for themselves if a fork would not be safe"),
    opt("log_dir", Text, &["PADDLE_LOG_DIR"], Some("log"), "Folder of the ranks' log files, workerlog.0 and so on"),
    opt("log_overwrite", Bool, &["PADDLE_LOG_OVERWRITE"], Some("false"), "Truncate the log files instead of appending, and remove the logs of earlier attempts"),
    opt("log_max_size", Text, &["RLAUNCH_LOG_MAX_SIZE"], None, "Approximate maximum size of each rank's log, such as 100M or 2G (minimum 1M). Older parts are moved to workerlog.N.1 and so on [default: no limit]"),
    opt("log_backups", Int, &["RLAUNCH_LOG_BACKUPS"], Some("4"), "Number of older parts of each log to keep with --log_max_size (0 to 1000)"),
    opt("log_level", Text, &["PADDLE_LOG_LEVEL"], Some("INFO"), "Lowest level of the launcher's messages: DEBUG, INFO, WARNING, ERROR or CRITICAL"),
    opt("console_ranks", Text, &["RLAUNCH_CONSOLE_RANKS"], Some("first"), "Ranks whose output the console shows: comma-separated global ranks, first (of this node), all or none"),
    opt("log_prefix", Text, &["RLAUNCH_LOG_PREFIX"], Some("auto"), "Prefix of each line that the console shows: none, rank, host or rank,host; auto is rank if several ranks are shown, else none"),
    opt("pty", Text, &["RLAUNCH_PTY"], Some("auto"), "Terminal for a single rank that the console shows without a prefix, of the launcher's window size: auto if the launcher's stdout is one, or never"),
    opt("console_drain_timeout", Seconds, &["RLAUNCH_CONSOLE_DRAIN_TIMEOUT"], Some("30"), "Seconds that the console may take, once all ranks have ended, for output that it has not shown yet (minimum 0). A console that takes nothing is given up after 5 s, and 0.5 s after a stop"),
    opt("sample", Seconds, &["RLAUNCH_SAMPLE"], Some("0"), "Seconds between samples of what each rank uses (CPU, memory, processes, last output, GPU), written to LOG_DIR/rlaunch/events.jsonl (minimum 0.1; 0: none)"),
    opt("metrics_file", Text, &["RLAUNCH_METRICS_FILE"], None, "File with the job's state and what each rank uses, in Prometheus's text format for node_exporter's textfile collector: written every 15 s, or every --sample seconds, and when the state changes"),
    opt("enable_gpu_log", Bool, &[], Some("true"), "Write the job's GPUs and, every 5 s, their utilization to JOB_ID.gpu.log in the log folder"),
    opt("hang_timeout", Seconds, &["RLAUNCH_HANG_TIMEOUT"], Some("600"), "Seconds without output of any rank before the launcher watches their Python stacks for 5 s. If none moves, it reports where each rank is and which one the others wait for (0: never)"),
    opt("on_hang", Text, &["RLAUNCH_ON_HANG"], Some("report"), "What follows when a job hangs: report, or abort. With abort, the rank that the others wait for gets SIGABRT if it is idle (all ranks if none stands out). The job then fails, or restarts as after any failure"),
    opt("exit_timeout", Seconds, &["RLAUNCH_EXIT_TIMEOUT"], Some("60"), "Seconds that a rank may take to exit after an exception, or a status other than 0, has ended its program. If its Python stacks do not move then, it gets SIGABRT (after ten times as long if it uses a CPU), and the job fails with that exception (0: any time)"),
    opt("straggler_timeout", Seconds, &["RLAUNCH_STRAGGLER_TIMEOUT"], Some("0"), "Seconds that the other ranks of a node may run after its first one has exited with 0. Those that still run then get SIGABRT, and SIGKILL after the grace period. The job then fails, or restarts as after any failure (0: any time). Parameter servers do not count"),
    opt("grace_period", Seconds, &["RLAUNCH_GRACE_PERIOD"], Some("30"), "Seconds between SIGTERM and SIGKILL when ranks are stopped (minimum 0)"),
    opt("forward_signals", Text, &["RLAUNCH_FORWARD_SIGNALS"], None, "Comma-separated signals that are forwarded to the ranks and do not stop the job, such as TERM,URG; USR1 and USR2 always are"),
    opt("preempt_file", Text, &["RLAUNCH_PREEMPT_FILE"], None, "File whose appearance is a notice of preemption: ranks that call rlaunch.should_stop stop at a common step. It is looked for once a second"),
    opt("preempt_time", Seconds, &["RLAUNCH_PREEMPT_TIME"], Some("60"), "Seconds from a notice of preemption until ranks that still run get SIGTERM (minimum 0). The notice of the end of a Slurm job comes this long before. After a notice by SIGTERM, the grace period counts instead"),
    opt("requeue", Int, &["RLAUNCH_REQUEUE"], Some("0"), "Number of times that Slurm is asked to queue the job again after it was preempted, by SLURM_RESTART_COUNT (0: never)"),
    opt("cgroup", Bool, &["RLAUNCH_CGROUP"], Some("true"), "Run the ranks in a cgroup of their own, if one can be made, so that one write kills all their processes"),
    opt("no_sweep", Text, &["RLAUNCH_NO_SWEEP"], None, "Comma-separated names of detached processes, as in /proc/PID/comm, that a rank may leave running; a longer name is compared by its first 15 bytes"),
    opt("max_restart", Int, &["PADDLE_MAX_RESTART"], None, "Number of times that all ranks are restarted after a failure [default: 0]"),
    opt("restart_on", Text, &["RLAUNCH_RESTART_ON"], None, "Comma-separated exit codes and signals after which a restart is allowed, such as 1,137,SIGKILL [default: any]"),
    opt("never_restart_on", Text, &["RLAUNCH_NEVER_RESTART_ON"], None, "Comma-separated exit codes and signals after which no restart is allowed [default: none]"),
    opt("restart_delay", Seconds, &["RLAUNCH_RESTART_DELAY"], Some("1"), "Seconds before the first restart; doubled before each further one, minus up to half at random"),
    opt("restart_delay_max", Seconds, &["RLAUNCH_RESTART_DELAY_MAX"], Some("60"), "Maximum seconds before a restart"),
    opt("restart_window", Seconds, &["RLAUNCH_RESTART_WINDOW"], None, "Seconds after which a restart no longer counts towards --max_restart [default: all count]"),
    opt("same_failure_limit", Int, &["RLAUNCH_SAME_FAILURE_LIMIT"], None, "Number of identical failures of one rank in a row after which there is no restart (minimum 1) [default: no limit]"),
    opt("ips", Text, &["PADDLE_IPS"], None, "Comma-separated addresses of all nodes, the same list on each node"),
    opt("host", Text, &["POD_IP"], None, "Address of this node [default: found among those of its interfaces; 127.0.0.1 for a single node]"),
    opt("start_port", Int, &["PADDLE_START_PORT"], Some("6070"), "First port of the ranks on each node, with --ips"),
    opt("nnodes", Text, &["PADDLE_NNODES"], Some("1"), "Number of nodes, or MIN:MAX for an elastic job. Nodes rendezvous at --master unless --ips lists them"),
    opt("rank", Int, &["PADDLE_TRAINER_ID", "PADDLE_RANK"], Some("-1"), "Number of this node, from 0; -1: any"),
    opt("master", Text, &["PADDLE_MASTER"], None, "Address of the rendezvous: ip:port of the node that serves the master, or etcd://ip:port,ip:port (etcds:// with TLS) [default: this node serves the master and prints its address]"),
    opt("sort_ip", Bool, &["PADDLE_SORT_IP"], Some("false"), "Number nodes without --rank by their addresses instead of their names"),
    opt("elastic_level", Int, &["PADDLE_ELASTIC_LEVEL"], Some("-1"), "Reaction to a failed rank or a lost node. With -1, a failed rank ends the job, or restarts all ranks with --max_restart. A lost node ends the job, or with MIN:MAX nodes the others continue. With 0, the failed or lost node leaves, and the others wait for a replacement. With 1, all ranks restart on the nodes that are left, after failures at most --max_restart times (default 3)"),
    opt("elastic_timeout", Int, &["PADDLE_ELASTIC_TIMEOUT"], Some("30"), "Seconds to wait for more nodes after the last one has joined or left, with MIN:MAX nodes"),
    opt("min_round_time", Seconds, &["RLAUNCH_MIN_ROUND_TIME"], Some("60"), "Seconds that all ranks of an elastic job run at least before they are stopped for nodes that join later (minimum 0). Nodes that join meanwhile join together"),
    opt("node_failure_limit", Int, &["RLAUNCH_NODE_FAILURE_LIMIT"], Some("3"), "Number of failures in a row by ranks of one node after which an elastic job continues without that node, if enough others are left (0: never). These failures do not count towards --max_restart"),
    opt("spares", Int, &["RLAUNCH_SPARES"], None, "Number of nodes beyond the maximum that wait to replace a lost one, with their --preload done (minimum 0); further ones are refused. The same on all nodes [default: any number waits]"),
    opt("require_same", Text, &["RLAUNCH_REQUIRE_SAME"], None, "Comma-separated: python, framework, git, driver. A node that differs from the first one in one of them is refused before any rank runs. For framework, the versions of torch, Paddle and jax count; for git, the commit of the script's folder; for driver, NVIDIA's. The same on all nodes [default: none; a message names differences]"),
    opt("join_timeout", Seconds, &["RLAUNCH_JOIN_TIMEOUT"], None, "Seconds after which an incomplete rendezvous fails (minimum 1; well above the round-trip time to the backend) [default: 10 times --elastic_timeout]"),
    opt("heartbeat_timeout", Seconds, &["RLAUNCH_HEARTBEAT_TIMEOUT"], Some("10"), "Seconds without a heartbeat before a node is considered lost (minimum 2)"),
    opt("etcd_loss_timeout", Seconds, &["RLAUNCH_ETCD_LOSS_TIMEOUT"], None, "Seconds that ranks keep running while etcd does not answer. In a job that continues after the loss of a node they are added to 0.8 of --heartbeat_timeout, and a lost node is noticed that much later. The same on all nodes [default: 0 in such a job, else 60]"),
    opt("job_secret", Text, &["RLAUNCH_JOB_SECRET"], None, "Shared secret of the job; the embedded master rejects nodes that cannot prove it. Prefer the variable: other users can read command lines"),
    opt("require_secret", Bool, &["RLAUNCH_REQUIRE_SECRET"], Some("false"), "Refuse a job of several nodes that strangers could join: at the embedded master without a secret, at etcd without a user or a certificate"),
    opt("etcd_ca", Text, &["RLAUNCH_ETCD_CA"], None, "File of the CA certificates that verify etcd's [default: those that the system trusts]"),
    opt("etcd_cert", Text, &["RLAUNCH_ETCD_CERT"], None, "File of this node's certificate for etcd; requires --etcd_key"),
    opt("etcd_key", Text, &["RLAUNCH_ETCD_KEY"], None, "File of the private key of --etcd_cert"),
    opt("etcd_user", Text, &["RLAUNCH_ETCD_USER"], None, "USER:PASSWORD for etcd. Prefer the variable: other users can read command lines"),
    opt("servers", Text, &["PADDLE_SERVERS_ENDPOINTS"], None, "Comma-separated endpoints of the servers, the same list on each node; requires --trainers"),
    opt("trainers", Text, &["PADDLE_TRAINERS_ENDPOINTS"], None, "Comma-separated endpoints of the trainers; requires --servers"),
    opt("server_num", Int, &["PADDLE_SERVER_NUM"], None, "Number of servers on this node, on free ports. With --nnodes, the nodes tell each other theirs at --master [default: 1]"),
    opt("trainer_num", Int, &["PADDLE_TRAINER_NUM"], None, "Number of trainers on this node, on free ports; with --nnodes as --server_num [default: 1]"),
    opt("server_timeout", Seconds, &["RLAUNCH_SERVER_TIMEOUT"], None, "Seconds that servers may run after this node's trainers have exited; then they receive SIGTERM (0: at once) [default: no limit; for the legacy launcher 0]"),
    opt("gloo_port", Int, &["PADDLE_GLOO_PORT"], Some("6767"), "Port of the servers' and trainers' rendezvous on the first server's node, with --servers"),
    opt("with_gloo", Text, &["PADDLE_WITH_GLOO"], Some("1"), "Value of PADDLE_WITH_GLOO: 1 for trainers, 2 for all processes [default for the legacy launcher: 0]"),
    opt("workers", Text, &[], None, "Legacy: comma-separated endpoints of the workers; without ports, ports start at 6170"),
    opt("worker_num", Int, &[], None, "Legacy: number of workers on this node"),
    opt("coordinators", Text, &[], None, "Legacy: comma-separated endpoints of the coordinators"),
    opt("coordinator_num", Int, &[], None, "Legacy: number of coordinators on this node"),
    opt("heter_workers", Text, &[], None, "Legacy: endpoints of the workers of later stages, with commas within a stage and ; between stages"),
    opt("heter_worker_num", Text, &[], None, "Legacy: number of workers of each later stage, separated by ;"),
    opt("heter_devices", Text, &[], None, "Legacy: device type of each later stage, separated by ;"),
    opt("http_port", Int, &[], None, "Legacy: port of the rendezvous on the first server's node [default: a free port; --gloo_port on several nodes]"),
    opt("legacy", Bool, &[], Some("false"), "Behave like the legacy launcher, paddle.distributed.fleet.launch; implied by its own options"),
    opt("backend", Text, &[], None, "Communication backend: auto, gloo, nccl, bkcl or heter [default: PADDLE_DISTRI_BACKEND, else auto]"),
    Opt { aliases: &["selected_xpus"], ..opt("selected_gpus", Text, &[], None, "Same as --gpus") },
    opt("enable_auto_mapping", Bool, &[], None, "Place ranks by --rank_mapping_path; without that file, one process per machine computes it first"),
    opt("cluster_topo_path", Text, &[], None, "JSON file of the machines, for --enable_auto_mapping"),
    opt("rank_mapping_path", Text, &[], None, "JSON file that maps ranks to machines [default: PADDLE_RANK_MAPPING_PATH, else computed first]"),
    opt("elastic_server", Text, &[], None, "Address of etcd (host:port) for an elastic job; requires --job_id and --np [default: PADDLE_ELASTIC_SERVER]"),
    opt("np", Text, &[], None, "Number of nodes of an elastic job, or MIN:MAX [default: PADDLE_ELASTIC_NP]"),
    opt("elastic_pre_hook", Text, &[], None, "Shell command to run before each start of an elastic job's ranks"),
    opt("scale", Int, &[], None, "Accepted without effect, as in the legacy launcher"),
    opt("force", Text, &[], None, "Accepted without effect, as in the legacy launcher"),
    opt("auto_tuner_json", Text, &[], None, "Not supported: rlaunch does not search configurations"),
];

/// The options of `paddle.distributed.launch`, where a name that is cut short stands for the one that begins so. It
/// keeps to that here, whatever else begins so by now.
pub const PADDLES: [&str; 32] = [
    "help",
    "master",
    "legacy",
    "rank",
    "log_level",
    "log_overwrite",
    "sort_ip",
    "enable_gpu_log",
    "nnodes",
    "nproc_per_node",
    "log_dir",
    "run_mode",
    "job_id",
    "devices",
    "gpus",
    "npus",
    "xpus",
    "host",
    "ips",
    "start_port",
    "auto_parallel_config",
    "auto_cluster_config",
    "auto_tuner_json",
    "servers",
    "trainers",
    "trainer_num",
    "server_num",
    "gloo_port",
    "with_gloo",
    "max_restart",
    "elastic_level",
    "elastic_timeout",
];

/// The groups of the help.
pub const GROUPS: &[OptGroup] = &[
    group("job", "Job and script", "nproc_per_node"),
    group("logs", "Logs, console and metrics", "log_dir"),
    group("hangs", "Hangs", "hang_timeout"),
    group("restarts", "Stopping and restarting", "grace_period"),
    group("nodes", "Several nodes", "ips"),
    group("security", "Security", "job_secret"),
    group("servers", "Parameter servers", "servers"),
    group("legacy", "Legacy launcher", "workers"),
    group("legacy", "Not supported", "auto_tuner_json"),
];

/// Merges the layers: a variable overrides the command line, which overrides the default.
pub fn merge(flags: &BTreeMap<&'static str, String>, vars: &EnvVars) -> OptValues {
    // PADDLE_TRAINER_ID numbers this node only if it is the number of a node.
    let counts = |var: &str, text: &str| var != "PADDLE_TRAINER_ID" || text.parse::<i64>().is_ok_and(|rank| rank >= 0);
    let mut values = prefer_env(OPTIONS, flags, vars, counts);
    values.overridden.retain(|(_, var, _)| *var != "PADDLE_TRAINER_ID");
    for name in ["nnodes", "job_id"] {
        values.replace_empty(OPTIONS, name);
    }
    values
}
