//! Plan of a job: the processes of this node with their commands, environments, devices and logs.
//! Pure: a spec and facts go in, a plan comes out.

pub mod cluster;
pub mod collective;
pub mod command;
pub mod devices;
pub mod env;
pub mod legacy;
pub mod output;
pub mod preload;
pub mod ps;
pub mod rank_mapping;
pub mod spawn;
pub mod torchrun;
pub mod tuner;

use crate::framework::{Binding, paddle_launch, torch};
use crate::model::{CpuSet, Endpoint, EnvDelta, ProcessLabel, Role};
pub use output::{AttemptText, LineFilter, OutputPlan, SeenOutput, ShownStream, Stream, StreamSink};
use std::ffi::OsString;
use std::sync::Arc;

/// Facts of this process that plans depend on.
#[derive(Clone, Debug)]
pub struct LaunchContext {
    /// The Python interpreter that runs the launcher.
    pub python: OsString,
    /// Absolute path of the log directory.
    pub log_dir: String,
    /// Random name of this launcher.
    pub pod_name: String,
    /// Absolute path of the directory for gloo, which exists for the duration of the job; empty for jobs without it.
    pub gloo_tmpdir: String,
}

/// One process of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankPlan {
    /// Its role.
    pub role: Role,
    /// Its number among the processes of its role, in the job.
    pub rank: usize,
    /// Its endpoint, if it listens.
    pub endpoint: Option<Endpoint>,
    /// Its devices.
    pub binding: Binding,
    /// Its program (a name or a path) and arguments.
    pub argv: Arc<[OsString]>,
    /// Changes to its environment.
    pub env: EnvDelta,
    /// CPUs that it may run on; `None`: all of the launcher's.
    pub cpus: Option<CpuSet>,
    /// Changes to its environment that differ between attempts.
    pub per_attempt: Option<PerAttemptEnv>,
    /// Where its output goes.
    pub output: OutputPlan,
    /// Variables too long for the environment, and the file for them.
    pub env_overflow: Option<EnvOverflowFile>,
}

impl RankPlan {
    /// A process without an endpoint, devices or CPUs, which writes both streams to this log.
    pub fn with_log(
        label: ProcessLabel,
        argv: Arc<[OsString]>,
        env: EnvDelta,
        log: String,
        env_overflow: Option<EnvOverflowFile>,
    ) -> Self {
        Self {
            role: label.role,
            rank: label.number,
            endpoint: None,
            binding: Binding::Cpu,
            argv,
            env,
            cpus: None,
            per_attempt: None,
            output: OutputPlan::Combined(log),
            env_overflow,
        }
    }

    /// The label that logs and reports use.
    pub fn label(&self) -> ProcessLabel {
        ProcessLabel { role: self.role, number: self.rank }
    }

    /// Changes to its environment in this attempt.
    pub fn env_of(&self, attempt: u32) -> EnvDelta {
        let mut env = self.env.clone();
        if let Some(per_attempt) = &self.per_attempt {
            let error_file = per_attempt.error_file.as_ref().map_or(String::new(), |path| path.at(attempt));
            torch::write_attempt(per_attempt.restarts.unwrap_or(attempt), &error_file, &mut env);
        }
        env
    }

    /// The log file, within the log directory, with its last lines of the first attempt; empty if there is none.
    pub fn log(&self) -> String {
        self.output.last_log(0).unwrap_or_default()
    }
}

/// Variables that differ between attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerAttemptEnv {
    /// Absolute path of the file for its exception (TORCHELASTIC_ERROR_FILE), if it has one.
    pub error_file: Option<AttemptText>,
    /// Number of restarts that the rank is shown; `None`: the number of earlier attempts.
    pub restarts: Option<u32>,
}

/// File for variables that are too long for the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvOverflowFile {
    /// Absolute path.
    pub path: String,
    /// The variables.
    pub vars: Vec<(String, Arc<str>)>,
}

/// The processes of this node.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One plan a process, by local rank.
    pub ranks: Vec<RankPlan>,
    /// Number of nodes.
    pub nnodes: usize,
    /// Number of trainers in the job.
    pub world_size: usize,
    /// This launcher.
    pub pod: paddle_launch::PodInfo,
    /// Name of the job.
    pub job_id: String,
    /// `collective`, `ps`, ...
    pub mode: &'static str,
    /// Whether the job waits for the servers to exit, as `paddle.distributed.launch` does.
    pub awaits_servers: bool,
}

impl Plan {
    /// Whether other launchers may start processes of this job: on other nodes, or one for each process of a job platform.
    pub fn may_have_other_launchers(&self) -> bool {
        // A job with parameter servers has at least a server and a trainer.
        self.nnodes > 1 || (self.mode == "ps" && self.ranks.len() == 1)
    }

    /// Adds a process that runs before the others; if `others` is false, it runs alone.
    pub fn put_first(&mut self, one: RankPlan, others: bool) {
        if !others {
            self.ranks.clear();
        }
        self.ranks.insert(0, one);
    }
}
