//! A launcher inside a rank of another: it has to tell what the user says from what it inherits.

use crate::model::EnvPatch;
use crate::spec::options::Vars;
use std::collections::HashMap;
use std::sync::Arc;

/// The variable in which a launcher tells the launchers below it what they inherit from it.
pub const EXPORTED: &str = "RLAUNCH_EXPORTED";

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
    own.map(|(name, value)| format!("{name}={:08x}", hashes.of(value))).collect::<Vec<_>>().join(",")
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
        env.set("PADDLE_LOG_DIR", "/outer").set("PADDLE_MASTER", "1.1.1.1:1").set("CUDA_VISIBLE_DEVICES", "1");
        let mut vars: Vars = env.vars().iter().map(|(n, v)| (n.clone(), v.to_string())).collect();
        vars.insert(EXPORTED.into(), exported(&env, &mut Hashes::default()));
        vars.insert("PADDLE_MASTER".into(), "2.2.2.2:2".into());
        let (own, dropped) = without_outer_exports(&vars);
        assert_eq!(dropped, ["PADDLE_LOG_DIR"]);
        assert_eq!(own.keys().collect::<Vec<_>>(), ["CUDA_VISIBLE_DEVICES", "PADDLE_MASTER"]);
    }
}
