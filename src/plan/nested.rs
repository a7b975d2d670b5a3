//! A launcher inside a rank of another: it has to tell what the user says from what it inherits.

use crate::dialect::is_paddles;
use crate::model::EnvPatch;
use crate::spec::options::{OPTIONS, Vars};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The variable in which a launcher tells the launchers below it what they inherit from it.
pub const EXPORTED: &str = "RLAUNCH_EXPORTED";

/// The variable with the folder of a rank's log, for launchers inside it.
pub const OUTER_LOGS: &str = "RLAUNCH_OUTER_LOGS";

/// What all ranks of a launcher are told alike, worked out once.
#[derive(Debug, Default)]
pub struct Hashes {
    /// Of long values that many ranks share.
    long: HashMap<*const u8, (Arc<str>, u32)>,
    /// The entries of what the user told the launcher of this job by variables, which its ranks inherit.
    told: Option<String>,
}

impl Hashes {
    fn of(&mut self, value: &Arc<str>) -> u32 {
        if value.len() < 256 {
            return fnv(value);
        }
        // The value is kept, so that its address stays its own.
        self.long.entry(value.as_ptr()).or_insert_with(|| (value.clone(), fnv(value))).1
    }
}

/// Options of how a job is laid out, by whose variables a launcher inside a rank would lay out its own.
const LAYOUT: [&str; 17] = [
    "nproc_per_node",
    "devices",
    "run_mode",
    "dialect",
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

/// Variables of the same that belong to no option.
const BESIDE: [&str; 10] = [
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

fn told(vars: &Vars) -> String {
    let of_options = OPTIONS.iter().filter(|opt| LAYOUT.contains(&opt.name)).flat_map(|opt| opt.env);
    let mut text = String::new();
    for name in of_options.chain(&BESIDE) {
        if let Some(value) = vars.get(*name) {
            push_entry(&mut text, name, fnv(value));
        }
    }
    text
}

/// What a rank is told of it: all that its launcher sets, but for which devices it sees at all, and what the user told
/// that launcher of the layout. Of two entries for a name the first is the rank's own.
pub fn exported(env: &EnvPatch, vars: &Vars, hashes: &mut Hashes) -> String {
    let own = env.vars().iter().filter(|(name, _)| !is_apart(name));
    let mut text = String::with_capacity(640);
    for (name, value) in own {
        push_entry(&mut text, name, hashes.of(value));
    }
    let told = hashes.told.get_or_insert_with(|| told(vars));
    if !told.is_empty() && !text.is_empty() {
        text.push(',');
    }
    text.push_str(told);
    text
}

/// What a launcher inside a rank may go by: which devices it sees, and what is rlaunch's own.
fn is_apart(name: &str) -> bool {
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

/// The rank that a launcher itself runs inside of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outer {
    /// The names of the variables that were inherited from its launcher, and are dropped.
    pub dropped: Vec<String>,
    /// Its number on its node.
    local_rank: usize,
    /// The folder of its job's logs, if its launcher said.
    log_dir: Option<String>,
}

impl Outer {
    /// Where a launcher's own logs go: never among the outer job's, whose readers would take them for its.
    /// `is_outers`: whether they would go into that folder otherwise. `None`: they may go where they would.
    pub fn log_folder(&self, is_outers: impl Fn(&str) -> bool) -> Option<String> {
        let outer = self.log_dir.as_deref().filter(|outer| is_outers(outer))?;
        Some(format!("{outer}/nested.{}", self.local_rank))
    }
}

/// What is said to whoever runs a launcher inside a rank.
impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("running inside a rank of another job: this is one of its own, which inherits nothing of that one")
    }
}

/// The variables of a launcher that may itself run inside a rank, without what the outer launcher put
/// there: else it would take the outer job's log folder, master and endpoints for its own. What the
/// user has set anew in between stays.
pub fn without_outer_exports(vars: &Vars) -> (Vars, Option<Outer>) {
    let mut own = vars.clone();
    let Some(exported) = own.remove(EXPORTED) else { return without_paddles_exports(own) };
    // RLAUNCH_RANK_KEY: key/attempt/local_rank.
    let local_rank = vars.get("RLAUNCH_RANK_KEY").and_then(|key| key.rsplit('/').next()?.parse().ok()).unwrap_or(0);
    let mut outer = Outer { dropped: Vec::new(), local_rank, log_dir: own.remove(OUTER_LOGS) };
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

/// Variables that only ranks of Paddle's own launcher have all together.
const OF_PADDLE: [&str; 4] = ["PADDLE_GLOBAL_RANK", "PADDLE_LOCAL_RANK", "PADDLE_LOG_DIR", "POD_NAME"];

/// The same inside a rank of Paddle's own launcher, which does not say what it exports: all that it writes is dropped.
fn without_paddles_exports(mut own: Vars) -> (Vars, Option<Outer>) {
    let [Some(_), Some(local_rank), Some(log_dir), Some(_)] = OF_PADDLE.map(|name| own.get(name)) else {
        return (own, None);
    };
    let (local_rank, log_dir) = (local_rank.parse().unwrap_or(0), Some(log_dir.clone()));
    let dropped: Vec<String> = own.keys().filter(|name| is_paddles(name) && !is_apart(name)).cloned().collect();
    own.retain(|name, _| !dropped.contains(name));
    (own, Some(Outer { dropped, local_rank, log_dir }))
}

/// Eight hexadecimal digits, without the machinery of `write!`: ten thousand ranks have twenty of them each.
fn push_hex(text: &mut String, number: u32) {
    for place in (0..8).rev() {
        text.extend(char::from_digit(number >> (4 * place) & 15, 16));
    }
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
        env.set("PADDLE_LOG_DIR", "/outer").set("PADDLE_MASTER", "1.1.1.1:1").set("CUDA_VISIBLE_DEVICES", "1");
        let mut vars: Vars = env.vars().iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        vars.insert(
            EXPORTED.into(),
            exported(&env, &Vars::from([("PADDLE_IPS".into(), "a,b".into())]), &mut Hashes::default()),
        );
        vars.insert("PADDLE_MASTER".into(), "2.2.2.2:2".into());
        vars.insert("PADDLE_IPS".into(), "a,b".into());
        vars.insert("RLAUNCH_RANK_KEY".into(), "abc/0/3".into());
        vars.insert(OUTER_LOGS.into(), "/outer".into());
        let (own, outer) = without_outer_exports(&vars);
        let outer = outer.unwrap();
        assert_eq!(outer.dropped, ["PADDLE_LOG_DIR", "PADDLE_IPS"]);
        assert_eq!(outer.log_folder(|outer| outer == "/outer").as_deref(), Some("/outer/nested.3"));
        assert_eq!(outer.log_folder(|_| false), None);
        assert_eq!(own.keys().collect::<Vec<_>>(), ["CUDA_VISIBLE_DEVICES", "PADDLE_MASTER", "RLAUNCH_RANK_KEY"]);
    }
}
