//! Floor 3: who runs, where, with which environment. Pure: facts go in, a plan comes out.

pub mod command;
pub mod devices;
pub mod machine;
pub mod spawn;
pub mod visible;

use crate::dialect::{Identity, paddle_launch};
use crate::model::{Endpoint, EnvPatch};
use crate::spec::LaunchSpec;
use crate::spec::launch::Ports;
use crate::spec::options::Vars;
use devices::Share;
use std::ffi::OsString;

/// What the planner has to know of the machine and of this process.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// The Python interpreter that runs the launcher.
    pub python: OsString,
    /// Absolute folder of the logs.
    pub log_dir: String,
    /// This launcher's random name.
    pub pod_name: String,
}

/// One rank of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankPlan {
    /// Who it is.
    pub identity: Identity,
    /// Its program (a name or a path) and arguments.
    pub argv: Vec<OsString>,
    /// What changes in its environment.
    pub env: EnvPatch,
    /// Its log file's name within the log folder.
    pub log: String,
    /// Variables too long for an environment, and the file that holds them instead.
    pub backup: Option<Backup>,
}

/// A file with variables that did not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Absolute path.
    pub path: String,
    /// The variables.
    pub vars: Vec<(String, String)>,
}

/// What is going to run on this node.
#[derive(Clone, Debug)]
pub struct Plan {
    /// By local rank.
    pub ranks: Vec<RankPlan>,
    /// This launcher's name.
    pub pod: paddle_launch::Pod,
    /// The job's name.
    pub job_id: String,
}

impl Plan {
    /// The endpoints of all ranks.
    pub fn endpoints(&self) -> &[Endpoint] {
        self.ranks.first().map_or(&[], |r| &r.identity.endpoints)
    }
}

/// The ports of one node: the ranks', and the master's if it is not the first rank's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePorts {
    /// By local rank.
    pub ranks: Vec<u16>,
    /// The master's own.
    pub master: Option<u16>,
}

/// Whether a request needs a port for the master beside those of the ranks.
pub fn wants_master_port(spec: &LaunchSpec) -> bool {
    !matches!(spec.ports, Ports::Layout { .. })
}

/// The plan of a collective job on one node. `shares` and `ports.ranks` have one entry a rank.
pub fn plan(spec: &LaunchSpec, vars: &Vars, facts: &HostFacts, shares: &[Share], ports: &NodePorts) -> Plan {
    let endpoints: Vec<_> = ports.ranks.iter().map(|&port| Endpoint::new(&spec.host, port)).collect();
    let master = match ports.master {
        Some(port) => Some(Endpoint::new(&spec.host, port)),
        None => endpoints.first().cloned(),
    };
    let pod = paddle_launch::Pod {
        name: facts.pod_name.clone(),
        log_dir: facts.log_dir.clone(),
        auto_cluster: spec.auto_cluster,
    };
    let argv = command::argv(&spec.script, &spec.args, &facts.python, vars);
    let ranks = shares.iter().enumerate().map(|(rank, share)| {
        let identity = Identity {
            rank,
            local_rank: rank,
            local_size: shares.len(),
            nnodes: 1,
            endpoints: endpoints.clone(),
            master: master.clone(),
            binding: share.binding.clone(),
        };
        let mut env = proxies_set_aside(vars);
        for name in share.lists.removed() {
            env.unset(name);
        }
        for (name, value) in share.lists.vars().iter().chain(paddle_launch::write(&identity, &pod).vars()) {
            env.set(name, value);
        }
        let backup = set_aside_too_long(&mut env, vars, &facts.log_dir, rank);
        env.set(EXPORTED, exported(&env));
        RankPlan { identity, argv: argv.clone(), env, log: format!("workerlog.{rank}"), backup }
    });
    Plan { ranks: ranks.collect(), pod, job_id: spec.job_id.clone() }
}

/// Lower-case proxies break the traffic between ranks: they are kept under another name.
fn proxies_set_aside(vars: &Vars) -> EnvPatch {
    let mut env = EnvPatch::new();
    for name in PROXIES {
        if let Some(value) = vars.get(name) {
            env.unset(name).set(format!("{name}_original"), value);
        }
    }
    env
}

/// Proxy variables that no rank sees.
pub const PROXIES: [&str; 2] = ["http_proxy", "https_proxy"];

/// Lists that are left out of the environment when they reach PADDLE_ENV_LIMIT_LEN (48000 bytes);
/// their readers look into PADDLE_BACKUP_ENV_PATH then.
fn set_aside_too_long(env: &mut EnvPatch, vars: &Vars, log_dir: &str, rank: usize) -> Option<Backup> {
    let limit = vars.get("PADDLE_ENV_LIMIT_LEN").and_then(|t| t.parse().ok()).unwrap_or(48_000);
    let mut long = Vec::new();
    for name in ["TRAINER_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS"] {
        let value = env.get(name).or(vars.get(name).map(String::as_str)).map(str::to_owned);
        if let Some(value) = value.filter(|v| v.len() >= limit) {
            env.unset(name);
            long.push((name.to_owned(), value));
        }
    }
    (!long.is_empty()).then(|| {
        let path = format!("{log_dir}/backup_env.{rank}.json");
        env.set("PADDLE_BACKUP_ENV_PATH", &path);
        Backup { path, vars: long }
    })
}

/// The variable in which a launcher tells the launchers below it what they inherit from it.
pub const EXPORTED: &str = "RLAUNCH_EXPORTED";

fn exported(env: &EnvPatch) -> String {
    let own = |name: &str| name.starts_with("PADDLE_") || name.starts_with("FLAGS_selected_") || name == "POD_NAME";
    let entry = |(name, value): &(String, String)| format!("{name}={:08x}", fnv(value));
    env.vars().iter().filter(|(name, _)| own(name)).map(entry).collect::<Vec<_>>().join(",")
}

/// The variables of a launcher that itself runs inside a rank, without what the outer launcher put
/// there: else it would take the outer job's log folder, master and endpoints for its own. What the
/// user has set anew in between stays. Returns the names that were dropped.
pub fn without_outer_exports(vars: &Vars) -> (Vars, Vec<String>) {
    let mut own = vars.clone();
    let mut dropped = Vec::new();
    for entry in vars.get(EXPORTED).map(String::as_str).unwrap_or("").split(',') {
        let Some((name, hash)) = entry.split_once('=') else { continue };
        if vars.get(name).is_some_and(|value| format!("{:08x}", fnv(value)) == hash) {
            own.remove(name);
            dropped.push(name.to_owned());
        }
    }
    own.remove(EXPORTED);
    (own, dropped)
}

/// FNV-1a, 32 bits: tells equal values from different ones without showing them.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_launcher_drops_what_it_inherits_and_keeps_what_was_set_anew() {
        let mut env = EnvPatch::new();
        env.set("PADDLE_LOG_DIR", "/outer").set("PADDLE_MASTER", "1.1.1.1:1").set("OTHER", "x");
        let mut vars: Vars = env.vars().iter().cloned().collect();
        vars.insert(EXPORTED.into(), exported(&env));
        vars.insert("PADDLE_MASTER".into(), "2.2.2.2:2".into());
        let (own, dropped) = without_outer_exports(&vars);
        assert_eq!(dropped, ["PADDLE_LOG_DIR"]);
        assert_eq!(own.keys().collect::<Vec<_>>(), ["OTHER", "PADDLE_MASTER"]);
    }
}
