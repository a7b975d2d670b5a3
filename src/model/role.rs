//! What a process of a job is for.

use std::fmt;

/// The part of one process. Numbers are counted for each role apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Trains: a rank.
    Trainer,
    /// A parameter server.
    Server,
    /// Trains a later stage, on another kind of device.
    HeterWorker,
    /// Chooses the clients of a federated job.
    Coordinator,
    /// Looks for the best layout, before the job.
    Tuner,
    /// Writes a rank mapping, before the job.
    Mapper,
}

impl Role {
    /// What its log files' names begin with.
    pub fn log(self) -> &'static str {
        match self {
            Role::Trainer => "workerlog",
            Role::Server => "serverlog",
            Role::HeterWorker => "heterlog",
            Role::Coordinator => "coordinator",
            Role::Tuner => "tuner.log",
            Role::Mapper => "prelaunchlog",
        }
    }
}

/// The word before its number: `rank 3`, `server 0`.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Trainer => "rank",
            Role::Server => "server",
            Role::HeterWorker => "heter worker",
            Role::Coordinator => "coordinator",
            Role::Tuner => "tuner",
            Role::Mapper => "mapper",
        })
    }
}
