//! What `rlaunch.spawn` was asked to do, checked in the order that `paddle.distributed.spawn` has.

use super::dialects::{self, Dialect};
use super::options::Vars;
use std::collections::BTreeSet;
use thiserror::Error;

/// An error of `spawn`, by the type of Python exception that the contract names.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SpawnError {
    /// ValueError.
    #[error("{0}")]
    Value(String),
    /// RuntimeError.
    #[error("{0}")]
    Runtime(String),
    /// AssertionError.
    #[error("{0}")]
    Assertion(String),
    /// IndexError.
    #[error("{0}")]
    Index(String),
    /// ValueError, with the words that Python's `int()` has for this text.
    #[error("invalid literal for int() with base 10: '{0}'")]
    NotInt(String),
    /// TypeError, with the words that Python's `int()` has for None, and the name of the variable that is not set.
    #[error("{0} should not be None")]
    NoneForInt(&'static str),
}

/// How the ranks talk to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// CPU.
    Gloo,
    /// NVIDIA GPUs.
    Nccl,
    /// Kunlun XPUs.
    Bkcl,
    /// Devices that Paddle knows by a plugin.
    Xccl,
}

/// The options of `spawn` that decide who the ranks are.
#[derive(Clone, Debug, Default)]
pub struct SpawnOptions {
    /// `backend`, resolved (never `auto`).
    pub backend: String,
    /// `ips`.
    pub ips: Option<String>,
    /// `gpus`.
    pub gpus: Option<String>,
    /// `xpus`.
    pub xpus: Option<String>,
    /// `selected_devices`.
    pub selected_devices: Option<String>,
    /// `started_port`.
    pub started_port: Option<i64>,
    /// `cluster_node_ips`.
    pub cluster_node_ips: Option<String>,
    /// `node_ip`.
    pub node_ip: Option<String>,
    /// `use_paddlecloud`: given and not None.
    pub use_paddlecloud: Option<bool>,
    /// `dialect`.
    pub dialect: Option<String>,
}

impl SpawnOptions {
    /// The devices that were asked for: by the backend's own option, else by `selected_devices`.
    pub fn explicit<'a>(&'a self, own: &'a Option<String>) -> Option<&'a String> {
        own.as_ref().or(self.selected_devices.as_ref())
    }
}

const BACKENDS: [&str; 7] = ["nccl", "gloo", "bkcl", "auto", "heter", "xccl", "flagcx"];

/// Checks a backend's name.
pub fn check_backend(name: &str) -> Result<(), SpawnError> {
    if BACKENDS.contains(&name) {
        return Ok(());
    }
    Err(SpawnError::Value(format!(
        "paddle.distributed initialize error, backend argument can only be one of 'nccl', 'gloo', 'bkcl', 'auto', \
         'heter', 'xccl' but got {name}"
    )))
}

/// The addresses that were asked for.
pub(super) fn ips(options: &SpawnOptions) -> &str {
    options.ips.as_deref().or(options.cluster_node_ips.as_deref()).unwrap_or("127.0.0.1")
}

/// Whose variables the ranks get: Paddle's, unless `dialect` says otherwise.
pub fn dialects(options: &SpawnOptions) -> Result<BTreeSet<Dialect>, SpawnError> {
    let text = options.dialect.as_deref().unwrap_or("paddle");
    let refuse = || SpawnError::Value(format!("dialect {text:?} {}; {}", dialects::UNKNOWN, dialects::HINT));
    dialects::read(text).ok_or_else(refuse)
}

/// The first checks: the backend, and what gloo cannot do.
pub fn check(options: &SpawnOptions, vars: &Vars) -> Result<Backend, SpawnError> {
    check_backend(&options.backend)?;
    match options.backend.as_str() {
        "gloo" => gloo_only(options, ips(options), vars).map(|()| Backend::Gloo),
        "nccl" => Ok(Backend::Nccl),
        "bkcl" => Ok(Backend::Bkcl),
        "xccl" => Ok(Backend::Xccl),
        _ => Err(SpawnError::Value("backend must be one of 'gloo, nccl, bkcl'".into())),
    }
}

/// What gloo cannot do, in the order of the contract.
fn gloo_only(options: &SpawnOptions, ips: &str, vars: &Vars) -> Result<(), SpawnError> {
    if options.use_paddlecloud.is_some() {
        return Err(SpawnError::Assertion("CPUONLY spawn doesn't support use paddle cloud".into()));
    }
    if ips.contains(',') {
        // The placeholder is in the message that users' tests match on.
        return Err(SpawnError::Assertion(
            "CPUONLY spawn only support single trainer, that is len(ips)=1, but got %s.".into(),
        ));
    }
    match vars.get("PADDLE_TRAINERS_NUM") {
        Some(text) if python_int(text)? != 1 => {
            Err(SpawnError::Assertion("CPUONLY spawn doesn't support multi-trainer".into()))
        }
        _ => Ok(()),
    }
}

/// Python's `int(text)` for ASCII digits: white space around, a sign, single underscores between digits.
/// A number too large for us is the largest of its sign, which nothing accepts.
pub fn python_int(text: &str) -> Result<i64, SpawnError> {
    let bare = text.trim();
    let (sign, digits) = match bare.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, bare.strip_prefix('+').unwrap_or(bare)),
    };
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits.split('_').all(number) {
        return Err(SpawnError::NotInt(text.to_owned()));
    }
    Ok(digits.replace('_', "").parse::<i64>().unwrap_or(i64::MAX) * sign)
}

/// Checks the name of an option; whether it is deprecated.
pub fn check_option_name(name: &str) -> Result<bool, SpawnError> {
    match name {
        "start_method" | "ips" | "gpus" | "xpus" | "print_config" | "backend" => Ok(false),
        // Extensions of rlaunch.
        "dialect" | "grace" | "log_dir" | "preload" => Ok(false),
        "selected_devices" | "started_port" | "cluster_node_ips" | "node_ip" | "use_paddlecloud" => Ok(true),
        _ => Err(SpawnError::Value(format!(
            "The config option ({name}) of `paddle.distributed.spawn` is not supported."
        ))),
    }
}
