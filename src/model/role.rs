//! Role of a process in a job, and the label by which it is named.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Role of a process. Each role numbers its processes from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Trainer: a rank.
    #[default]
    Trainer,
    /// Parameter server.
    Server,
    /// Worker of a later stage, on another type of device.
    HeterWorker,
    /// Coordinator, which selects the clients of a federated job.
    Coordinator,
    /// Tuner of automatic parallelism, which runs before the job.
    Tuner,
    /// Mapper, which writes a rank mapping before the job.
    Mapper,
}

impl Role {
    /// Prefix of the names of its log files.
    pub fn log_prefix(self) -> &'static str {
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

/// The noun of the label: `rank 3`, `server 0`.
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

/// Serialized under the same name.
impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let all = [Self::Trainer, Self::Server, Self::HeterWorker, Self::Coordinator, Self::Tuner, Self::Mapper];
        let found = all.into_iter().find(|role| role.to_string() == name);
        found.ok_or_else(|| D::Error::custom(format!("{name} is no role")))
    }
}

/// Label of a process: its role, and its number among the processes of that role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessLabel {
    /// Its role.
    pub role: Role,
    /// Its number among the processes of its role, in the job.
    pub number: usize,
}

impl ProcessLabel {
    /// The label of a rank.
    pub fn rank(number: usize) -> Self {
        Self { role: Role::Trainer, number }
    }

    /// Numbers by role, sorted and without duplicates.
    pub fn by_role(all: &[ProcessLabel]) -> Vec<(Role, Vec<usize>)> {
        let mut sorted = all.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut roles: Vec<(Role, Vec<usize>)> = Vec::new();
        for ProcessLabel { role, number } in sorted {
            match roles.last_mut() {
                Some((last, numbers)) if *last == role => numbers.push(number),
                _ => roles.push((role, vec![number])),
            }
        }
        roles
    }
}

impl fmt::Display for ProcessLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.number)
    }
}
