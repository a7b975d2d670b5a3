//! Table of every environment variable that rlaunch sets for ranks. `docs/environment.md` is generated from it. The names
//! are here; the values are computed in `plan/collective.rs` (Paddle's front end), `plan/torchrun.rs`, `plan/ps.rs`
//! (parameter servers), `plan/legacy.rs` and `plan/spawn.rs`, and written by the files beside this one.

/// One documented variable.
#[derive(Debug)]
pub struct Variable {
    /// Its name; `{kind}` stands for gpu, xpu and so on.
    pub name: &'static str,
    /// Comma-separated front ends that set it for their default framework: `spawn`, `launch`, `legacy` (launch with
    /// `--legacy`) and `run`. `jax` stands for all of them where jax is requested. In brackets, the only kind of job
    /// that gets it: `ps`, `rpc` or `legacy ps`.
    pub written_by: &'static str,
    /// What it contains.
    pub meaning: &'static str,
    /// An example value.
    pub example: &'static str,
}

const fn var(name: &'static str, written_by: &'static str, meaning: &'static str, example: &'static str) -> Variable {
    Variable { name, written_by, meaning, example }
}

/// Every variable that rlaunch sets in the environment of a rank.
#[rustfmt::skip]
pub const VARIABLES: &[Variable] = &[
    var("CUDA_VISIBLE_DEVICES", "launch, legacy, spawn, run", "the one device of this rank (run --virtual-local-rank; legacy ps, workers), its MIG device, or the UUIDs of --devices where no list was set; otherwise inherited", "MIG-5c1f3b7e-7a0e-5d0f-9d0c-2f6a3f1b8e11"),
    var("DISTRIBUTED_TRAINER_ENDPOINTS", "legacy", "same as PADDLE_TRAINER_ENDPOINTS; only in elastic jobs", "10.0.0.1:6070,10.0.0.2:6070"),
    var("FLAGS_selected_accelerators", "legacy", "same as FLAGS_selected_{kind}s", "0"),
    var("FLAGS_selected_{kind}s", "launch, legacy, spawn", "devices of this rank, as indices into the visible list; only with devices", "0"),
    var("GLOO_SOCKET_IFNAME", "launch, legacy, run", "interface with the address of this node; only on several nodes, unless already set", "eth0"),
    var("GROUP_RANK", "run", "number of this node", "0"),
    var("GROUP_WORLD_SIZE", "run", "number of nodes", "1"),
    var("HETER_DEVICE_TYPE", "launch (legacy ps)", "device type of the stage of this process", "gpu"),
    var("HIP_VISIBLE_DEVICES", "run", "same as CUDA_VISIBLE_DEVICES; only with --virtual-local-rank, where it was set", "1"),
    var("JAX_COORDINATOR_ADDRESS", "jax", "endpoint of the coordinator in process 0", "127.0.0.1:40821"),
    var("JAX_COORDINATOR_BIND_ADDRESS", "jax", "same as JAX_COORDINATOR_ADDRESS, so that the coordinator listens on loopback only; only on one node, unless already set", "127.0.0.1:40821"),
    var("JAX_LOCAL_DEVICE_IDS", "jax", "devices of this rank, as indices into the visible list; only with devices, unless already set", "0"),
    var("JAX_NUM_PROCESSES", "jax", "number of ranks in the job; read by scripts, not by jax", "2"),
    var("JAX_PROCESS_ID", "jax", "rank in the job; read by scripts, not by jax", "1"),
    var("LOCAL_RANK", "run", "rank on this node; 0 with --virtual-local-rank", "1"),
    var("LOCAL_WORLD_SIZE", "run", "number of ranks on this node", "2"),
    var("MASTER_ADDR", "run", "host of the store of the job", "localhost"),
    var("MASTER_PORT", "run", "port of the store of the job", "40819"),
    var("NCCL_SOCKET_IFNAME", "launch, legacy, run", "same interface as GLOO_SOCKET_IFNAME, as an exact match in the syntax of NCCL; only on several nodes, unless already set", "=eth0"),
    var("OMPI_COMM_WORLD_LOCAL_RANK", "jax", "rank on this node, read by jax", "1"),
    var("OMPI_COMM_WORLD_RANK", "jax", "rank in the job, read by jax", "1"),
    var("OMPI_COMM_WORLD_SIZE", "jax", "number of ranks in the job, read by jax", "2"),
    var("OMPI_MCA_orte_hnp_uri", "jax", "marker by which jax detects the three OMPI_COMM_WORLD variables", "rlaunch"),
    var("OMP_NUM_THREADS", "launch, legacy, run", "number of OpenMP threads: 1 unless already set. For launch and legacy: also 1 if it is no whole number. For run: only with several ranks; with --share-cpus, the CPUs that the launcher may use, divided by its ranks", "1"),
    var("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", "launch (legacy ps)", "endpoints of the workers of the stages after the first", "127.0.0.1:6003,127.0.0.1:6004"),
    var("PADDLE_AUTO_CLUSTER", "launch", "1 if --auto_cluster_config is true, otherwise 0", "0"),
    var("PADDLE_AUTO_PARALLEL_CONFIG", "launch", "file of --auto_parallel_config; only with that option", "tune.json"),
    var("PADDLE_AUTO_PARALLEL_STAGE", "launch", "tuner in the tuner, run in the ranks that follow; only with --auto_parallel_config", "run"),
    var("PADDLE_BACKUP_ENV_PATH", "launch, legacy", "JSON file with the variables that are too long for the environment; only if there are any", "log/backup_env.0.json"),
    var("PADDLE_CLUSTER_TOPO_PATH", "legacy", "JSON file of the machines; only with --enable_auto_mapping", "topology.json"),
    var("PADDLE_COORDINATOR_ENDPOINTS", "launch (legacy ps)", "endpoints of the coordinators; empty if there are none", "127.0.0.1:6008"),
    var("PADDLE_COORDINATOR_NUM", "launch (legacy ps)", "number of coordinators; only in coordinators", "1"),
    var("PADDLE_CURRENT_ENDPOINT", "launch, legacy, spawn", "endpoint of this rank", "127.0.0.1:6070"),
    var("PADDLE_DISTRI_BACKEND", "launch, legacy, spawn", "gloo without devices, xccl with a custom device; spawn: only gloo; legacy: always, also nccl, bkcl and heter", "gloo"),
    var("PADDLE_ENABLE_AUTO_MAPPING", "legacy", "True with --enable_auto_mapping, otherwise unset", "True"),
    var("PADDLE_ENABLE_ELASTIC", "legacy", "True in a mapper, which then exits with status 102, otherwise False; only with --enable_auto_mapping", "True"),
    var("PADDLE_GLOBAL_RANK", "launch", "rank in the job", "1"),
    var("PADDLE_GLOBAL_SIZE", "launch", "number of ranks in the job", "2"),
    var("PADDLE_GLOO_FS_PATH", "launch (ps), legacy", "empty directory on this node that exists for the duration of the job", "/tmp/rlaunch-q0Zk83hTqWm2xVb9"),
    var("PADDLE_GLOO_HTTP_ENDPOINT", "launch (ps)", "endpoint of the gloo rendezvous in the first server", "127.0.0.1:6767"),
    var("PADDLE_GLOO_RENDEZVOUS", "launch (ps), legacy", "type of the gloo rendezvous: 3, HTTP", "3"),
    var("PADDLE_HETER_TRAINER_IP_PORT_LIST", "launch (legacy ps)", "same as PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST; only on PaddleCloud", "10.0.0.2:6003"),
    var("PADDLE_LOCAL_DEVICE_IDS", "legacy", "comma-separated devices of this rank; empty without devices", "0,1"),
    var("PADDLE_LOCAL_RANK", "launch", "rank on this node", "1"),
    var("PADDLE_LOCAL_SIZE", "launch", "number of ranks on this node", "2"),
    var("PADDLE_LOG_DIR", "launch", "absolute path of the log directory", "/home/me/log"),
    var("PADDLE_MASTER", "launch, legacy, spawn", "endpoint of the store in rank 0; legacy, spawn: only if it is not the first of PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:6069"),
    var("PADDLE_MASTER_ENDPOINT", "launch (rpc)", "endpoint of the store in rank 0", "127.0.0.1:6069"),
    var("PADDLE_NEED_RANK_MAPPING", "legacy", "True in a mapper, otherwise False; only with --enable_auto_mapping", "True"),
    var("PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST", "launch (legacy ps)", "endpoints of the workers of the next stage; empty in the last stage", "127.0.0.1:6004"),
    var("PADDLE_NNODES", "launch", "number of nodes", "1"),
    var("PADDLE_ORIGINAL_CMD_ARGS", "legacy", "arguments of the launcher; only in a mapper", "--legacy 1 train.py"),
    var("PADDLE_PORT", "launch (ps)", "port of this process", "6001"),
    var("PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST", "launch (legacy ps)", "endpoints of the workers of the previous stage; empty in the first stage", "127.0.0.1:6001"),
    var("PADDLE_PSERVERS_IP_PORT_LIST", "launch (ps)", "endpoints of the servers", "127.0.0.1:6000"),
    var("PADDLE_RANK_IN_NODE", "launch, legacy", "rank on this node", "1"),
    var("PADDLE_RANK_MAPPING_PATH", "legacy", "file that a mapper writes, empty in ranks; only with --enable_auto_mapping", "/home/me/auto_parallel_rank_mapping.json"),
    var("PADDLE_ROLE", "launch (ps)", "same as TRAINING_ROLE; not in legacy ps jobs", "PSERVER"),
    var("PADDLE_STAGE_TRAINERS_NUM", "launch (legacy ps)", "number of workers of each stage", "[1, 1, 2]"),
    var("PADDLE_TRAINERS", "legacy", "addresses of the nodes; only in elastic jobs", "10.0.0.1,10.0.0.2"),
    var("PADDLE_TRAINERS_NUM", "launch, legacy, spawn", "number of ranks in the job", "2"),
    var("PADDLE_TRAINER_ENDPOINTS", "launch, legacy, spawn", "endpoints of all ranks, by rank; with a rank mapping, machine by machine", "127.0.0.1:6070,127.0.0.1:6071"),
    var("PADDLE_TRAINER_ID", "launch, legacy, spawn", "rank in the job", "1"),
    var("PADDLE_WITH_GLOO", "launch (ps), legacy", "value of --with_gloo: 1 for trainers, 2 for all processes; legacy: 0 without the option", "1"),
    var("PADDLE_WORKER_ENDPOINT", "launch (rpc)", "endpoint of this rank", "127.0.0.1:6070"),
    var("PADDLE_WORLD_DEVICE_IDS", "legacy", "devices of all ranks, separated by colons within a rank and by commas between ranks", "0:1,2:3"),
    var("PADDLE_XCCL_BACKEND", "launch, legacy", "type of the custom device; only with a custom device", "npu"),
    var("POD_IP", "launch (ps)", "host of this process", "127.0.0.1"),
    var("POD_NAME", "launch", "random name of the launcher of this node", "qkzvbd"),
    var("PYTHONFAULTHANDLER", "launch, legacy, run", "a crash in native code prints the Python stack of the rank, whose line is in the failure report; unless already set, also if empty", "1"),
    var("RANK", "run", "rank in the job", "1"),
    var("RLAUNCH_DEBUGGER", "launch, legacy, run", "code that connects this rank to the debugger; only while one debugs the launcher; the Python of this rank removes it", "import sys; ..."),
    var("RLAUNCH_EXCEPTION_FILE", "launch, legacy, run", "file in which the Python of this rank notes the exception that ends it; it exists only in memory", "/proc/4711/fd/12"),
    var("RLAUNCH_EXPORTED", "launch, legacy, run", "variables of the outer job that a nested launcher ignores: comma-separated name=hash", "PADDLE_MASTER=9f3b5c21"),
    var("RLAUNCH_OUTER_LOGS", "launch, legacy, run", "absolute path of the log directory, in which a nested launcher creates its own", "/home/me/log"),
    var("RLAUNCH_RANK_KEY", "launch, legacy, spawn, run", "identifies the processes of this rank: random key, attempt, local rank", "q0Zk83hTqWm2xVb9/0/1"),
    var("RLAUNCH_ROUND", "launch, legacy, run", "number of the round of the job, from 1: it grows by one whenever all ranks start again", "1"),
    var("RLAUNCH_ROUND_LEASE", "launch, legacy, run", "memory with the lease that this rank runs under, for rlaunch.lease_valid(); only where the job goes on without a lost node", "/proc/4711/fd/9"),
    var("RLAUNCH_STOP_SLOT", "launch, legacy, run", "memory with the step at which all ranks stop, for rlaunch.should_stop(), and the place of this rank in it", "/proc/4711/fd/11:0"),
    var("ROLE_NAME", "run", "value of --role", "default"),
    var("ROLE_RANK", "run", "rank among the ranks of its role", "1"),
    var("ROLE_WORLD_SIZE", "run", "number of ranks of its role", "2"),
    var("STAGE_ID", "launch (legacy ps)", "number of the stage of this process, from 1", "2"),
    var("STAGE_NUM", "launch (legacy ps)", "number of stages", "3"),
    var("TORCH_FR_DUMP_TEMP_FILE", "launch, legacy, run", "beginning of the names of the files of the flight recorder of torch; only if TORCH_FR_BUFFER_SIZE or TORCH_NCCL_TRACE_BUFFER_SIZE turns it on and this variable or TORCH_NCCL_DEBUG_INFO_TEMP_FILE is not set", "/home/me/log/rlaunch/flight_recorder_rank_"),
    var("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "launch, legacy, run", "same as TORCH_FR_DUMP_TEMP_FILE, for torch before 2.8", "/home/me/log/rlaunch/flight_recorder_rank_"),
    var("TORCHELASTIC_ERROR_FILE", "run", "file in which @record writes the exception of this rank; empty with --log-dir /dev/null", "/tmp/torchelastic_2kqj7vwx/none_p0qk3h1z/attempt_0/1/error.json"),
    var("TORCHELASTIC_MAX_RESTARTS", "run", "value of --max-restarts", "0"),
    var("TORCHELASTIC_RESTART_COUNT", "run", "number of restarts so far, those by `rlaunch restart` included: it may exceed TORCHELASTIC_MAX_RESTARTS", "0"),
    var("TORCHELASTIC_RUN_ID", "run", "name of the job", "none"),
    var("TORCHELASTIC_SIGNALS_TO_HANDLE", "run", "signals that stop the job", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    var("TORCHELASTIC_USE_AGENT_STORE", "run", "True if the launcher serves the store, False if rank 0 does", "True"),
    var("TORCH_NCCL_ASYNC_ERROR_HANDLING", "run", "1 unless already set", "1"),
    var("TRAINERS_NUM", "launch (legacy ps)", "same as PADDLE_TRAINERS_NUM; only on PaddleCloud", "2"),
    var("TRAINING_ROLE", "launch (ps)", "PSERVER, TRAINER, COORDINATOR or HETER_TRAINER", "PSERVER"),
    var("WORLD_SIZE", "run", "number of ranks in the job", "2"),
    var("XPU_VISIBLE_DEVICES", "launch (legacy ps)", "same as CUDA_VISIBLE_DEVICES; only in workers", "0"),
    var("http_proxy_original", "launch", "value of http_proxy, which is removed", "http://proxy:3128"),
    var("https_proxy_original", "launch", "value of https_proxy, which is removed", "http://proxy:3128"),
];

/// Whether `name` is in the table.
pub fn is_declared(name: &str) -> bool {
    VARIABLES.iter().any(|variable| variable.is(name))
}

/// Whether `name` is one of the variables that Paddle's ranks get.
pub fn is_paddle_variable(name: &str) -> bool {
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

/// The text of `docs/environment.md`.
pub fn document() -> String {
    let mut text = String::from(
        "# Environment variables of ranks\n\nThis page lists each variable that a rank receives, and the front end that \
         sets it.\n\n<!-- Generated from src/framework/variables.rs by its test; do not edit. -->\n\n\
         `spawn`, `launch` and `legacy` set Paddle's variables and `run` sets torch's, unless `--frameworks` selects \
         others. `jax` stands for any of them with `--frameworks jax` ([Frameworks](frameworks.md)).\n\n\
         | variable | set by | meaning | example |\n|---|---|---|---|\n",
    );
    for v in VARIABLES {
        text.push_str(&format!("| `{}` | {} | {} | `{}` |\n", v.name, v.written_by, v.meaning, v.example));
    }
    text
}
