//! Nested launchers: a launcher inside a rank of another job ignores the variables of that job.

use crate::framework::is_paddle_variable;
use crate::model::EnvDelta;
use crate::spec::options::EnvVars;
use crate::spec::paddle::options::OPTIONS;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Variable with the names and hashes of the variables that nested launchers inherit and ignore.
pub const EXPORTED: &str = "RLAUNCH_EXPORTED";

/// Variable with the log directory of the outer job.
pub const OUTER_LOGS: &str = "RLAUNCH_OUTER_LOGS";

/// Hashes that all ranks of a launcher share, computed once.
#[derive(Debug, Default)]
pub struct ExportHashes {
    /// Hashes of long values that many ranks share.
    long: HashMap<*const u8, (Arc<str>, u32)>,
    /// Entries of the layout variables that the user set for this launcher, which its ranks inherit.
    user_layout: Option<String>,
}

impl ExportHashes {
    fn of(&mut self, value: &Arc<str>) -> u32 {
        if value.len() < 256 {
            return fnv(value);
        }
        // The value is kept, so that no other value gets its address.
        self.long.entry(value.as_ptr()).or_insert_with(|| (value.clone(), fnv(value))).1
    }
}

/// Options whose variables determine the layout of a job, and would change the layout of a nested job.
const LAYOUT: [&str; 17] = [
    "nproc_per_node",
    "devices",
    "run_mode",
    "frameworks",
    "job_id",
    "auto_parallel_config",
    "log_dir",
    "ips",
    "host",
    "start_port",
    "nnodes",
    "rank",
    "master",
    "servers",
    "trainers",
    "server_num",
    "trainer_num",
];

/// Layout variables that belong to no option.
const LAYOUT_VARIABLES: [&str; 10] = [
    "PADDLE_TRAINER_ENDPOINTS",
    "DISTRIBUTED_TRAINER_ENDPOINTS",
    "PADDLE_TRAINERS",
    "TRAINER_PORTS_NUM",
    "PADDLE_PORT",
    "FLAGS_FIXED_PORT",
    "FLAGS_START_PORT",
    "PADDLE_RANK_MAPPING_PATH",
    "RANK_TABLE_FILE",
    "PADDLE_DISTRI_BACKEND",
];

fn user_layout(vars: &EnvVars) -> String {
    let of_options = OPTIONS.iter().filter(|opt| LAYOUT.contains(&opt.name)).flat_map(|opt| opt.env.iter().copied());
    let mut text = String::new();
    for name in of_options.chain(LAYOUT_VARIABLES) {
        if let Some(value) = vars.get(name) {
            push_entry(&mut text, name, fnv(value));
        }
    }
    text
}

/// The value of RLAUNCH_EXPORTED for a rank: the variables that its launcher sets, without those of `is_kept`, and the
/// layout variables that the user set for that launcher. Of two entries for a name, the first is that of the rank.
pub fn exported(env: &EnvDelta, vars: &EnvVars, hashes: &mut ExportHashes) -> String {
    let own = env.vars().iter().filter(|(name, _)| !is_kept(name));
    let mut text = String::with_capacity(640);
    for (name, value) in own {
        push_entry(&mut text, name, hashes.of(value));
    }
    let user_layout = hashes.user_layout.get_or_insert_with(|| user_layout(vars));
    if !user_layout.is_empty() && !text.is_empty() {
        text.push(',');
    }
    text.push_str(user_layout);
    text
}

/// Variables that a nested launcher does use: visible lists, other settings of the node, and those of rlaunch.
fn is_kept(name: &str) -> bool {
    ["_VISIBLE_DEVICES", "_original", "_IFNAME", "OMP_NUM_THREADS"].iter().any(|tail| name.ends_with(tail))
        || name.starts_with("RLAUNCH_")
}

fn push_entry(text: &mut String, name: &str, hash: u32) {
    if !text.is_empty() {
        text.push(',');
    }
    text.push_str(name);
    text.push('=');
    push_hex(text, hash);
}

/// The outer rank inside which a launcher runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OuterLauncher {
    /// Names of the variables that were inherited from the outer launcher, and are dropped.
    pub dropped: Vec<String>,
    /// Its local rank.
    local_rank: usize,
    /// Log directory of the outer job, if known.
    log_dir: Option<String>,
}

impl OuterLauncher {
    /// Log directory of a nested launcher, if it would otherwise write into that of the outer job.
    /// `is_outers`: whether the nested launcher would use this directory.
    pub fn nested_log_dir(&self, is_outers: impl Fn(&str) -> bool) -> Option<String> {
        let outer = self.log_dir.as_deref().filter(|outer| is_outers(outer))?;
        Some(format!("{outer}/nested.{}", self.local_rank))
    }
}

/// The message that a nested launcher prints.
impl fmt::Display for OuterLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("running inside a rank of another job; this is a separate job, which ignores the variables of the outer one")
    }
}

/// Removes the variables that an outer launcher set, such as log directory, master and endpoints of the outer job.
/// Variables that the user has changed since then stay.
pub fn without_outer_exports(vars: &EnvVars) -> (EnvVars, Option<OuterLauncher>) {
    let mut own = vars.clone();
    let Some(exported) = own.remove(EXPORTED) else { return without_paddles_exports(own) };
    // RLAUNCH_RANK_KEY: key/attempt/local_rank.
    let local_rank = vars.get("RLAUNCH_RANK_KEY").and_then(|key| key.rsplit('/').next()?.parse().ok()).unwrap_or(0);
    let mut outer = OuterLauncher { dropped: Vec::new(), local_rank, log_dir: own.remove(OUTER_LOGS) };
    for entry in exported.split(',') {
        let Some((name, hash)) = entry.split_once('=') else { continue };
        if vars.get(name).is_none_or(|value| format!("{:08x}", fnv(value)) != hash) {
            continue;
        }
        own.remove(name);
        outer.dropped.push(name.to_owned());
    }
    (own, Some(outer))
}

/// Variables that together identify a rank of Paddle's own launcher.
const PADDLE_RANK_VARIABLES: [&str; 4] = ["PADDLE_GLOBAL_RANK", "PADDLE_LOCAL_RANK", "PADDLE_LOG_DIR", "POD_NAME"];

/// The same inside a rank of Paddle's own launcher. It does not list what it exports, so every variable that it can set is
/// dropped.
fn without_paddles_exports(mut own: EnvVars) -> (EnvVars, Option<OuterLauncher>) {
    let [Some(_), Some(local_rank), Some(log_dir), Some(_)] = PADDLE_RANK_VARIABLES.map(|name| own.get(name)) else {
        return (own, None);
    };
    let (local_rank, log_dir) = (local_rank.parse().unwrap_or(0), Some(log_dir.clone()));
    let dropped: Vec<String> = own.keys().filter(|name| is_paddle_variable(name) && !is_kept(name)).cloned().collect();
    own.retain(|name, _| !dropped.contains(name));
    (own, Some(OuterLauncher { dropped, local_rank, log_dir }))
}

/// Appends eight hexadecimal digits. `write!` is too slow for ten thousand ranks with twenty of them each.
fn push_hex(text: &mut String, number: u32) {
    for place in (0..8).rev() {
        text.extend(char::from_digit(number >> (4 * place) & 15, 16));
    }
}

/// FNV-1a, 32 bits: compares values without exposing them.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_launcher_drops_inherited_variables_and_keeps_changed_ones() {
        let mut env = EnvDelta::new();
        env.set("PADDLE_LOG_DIR", "/outer").set("PADDLE_MASTER", "1.1.1.1:1").set("CUDA_VISIBLE_DEVICES", "1");
        let mut vars: EnvVars = env.vars().iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        vars.insert(
            EXPORTED.into(),
            exported(&env, &EnvVars::from([("PADDLE_IPS".into(), "a,b".into())]), &mut ExportHashes::default()),
        );
        vars.insert("PADDLE_MASTER".into(), "2.2.2.2:2".into());
        vars.insert("PADDLE_IPS".into(), "a,b".into());
        vars.insert("RLAUNCH_RANK_KEY".into(), "abc/0/3".into());
        vars.insert(OUTER_LOGS.into(), "/outer".into());
        let (own, outer) = without_outer_exports(&vars);
        let outer = outer.unwrap();
        assert_eq!(outer.dropped, ["PADDLE_LOG_DIR", "PADDLE_IPS"]);
        assert_eq!(outer.nested_log_dir(|outer| outer == "/outer").as_deref(), Some("/outer/nested.3"));
        assert_eq!(outer.nested_log_dir(|_| false), None);
        assert_eq!(own.keys().collect::<Vec<_>>(), ["CUDA_VISIBLE_DEVICES", "PADDLE_MASTER", "RLAUNCH_RANK_KEY"]);
    }
}
