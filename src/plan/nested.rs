//! A launcher inside a rank of another: it has to tell what the user says from what it inherits.

use crate::model::EnvPatch;
use crate::spec::options::Vars;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The variable in which a launcher tells the launchers below it what they inherit from it.
pub const EXPORTED: &str = "RLAUNCH_EXPORTED";

/// The variable with the folder of a rank's log, for launchers inside it.
pub const OUTER_LOGS: &str = "RLAUNCH_OUTER_LOGS";

/// Of long values that many ranks share, the hash.
#[derive(Debug, Default)]
pub struct Hashes(HashMap<*const u8, (Arc<str>, u32)>);

impl Hashes {
    fn of(&mut self, value: &Arc<str>) -> u32 {
        if value.len() < 256 {
            return fnv(value);
        }
        // The value is kept, so that its address stays its own.
        self.0.entry(value.as_ptr()).or_insert_with(|| (value.clone(), fnv(value))).1
    }
}

/// What a rank is told of it: all that its launcher sets, but for which devices it sees at all.
pub fn exported(env: &EnvPatch, hashes: &mut Hashes) -> String {
    let apart = |name: &str| ["_VISIBLE_DEVICES", "_original"].iter().any(|tail| name.ends_with(tail));
    let own = env.vars().iter().filter(|(name, _)| !apart(name) && !name.starts_with("RLAUNCH_"));
    let mut text = String::with_capacity(512);
    for (name, value) in own {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push('=');
        push_hex(&mut text, hashes.of(value));
    }
    text
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
    /// Where a launcher's own logs go, given the absolute folder that it was asked for, if any: never among the
    /// outer job's, whose readers would take them for its.
    pub fn log_folder(&self, asked: Option<&str>) -> Option<String> {
        let outer = self.log_dir.as_deref()?;
        (asked.is_none() || asked == Some(outer)).then(|| format!("{outer}/nested.{}", self.local_rank))
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
    let Some(exported) = own.remove(EXPORTED) else { return (own, None) };
    // RLAUNCH_JOB_KEY: key/attempt/local_rank.
    let local_rank = vars.get("RLAUNCH_JOB_KEY").and_then(|key| key.rsplit('/').next()?.parse().ok()).unwrap_or(0);
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
        vars.insert(EXPORTED.into(), exported(&env, &mut Hashes::default()));
        vars.insert("PADDLE_MASTER".into(), "2.2.2.2:2".into());
        vars.insert("RLAUNCH_JOB_KEY".into(), "abc/0/3".into());
        vars.insert(OUTER_LOGS.into(), "/outer".into());
        let (own, outer) = without_outer_exports(&vars);
        let outer = outer.unwrap();
        assert_eq!(outer.dropped, ["PADDLE_LOG_DIR"]);
        assert_eq!(outer.log_folder(None).as_deref(), Some("/outer/nested.3"));
        assert_eq!(outer.log_folder(Some("/outer")).as_deref(), Some("/outer/nested.3"));
        assert_eq!(outer.log_folder(Some("/else")), None);
        assert_eq!(own.keys().collect::<Vec<_>>(), ["CUDA_VISIBLE_DEVICES", "PADDLE_MASTER", "RLAUNCH_JOB_KEY"]);
    }
}
