//! The state of a running launcher and its ranks, as `rlaunch status` shows it. Schema: `docs/control.schema.json`.

use crate::model::{Exit, ProcessLabel, Role};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The version of the control socket's protocol. Later versions may add fields.
pub const CONTROL_VERSION: u32 = 1;

/// What a launcher does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchPhase {
    /// It prepares its ranks, or waits for the other nodes of the job.
    #[default]
    Preparing,
    /// Its ranks run, or are being started.
    Running,
    /// Its ranks are being stopped.
    Stopping,
    /// It waits before it starts its ranks again.
    Restarting,
    /// Its ranks have ended.
    Ended,
}

impl LaunchPhase {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Restarting => "restarting",
            Self::Ended => "ended",
        }
    }
}

/// One rank in its present attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Its role.
    pub role: Role,
    /// Its number in the job among the ranks of its role.
    pub rank: usize,
    /// Its number on this node.
    pub local_rank: usize,
    /// The attempt that its process belongs to, from 0.
    pub attempt: u32,
    /// Its process id; `None`: it has not been started.
    pub pid: Option<i32>,
    /// The start time of its process in clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// When it was started, or ended (seconds since 1970); `None`: neither.
    pub since: Option<f64>,
    /// How it ended; `None`: it has not.
    pub exit: Option<String>,
    /// Whether it exited successfully.
    pub succeeded: bool,
    /// Whether all its output goes to these files.
    pub all_output_logged: bool,
    /// Where its output begins in the first of these files, in bytes.
    pub log_start: u64,
    /// The files that its output goes to.
    pub logs: Vec<PathBuf>,
}

impl JobStatus {
    /// Its phase in a word, or `suspended`.
    pub fn state(&self) -> &'static str {
        if self.suspended { "suspended" } else { self.phase.word() }
    }
}

impl RankStatus {
    /// Its role and number.
    pub fn label(&self) -> ProcessLabel {
        ProcessLabel { role: self.role, number: self.rank }
    }

    /// Whether its process runs.
    pub fn is_alive(&self) -> bool {
        self.pid.is_some() && self.exit.is_none()
    }

    /// Its process has ended.
    pub fn end(&mut self, exit: Exit, now: f64) {
        self.exit = Some(exit.to_string());
        self.succeeded = exit.is_success();
        self.since = Some(now);
    }
}

/// A launcher and its ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The version of the protocol.
    pub version: u32,
    /// The name of the job.
    pub job_id: String,
    /// The name of the machine.
    pub host: String,
    /// The process id of the launcher: the process that the user started.
    pub launcher: i32,
    /// The process id of its supervisor process, the parent of the ranks.
    pub supervisor: i32,
    /// The command line of the ranks, with secrets masked.
    pub command: Vec<String>,
    /// The folder in which the launcher was started; empty: unknown.
    #[serde(default)]
    pub working_dir: PathBuf,
    /// The folder of the logs.
    pub log_dir: PathBuf,
    /// When the launcher was started (seconds since 1970).
    pub started: f64,
    /// What it does.
    pub phase: LaunchPhase,
    /// Since when it does that (seconds since 1970).
    pub phase_since: f64,
    /// The round of a job whose nodes rendezvous; `None`: there are no rounds.
    pub round: Option<u64>,
    /// The number of nodes of the job.
    pub nnodes: usize,
    /// The number of trainers in the job.
    pub world_size: usize,
    /// The present attempt, from 0.
    pub attempt: u32,
    /// Whether the user has suspended the job (Ctrl-Z), and with it the ranks.
    #[serde(default)]
    pub suspended: bool,
    /// When a hang was reported (seconds since 1970), if no stack has been seen to move since.
    #[serde(default)]
    pub hanging_since: Option<f64>,
    /// The ranks of this node.
    pub ranks: Vec<RankStatus>,
}
