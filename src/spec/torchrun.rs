//! TEMPORARY: what `python -m rlaunch.run` was asked to do.
#![allow(missing_docs)]
use super::launch::DryRun;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TorchScript {
    Python(OsString),
    Module(OsString),
    Program(OsString),
    RunPath(OsString),
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nproc {
    Count(usize),
    Cpu,
    Gpu,
    Xpu,
    Auto,
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    Alone,
    Static { host: String, port: u16, node_rank: usize, timeout: Duration },
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDir {
    Temporary,
    At(String),
    Nowhere,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Std {
    pub redirect: bool,
    pub tee: bool,
}
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    pub all: [Std; 2],
    pub of: BTreeMap<usize, [Std; 2]>,
}
impl Streams {
    pub fn of(&self, local_rank: usize) -> [Std; 2] {
        self.of.get(&local_rank).copied().unwrap_or(self.all)
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLog {
    Null,
    Console,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    None,
    Stderr,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numa {
    Node,
    Socket,
    Exclusive,
    CoreComplex,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    Paddle,
    Torch,
    Jax,
}
#[derive(Clone, Debug)]
pub struct TorchSpec {
    pub script: TorchScript,
    pub args: Vec<OsString>,
    pub pass_local_rank: bool,
    pub nodes: (usize, usize),
    pub nproc: Nproc,
    pub meeting: Meeting,
    pub run_id: Option<String>,
    pub backend: String,
    pub role: String,
    pub max_restarts: u32,
    pub monitor_interval: Duration,
    pub shutdown_timeout: Duration,
    pub log_dir: LogDir,
    pub streams: Streams,
    pub prefix_template: Option<String>,
    pub local_ranks_filter: Option<BTreeSet<usize>>,
    pub duplicate_stdout_filters: Vec<String>,
    pub duplicate_stderr_filters: Vec<String>,
    pub virtual_local_rank: bool,
    pub numa: Option<Numa>,
    pub bind_report: bool,
    pub signals: Vec<i32>,
    pub signals_text: String,
    pub local_addr: Option<String>,
    pub event_log: EventLog,
    pub capture: Capture,
    pub omp_compat: bool,
    pub exit_code_compat: bool,
    pub dialects: BTreeSet<Dialect>,
    pub dry_run: Option<DryRun>,
    pub log_level: String,
    pub warnings: Vec<String>,
}
