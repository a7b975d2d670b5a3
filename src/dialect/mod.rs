//! Floor 1: how each framework tells a process who it is. One file a dialect; `VARIABLES` is the one
//! table of every variable that rlaunch writes, from which `docs/environment.md` comes.

pub mod jax;
pub mod paddle_launch;
pub mod paddle_legacy;
pub mod paddle_ps;
pub mod paddle_rpc;
pub mod paddle_spawn;
pub mod paddle_tuner;
pub mod torch;

use crate::model::{Endpoint, accelerator};
use std::sync::Arc;

/// The devices that one rank may use, as its framework names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// None: CPU, and gloo between the ranks.
    Cpu,
    /// `FLAGS_selected_{kind}s`, with these indices.
    Selected {
        /// `gpu`, `xpu`, `npu`, ...
        kind: String,
        /// Indices into what is visible, joined by commas.
        indices: String,
    },
}

/// Who a rank is, in every dialect's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number in the job.
    pub rank: usize,
    /// Its number on its node.
    pub local_rank: usize,
    /// Ranks on its node.
    pub local_size: usize,
    /// Nodes in the job.
    pub nnodes: usize,
    /// Where each rank listens, by rank; as many as there are ranks.
    pub endpoints: Arc<[Endpoint]>,
    /// Where rank 0's store listens, if the dialect says so.
    pub master: Option<Endpoint>,
    /// Its devices.
    pub binding: Binding,
}

/// One documented variable.
#[derive(Debug)]
pub struct Variable {
    /// Its name; `{kind}` stands for gpu, xpu and so on.
    pub name: &'static str,
    /// Who writes it: `spawn`, `launch`, `legacy` (launch with `--legacy`), `run`, or several, each for the framework that is its
    /// default; `jax`, each of them that is asked for jax's; in brackets, in which jobs alone:
    /// `ps` and `rpc`, or `older ps` for those asked for in the older launcher's words.
    pub written_by: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// An example value.
    pub example: &'static str,
}

const fn var(name: &'static str, written_by: &'static str, meaning: &'static str, example: &'static str) -> Variable {
    Variable { name, written_by, meaning, example }
}

/// Every variable that rlaunch writes into a rank's environment.
pub const VARIABLES: &[Variable] = &[
    var(
        "CUDA_VISIBLE_DEVICES",
        "launch, legacy, spawn, run",
        "run: this rank's one device with --virtual-local-rank, else as it was; a rank's MIG device, or the UUIDs of --devices where no list was set; in the older words of ps, a worker's device; else as it was",
        "MIG-5c1f3b7e-7a0e-5d0f-9d0c-2f6a3f1b8e11",
    ),
    var(
        "DISTRIBUTED_TRAINER_ENDPOINTS",
        "legacy",
        "the same as PADDLE_TRAINER_ENDPOINTS; only of elastic jobs",
        "10.0.0.1:6070,10.0.0.2:6070",
    ),
    var("FLAGS_selected_accelerators", "legacy", "the same as FLAGS_selected_{kind}s", "0"),
    var(
        "FLAGS_selected_{kind}s",
        "launch, legacy, spawn",
        "devices of this rank, as indices into what is visible; only with devices",
        "0",
    ),
    var(
        "GLOO_SOCKET_IFNAME",
        "launch, legacy, run",
        "interface that has this node's address; only on several nodes, and unless it is set",
        "eth0",
    ),
    var("GROUP_RANK", "run", "this node's number", "0"),
    var("GROUP_WORLD_SIZE", "run", "nodes in the job", "1"),
    var("HETER_DEVICE_TYPE", "launch (older ps)", "kind of device of this process's stage", "gpu"),
    var(
        "HIP_VISIBLE_DEVICES",
        "run",
        "the same as CUDA_VISIBLE_DEVICES; only with --virtual-local-rank where it was set",
        "1",
    ),
    var("JAX_COORDINATOR_ADDRESS", "jax", "where process 0's coordinator listens", "127.0.0.1:40821"),
    var(
        "JAX_COORDINATOR_BIND_ADDRESS",
        "jax",
        "the same on one node, so that it listens on loopback alone; only there, and unless it is set",
        "127.0.0.1:40821",
    ),
    var(
        "JAX_LOCAL_DEVICE_IDS",
        "jax",
        "devices of this rank, as indices into what is visible; only with devices, and unless it is set",
        "0",
    ),
    var("JAX_NUM_PROCESSES", "jax", "ranks in the job; scripts read it, jax does not", "2"),
    var("JAX_PROCESS_ID", "jax", "this rank's number in the job; scripts read it, jax does not", "1"),
    var("LOCAL_RANK", "run", "this rank's number on its node; 0 with --virtual-local-rank", "1"),
    var("LOCAL_WORLD_SIZE", "run", "ranks on this node", "2"),
    var("MASTER_ADDR", "run", "where the job's store listens", "localhost"),
    var("MASTER_PORT", "run", "the port of the same", "40819"),
    var(
        "NCCL_SOCKET_IFNAME",
        "launch, legacy, run",
        "the same interface as NCCL writes exactly this one; only on several nodes, and unless it is set",
        "=eth0",
    ),
    var("OMPI_COMM_WORLD_LOCAL_RANK", "jax", "this rank's number on its node, as jax reads it", "1"),
    var("OMPI_COMM_WORLD_RANK", "jax", "this rank's number in the job, as jax reads it", "1"),
    var("OMPI_COMM_WORLD_SIZE", "jax", "ranks in the job, as jax reads it", "2"),
    var("OMPI_MCA_orte_hnp_uri", "jax", "by which jax knows that the three before are there", "rlaunch"),
    var(
        "OMP_NUM_THREADS",
        "run",
        "CPUs that the launcher may use, shared out among its ranks; only with several and unless it is set",
        "4",
    ),
    var(
        "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST",
        "launch (older ps)",
        "where the workers of the stages after the first listen",
        "127.0.0.1:6003,127.0.0.1:6004",
    ),
    var("PADDLE_AUTO_CLUSTER", "launch", "1 if --auto_cluster_config is true, else 0", "0"),
    var("PADDLE_AUTO_PARALLEL_CONFIG", "launch", "the file of --auto_parallel_config; only with it", "tune.json"),
    var(
        "PADDLE_AUTO_PARALLEL_STAGE",
        "launch",
        "tuner in the tuner, run in the ranks after it; only with --auto_parallel_config",
        "run",
    ),
    var(
        "PADDLE_BACKUP_ENV_PATH",
        "launch, legacy",
        "JSON file with the variables that were too long; only then",
        "log/backup_env.0.json",
    ),
    var("PADDLE_CLUSTER_TOPO_PATH", "legacy", "with --enable_auto_mapping: JSON file of the machines", "topology.json"),
    var(
        "PADDLE_COORDINATOR_ENDPOINTS",
        "launch (older ps)",
        "where the coordinators listen; empty without any",
        "127.0.0.1:6008",
    ),
    var("PADDLE_COORDINATOR_NUM", "launch (older ps)", "coordinators in the job; told to coordinators", "1"),
    var("PADDLE_CURRENT_ENDPOINT", "launch, legacy, spawn", "where this rank listens", "127.0.0.1:6070"),
    var(
        "PADDLE_DISTRI_BACKEND",
        "launch, legacy, spawn",
        "gloo without devices, xccl with a custom device; spawn: only with gloo; legacy: always, nccl, bkcl and heter too",
        "gloo",
    ),
    var("PADDLE_ENABLE_AUTO_MAPPING", "legacy", "True with --enable_auto_mapping, else not set", "True"),
    var(
        "PADDLE_ENABLE_ELASTIC",
        "legacy",
        "with --enable_auto_mapping: True for a mapper, which has then to end with 102, else False",
        "True",
    ),
    var("PADDLE_GLOBAL_RANK", "launch", "this rank's number in the job", "1"),
    var("PADDLE_GLOBAL_SIZE", "launch", "ranks in the job", "2"),
    var(
        "PADDLE_GLOO_FS_PATH",
        "launch (ps), legacy",
        "an empty folder on this node that is there during the job",
        "/tmp/rlaunch-q0Zk83hTqWm2xVb9",
    ),
    var("PADDLE_GLOO_HTTP_ENDPOINT", "launch (ps)", "where the first server's rendezvous listens", "127.0.0.1:6767"),
    var("PADDLE_GLOO_RENDEZVOUS", "launch (ps), legacy", "3: by HTTP", "3"),
    var(
        "PADDLE_HETER_TRAINER_IP_PORT_LIST",
        "launch (older ps)",
        "the same as PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST; only on PaddleCloud",
        "10.0.0.2:6003",
    ),
    var("PADDLE_LOCAL_DEVICE_IDS", "legacy", "devices of this rank, joined by commas; empty without", "0,1"),
    var("PADDLE_LOCAL_RANK", "launch", "this rank's number on its node", "1"),
    var("PADDLE_LOCAL_SIZE", "launch", "ranks on this node", "2"),
    var("PADDLE_LOG_DIR", "launch", "absolute folder of the logs", "/home/me/log"),
    var(
        "PADDLE_MASTER",
        "launch, legacy, spawn",
        "where rank 0's store listens; legacy, spawn: only where the first of PADDLE_TRAINER_ENDPOINTS does not say it",
        "127.0.0.1:6069",
    ),
    var("PADDLE_MASTER_ENDPOINT", "launch (rpc)", "where rank 0's store listens", "127.0.0.1:6069"),
    var("PADDLE_NEED_RANK_MAPPING", "legacy", "with --enable_auto_mapping: True for a mapper, else False", "True"),
    var(
        "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST",
        "launch (older ps)",
        "where the workers of the next stage listen; empty for the last",
        "127.0.0.1:6004",
    ),
    var("PADDLE_NNODES", "launch", "nodes in the job", "1"),
    var("PADDLE_ORIGINAL_CMD_ARGS", "legacy", "for a mapper: the launcher's arguments", "--legacy 1 train.py"),
    var("PADDLE_PORT", "launch (ps)", "where this process listens, with POD_IP", "6001"),
    var(
        "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST",
        "launch (older ps)",
        "where the workers of the stage before listen; empty for the first",
        "127.0.0.1:6001",
    ),
    var("PADDLE_PSERVERS_IP_PORT_LIST", "launch (ps)", "where the servers listen", "127.0.0.1:6000"),
    var("PADDLE_RANK_IN_NODE", "launch, legacy", "this rank's number on its node", "1"),
    var(
        "PADDLE_RANK_MAPPING_PATH",
        "legacy",
        "with --enable_auto_mapping: the file that a mapper has to write; empty for ranks",
        "/home/me/auto_parallel_rank_mapping.json",
    ),
    var("PADDLE_ROLE", "launch (ps)", "the same as TRAINING_ROLE; not by the older words", "PSERVER"),
    var("PADDLE_STAGE_TRAINERS_NUM", "launch (older ps)", "workers of each stage", "[1, 1, 2]"),
    var("PADDLE_TRAINERS", "legacy", "the nodes' addresses; only of elastic jobs", "10.0.0.1,10.0.0.2"),
    var("PADDLE_TRAINERS_NUM", "launch, legacy, spawn", "ranks in the job", "2"),
    var(
        "PADDLE_TRAINER_ENDPOINTS",
        "launch, legacy, spawn",
        "where each rank listens, by rank; with a rank mapping, machine by machine",
        "127.0.0.1:6070,127.0.0.1:6071",
    ),
    var("PADDLE_TRAINER_ID", "launch, legacy, spawn", "this rank's number in the job", "1"),
    var(
        "PADDLE_WITH_GLOO",
        "launch (ps), legacy",
        "the value of --with_gloo: 1 for trainers, 2 for all; legacy: 0 without",
        "1",
    ),
    var("PADDLE_WORKER_ENDPOINT", "launch (rpc)", "where this rank listens", "127.0.0.1:6070"),
    var(
        "PADDLE_WORLD_DEVICE_IDS",
        "legacy",
        "devices of all ranks: joined by colons within a rank, by commas between ranks",
        "0:1,2:3",
    ),
    var("PADDLE_XCCL_BACKEND", "launch, legacy", "type of the custom device; only with one", "npu"),
    var("POD_IP", "launch (ps)", "where this process listens, with PADDLE_PORT", "127.0.0.1"),
    var("POD_NAME", "launch", "a random name of this node's launcher", "qkzvbd"),
    var("RANK", "run", "this rank's number in the job", "1"),
    var(
        "RLAUNCH_EXPORTED",
        "launch, legacy, run",
        "which of the variables above a nested launcher has to ignore: name=hash, joined by commas",
        "PADDLE_MASTER=9f3b5c21",
    ),
    var(
        "RLAUNCH_OUTER_LOGS",
        "launch, legacy, run",
        "absolute folder of the logs, beside which a nested launcher puts its own",
        "/home/me/log",
    ),
    var(
        "RLAUNCH_RANK_KEY",
        "launch, legacy, spawn, run",
        "by which processes of this rank are known: a random key, the attempt, the local rank",
        "q0Zk83hTqWm2xVb9/0/1",
    ),
    var("ROLE_NAME", "run", "the value of --role", "default"),
    var("ROLE_RANK", "run", "this rank's number among those of its role", "1"),
    var("ROLE_WORLD_SIZE", "run", "ranks of its role", "2"),
    var("STAGE_ID", "launch (older ps)", "the stage of this process, from 1 on", "2"),
    var("STAGE_NUM", "launch (older ps)", "stages in the job", "3"),
    var(
        "TORCHELASTIC_ERROR_FILE",
        "run",
        "where @record writes what a rank dies of; empty with --log-dir /dev/null",
        "/tmp/torchelastic_2kqj7vwx/none_p0qk3h1z/attempt_0/1/error.json",
    ),
    var("TORCHELASTIC_MAX_RESTARTS", "run", "the value of --max-restarts", "0"),
    var("TORCHELASTIC_RESTART_COUNT", "run", "how many times all ranks were started again", "0"),
    var("TORCHELASTIC_RUN_ID", "run", "the job's name", "none"),
    var("TORCHELASTIC_SIGNALS_TO_HANDLE", "run", "the signals that stop the job", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    var("TORCHELASTIC_USE_AGENT_STORE", "run", "True: a store listens that no rank has to host", "True"),
    var("TORCH_NCCL_ASYNC_ERROR_HANDLING", "run", "1 unless it is set", "1"),
    var("TRAINERS_NUM", "launch (older ps)", "the same as PADDLE_TRAINERS_NUM; only on PaddleCloud", "2"),
    var("TRAINING_ROLE", "launch (ps)", "PSERVER, TRAINER, COORDINATOR or HETER_TRAINER", "PSERVER"),
    var("WORLD_SIZE", "run", "ranks in the job", "2"),
    var("XPU_VISIBLE_DEVICES", "launch (older ps)", "the same as CUDA_VISIBLE_DEVICES, for workers", "0"),
    var("http_proxy_original", "launch", "the value of http_proxy, which is taken away", "http://proxy:3128"),
    var("https_proxy_original", "launch", "the value of https_proxy, which is taken away", "http://proxy:3128"),
];

/// Whether `name` is in the table.
pub fn is_declared(name: &str) -> bool {
    VARIABLES.iter().any(|variable| variable.is(name))
}

/// Whether it is one that Paddle's ranks are told.
pub fn is_paddles(name: &str) -> bool {
    VARIABLES.iter().any(|variable| variable.is(name) && !matches!(variable.written_by, "run" | "jax"))
}

impl Variable {
    fn is(&self, name: &str) -> bool {
        match self.name.split_once("{kind}") {
            None => self.name == name,
            Some((head, tail)) => {
                name.strip_prefix(head).and_then(|rest| rest.strip_suffix(tail)).is_some_and(|kind| !kind.is_empty())
            }
        }
    }
}

/// `docs/environment.md`, made from the table.
pub fn document() -> String {
    let mut text = String::from(
        "# Variables that rlaunch writes\n\nMade from `src/dialect/mod.rs` by its test; do not edit.\n\n\
         `spawn`, `launch` and `legacy` stand for Paddle's variables and `run` for torch's, as each of them writes them unless \
         `--dialect` says otherwise; `jax`: any of them with `--dialect jax` (see [dialects.md](dialects.md)).\n\n\
         | variable | written by | meaning | example |\n|---|---|---|---|\n",
    );
    for v in VARIABLES {
        text.push_str(&format!("| `{}` | {} | {} | `{}` |\n", v.name, v.written_by, v.meaning, v.example));
    }
    text
}

/// Reads a variable as a number.
fn number(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<usize> {
    get(name)?.parse().ok()
}

/// Reads a comma list of endpoints.
fn endpoint_list(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<Vec<Endpoint>> {
    get(name)?.split(',').map(Endpoint::parse).collect()
}

/// Reads `FLAGS_selected_*s` among the kinds a Paddle build can have.
fn binding(get: &dyn Fn(&str) -> Option<String>) -> Binding {
    let custom = accelerator::CUSTOM.iter().map(|custom| custom.kind);
    for kind in ["gpu", "xpu", "ipu"].into_iter().chain(custom) {
        if let Some(indices) = get(&format!("FLAGS_selected_{kind}s")) {
            return Binding::Selected { kind: kind.into(), indices };
        }
    }
    Binding::Cpu
}
