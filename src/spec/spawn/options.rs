//! The options of `rlaunch.spawn`, checked in the order of `paddle.distributed.spawn`.

use crate::spec::frameworks as framework_names;
use crate::spec::frameworks::Framework;
use crate::spec::options::EnvVars;
use std::collections::BTreeSet;
use thiserror::Error;

/// An error of `spawn`, by the type of Python exception that the contract requires.
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
    /// ValueError with the message of Python's `int()` for this text.
    #[error("invalid literal for int() with base 10: '{0}'")]
    NotInt(String),
    /// TypeError for a variable that is not set.
    #[error("{0} should not be None")]
    NoneForInt(&'static str),
}

/// The communication backend of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnBackend {
    /// CPU.
    Gloo,
    /// NVIDIA GPUs.
    Nccl,
    /// Kunlun XPUs.
    Bkcl,
    /// Devices of a Paddle plug-in.
    Xccl,
}

/// The options of `spawn` that decide numbers, devices and endpoints of the ranks.
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
    /// `frameworks`.
    pub frameworks: Option<String>,
}

impl SpawnOptions {
    /// The selected devices: the backend's own option, else `selected_devices`.
    pub fn selected<'a>(&'a self, own: &'a Option<String>) -> Option<&'a String> {
        own.as_ref().or(self.selected_devices.as_ref())
    }
}

const BACKENDS: [&str; 7] = ["nccl", "gloo", "bkcl", "auto", "heter", "xccl", "flagcx"];

/// Checks the name of a backend.
pub fn check_backend(name: &str) -> Result<(), SpawnError> {
    if BACKENDS.contains(&name) {
        return Ok(());
    }
    Err(SpawnError::Value(format!(
        "paddle.distributed initialize error, backend argument can only be one of 'nccl', 'gloo', 'bkcl', 'auto', \
         'heter', 'xccl' but got {name}"
    )))
}

/// The addresses of the nodes.
pub(crate) fn ips(options: &SpawnOptions) -> &str {
    options.ips.as_deref().or(options.cluster_node_ips.as_deref()).unwrap_or("127.0.0.1")
}

/// Reads `frameworks`: the frameworks whose variables the ranks receive, by default Paddle's.
pub fn requested_frameworks(options: &SpawnOptions) -> Result<BTreeSet<Framework>, SpawnError> {
    let text = options.frameworks.as_deref().unwrap_or("paddle");
    let refuse =
        || SpawnError::Value(format!("frameworks {text:?} {}; {}", framework_names::UNKNOWN, framework_names::HINT));
    framework_names::read(text).ok_or_else(refuse)
}

/// Checks the backend, and what gloo does not support.
pub fn check(options: &SpawnOptions, vars: &EnvVars) -> Result<SpawnBackend, SpawnError> {
    check_backend(&options.backend)?;
    match options.backend.as_str() {
        "gloo" => check_gloo(options, ips(options), vars).map(|()| SpawnBackend::Gloo),
        "nccl" => Ok(SpawnBackend::Nccl),
        "bkcl" => Ok(SpawnBackend::Bkcl),
        "xccl" => Ok(SpawnBackend::Xccl),
        _ => Err(SpawnError::Value("backend must be one of 'gloo, nccl, bkcl'".into())),
    }
}

/// Refuses what gloo does not support, in the order of the contract.
fn check_gloo(options: &SpawnOptions, ips: &str, vars: &EnvVars) -> Result<(), SpawnError> {
    if options.use_paddlecloud.is_some() {
        return Err(SpawnError::Assertion("CPUONLY spawn doesn't support use paddle cloud".into()));
    }
    if ips.contains(',') {
        // The placeholder is part of the message that users' tests match.
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

/// Python's `int(text)` for ASCII digits: white space around, a sign, single underscores between digits. A number that is
/// too large becomes the largest one of its sign, which no option accepts.
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

/// Checks the name of an option, and returns whether Paddle has deprecated it.
pub fn check_option_name(name: &str) -> Result<bool, SpawnError> {
    match name {
        "start_method" | "ips" | "gpus" | "xpus" | "print_config" | "backend" => Ok(false),
        // Extensions of rlaunch.
        "frameworks" | "grace_period" | "log_dir" | "preload" => Ok(false),
        "selected_devices" | "started_port" | "cluster_node_ips" | "node_ip" | "use_paddlecloud" => Ok(true),
        _ => Err(SpawnError::Value(format!(
            "The config option ({name}) of `paddle.distributed.spawn` is not supported."
        ))),
    }
}
