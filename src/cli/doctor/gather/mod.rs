//! Collects the facts of this machine. Nothing is written, and what may hang has a time limit.

mod devices;
mod folders;
mod network;
mod system;

use crate::cli::common::interpreter::PythonFacts;
use crate::cli::doctor::facts::Facts;
use crate::plan::env::nested;
use crate::spec::options::EnvVars;
use std::path::Path;

/// Collects all facts. `log_dir`, `master`: the options.
pub(super) fn facts(log_dir: Option<&Path>, master: Option<&str>, python: PythonFacts) -> Facts {
    let root = Path::new("/");
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let all: EnvVars = std::env::vars_os().filter_map(text).collect();
    let (vars, outer) = nested::without_outer_exports(&all);
    let log_dir = log_dir.or(vars.get("PADDLE_LOG_DIR").map(Path::new)).unwrap_or(Path::new("log"));
    let devices = devices::find(root);
    Facts {
        system: system::system(root),
        limits: system::limits(root, devices.machine.devices().1),
        cpus: system::cpus(root),
        log_dir: folders::look(log_dir),
        shared_memory: folders::look(Path::new("/dev/shm")),
        devices,
        python,
        network: network::find(&vars, master),
        is_nested: outer.is_some(),
        vars,
    }
}
