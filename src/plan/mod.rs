//! Floor 3: who runs, where, with which environment. Pure: facts go in, a plan comes out.

pub mod affinity;
pub mod cluster;
pub mod collective;
pub mod command;
pub mod devices;
pub mod dialects;
pub mod legacy;
pub mod machine;
pub mod mapping;
pub mod nested;
pub mod nproc;
pub mod output;
pub mod ps;
pub mod spawn;
pub mod surroundings;
pub mod threads;
pub mod torchrun;
pub mod tuner;
pub mod visible;
pub mod zygote;

use crate::dialect::{Binding, paddle_launch, torch};
use crate::model::{CpuSet, Endpoint, EnvPatch, Role, Who};
pub use output::{Filter, Output, PerAttempt, Sink, Stream};
use std::ffi::OsString;
use std::sync::Arc;

/// What the planner has to know of the machine and of this process.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// The Python interpreter that runs the launcher.
    pub python: OsString,
    /// Absolute folder of the logs.
    pub log_dir: String,
    /// This launcher's random name.
    pub pod_name: String,
    /// Absolute path of a folder that is there while a job with parameter servers runs; empty for others.
    pub temporary: String,
}

/// One process of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankPlan {
    /// What it is for.
    pub role: Role,
    /// Its number in the job among those of its role.
    pub rank: usize,
    /// Where it listens, if it does.
    pub endpoint: Option<Endpoint>,
    /// Its devices.
    pub binding: Binding,
    /// Its program (a name or a path) and arguments.
    pub argv: Arc<[OsString]>,
    /// What changes in its environment.
    pub env: EnvPatch,
    /// The CPUs that it may run on, if not all of the launcher's.
    pub cpus: Option<CpuSet>,
    /// What changes in it from one attempt to the next, if anything does.
    pub elastic: Option<Elastic>,
    /// Where its output goes.
    pub output: Output,
    /// Variables too long for an environment, and the file that holds them instead.
    pub backup: Option<Backup>,
}

impl RankPlan {
    /// A process without an endpoint, devices or CPUs of its own, which writes both streams to this log.
    pub fn with_log(who: Who, argv: Arc<[OsString]>, env: EnvPatch, log: String, backup: Option<Backup>) -> Self {
        Self {
            role: who.role,
            rank: who.number,
            endpoint: None,
            binding: Binding::Cpu,
            argv,
            env,
            cpus: None,
            elastic: None,
            output: Output::Together(log),
            backup,
        }
    }

    /// What people call it.
    pub fn who(&self) -> Who {
        Who { role: self.role, number: self.rank }
    }

    /// What changes in its environment in this attempt.
    pub fn env_of(&self, attempt: u32) -> EnvPatch {
        let mut env = self.env.clone();
        if let Some(elastic) = &self.elastic {
            let error_file = elastic.error_file.as_ref().map_or(String::new(), |path| path.at(attempt));
            torch::write_attempt(elastic.restarts.unwrap_or(attempt), &error_file, &mut env);
        }
        env
    }

    /// The file of the log folder in which its last words of the first attempt are; empty if they are in none.
    pub fn log(&self) -> String {
        self.output.last_words(0).unwrap_or_default()
    }
}

/// What a rank is told anew in every attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// Absolute path of the file in which it may say what it died of, if it may.
    pub error_file: Option<PerAttempt>,
    /// How many restarts it is told that there have been; `None`: as many as attempts before this one.
    pub restarts: Option<u32>,
}

/// A file with variables that did not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Absolute path.
    pub path: String,
    /// The variables.
    pub vars: Vec<(String, Arc<str>)>,
}

/// What is going to run on this node.
#[derive(Clone, Debug)]
pub struct Plan {
    /// By local rank.
    pub ranks: Vec<RankPlan>,
    /// Nodes in the job.
    pub nnodes: usize,
    /// Trainers in the job.
    pub world_size: usize,
    /// This launcher's name.
    pub pod: paddle_launch::Pod,
    /// The job's name.
    pub job_id: String,
    /// `collective`, `ps`, ...
    pub mode: &'static str,
    /// Whether servers end by themselves: workers of other nodes may still need them when those of this node have ended.
    pub servers_end: bool,
}

impl Plan {
    /// Runs a process before the others, or, if they are not wanted, alone.
    pub fn put_first(&mut self, one: RankPlan, others: bool) {
        if !others {
            self.ranks.clear();
        }
        self.ranks.insert(0, one);
    }
}
