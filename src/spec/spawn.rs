//! What `rlaunch.spawn` was asked to do, checked in the order that `paddle.distributed.spawn` has.

use super::options::Vars;
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
}

/// A checked request.
#[derive(Clone, Debug)]
pub struct SpawnSpec {
    /// Ranks.
    pub nprocs: usize,
    /// Their backend.
    pub backend: Backend,
    /// Their address.
    pub host: String,
    /// The first rank's port, the others following; `None`: free ports.
    pub first_port: Option<u16>,
    /// Explicit GPUs.
    pub gpus: Option<String>,
    /// Explicit XPUs.
    pub xpus: Option<String>,
    /// Explicit devices by the older name.
    pub selected_devices: Option<String>,
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

/// Whether the variables of a PaddleCloud job are all there.
fn on_paddlecloud(vars: &Vars) -> bool {
    ["PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM"].iter().all(|name| vars.contains_key(*name))
}

/// Checks the options. `nprocs` of zero or less plans no rank.
pub fn check(nprocs: i64, options: &SpawnOptions, vars: &Vars) -> Result<SpawnSpec, SpawnError> {
    check_backend(&options.backend)?;
    let ips = options.ips.as_deref().or(options.cluster_node_ips.as_deref()).unwrap_or("127.0.0.1");
    let backend = match options.backend.as_str() {
        "gloo" => {
            gloo_only(options, ips, vars)?;
            Backend::Gloo
        }
        "nccl" => Backend::Nccl,
        "bkcl" => Backend::Bkcl,
        "xccl" => {
            return Err(SpawnError::Runtime(
                "backend 'xccl' needs a custom device, which this version of rlaunch does not know; use 'nccl', \
                 'bkcl' or 'gloo'"
                    .into(),
            ));
        }
        _ => return Err(SpawnError::Value("backend must be one of 'gloo, nccl, bkcl'".into())),
    };
    if backend != Backend::Gloo && (ips.contains(',') || options.use_paddlecloud == Some(true)) {
        return Err(SpawnError::Runtime(
            "jobs on several nodes are not in this version of rlaunch.spawn; leave out ips, cluster_node_ips and \
             use_paddlecloud"
                .into(),
        ));
    }
    let host = match (backend, &options.node_ip) {
        (Backend::Gloo, _) | (_, None) => ips.trim().to_owned(),
        (_, Some(ip)) if ip == ips.trim() => ip.clone(),
        (_, Some(ip)) => return Err(SpawnError::Value(format!("'{ip}' is not in list"))),
    };
    Ok(SpawnSpec {
        nprocs: usize::try_from(nprocs).unwrap_or(0),
        backend,
        host,
        first_port: first_port(backend, options, vars)?,
        gpus: options.gpus.clone(),
        xpus: options.xpus.clone(),
        selected_devices: options.selected_devices.clone(),
    })
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

/// Python's `int(text)`, message included.
fn python_int(text: &str) -> Result<i64, SpawnError> {
    text.trim()
        .parse()
        .map_err(|_| SpawnError::Value(format!("invalid literal for int() with base 10: '{}'", text.escape_default())))
}

fn first_port(backend: Backend, options: &SpawnOptions, vars: &Vars) -> Result<Option<u16>, SpawnError> {
    let number = match backend {
        Backend::Gloo => match vars.get("FLAGS_START_PORT") {
            Some(text) => Some(python_int(text)?),
            None => on_paddlecloud(vars).then_some(6070),
        },
        Backend::Nccl | Backend::Bkcl => options.started_port.or_else(|| on_paddlecloud(vars).then_some(6070)),
    };
    number
        .map(|n| match u16::try_from(n) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(SpawnError::Value(format!("{n} is no port; give a number from 1 to 65535"))),
        })
        .transpose()
}

/// Checks the names of options, in the order given. Returns those that are deprecated.
pub fn check_option_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<&'a str>, SpawnError> {
    let mut deprecated = Vec::new();
    for name in names {
        match name {
            "start_method" | "ips" | "gpus" | "xpus" | "print_config" | "backend" => {}
            // Extensions of rlaunch.
            "grace" | "log_dir" => {}
            "selected_devices" | "started_port" | "cluster_node_ips" | "node_ip" | "use_paddlecloud" => {
                deprecated.push(name);
            }
            _ => {
                return Err(SpawnError::Value(format!(
                    "The config option ({name}) of `paddle.distributed.spawn` is not supported."
                )));
            }
        }
    }
    Ok(deprecated)
}
