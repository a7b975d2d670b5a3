//! What a process of a job is for.

use serde::{Serialize, Serializer};
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

/// For programs it has the same name.
impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One process of a job: its role, and its number among those of its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Who {
    /// What it is for.
    pub role: Role,
    /// Its number in the job.
    pub number: usize,
}

impl Who {
    /// A rank: a process that trains.
    pub fn rank(number: usize) -> Self {
        Self { role: Role::Trainer, number }
    }

    /// Numbers by role, each list in order and without doubles.
    pub fn by_role(all: &[Who]) -> Vec<(Role, Vec<usize>)> {
        let mut sorted = all.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut roles: Vec<(Role, Vec<usize>)> = Vec::new();
        for Who { role, number } in sorted {
            match roles.last_mut() {
                Some((last, numbers)) if *last == role => numbers.push(number),
                _ => roles.push((role, vec![number])),
            }
        }
        roles
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.number)
    }
}
