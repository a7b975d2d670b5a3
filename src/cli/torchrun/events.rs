//! `--event-log-handler console`: torchelastic's events on stderr, one JSON object a line.

use crate::cli::common::message;
use crate::run::launch::Launch;
use crate::run::launch_result::LaunchResult;
use crate::spec::torchrun::TorchSpec;
use crate::supervise::{ChildId, NodeOutcome};
use crate::sys::clock;
use serde_json::{Value, json};
use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

/// Writes the events of one job.
pub struct EventLogger<'a> {
    spec: &'a TorchSpec,
    run_id: String,
    host: String,
    nnodes: Cell<usize>,
    node: Cell<usize>,
    /// The program of the workers, by its name alone.
    entry_point: String,
    attempt: Cell<u32>,
    began: Duration,
}

impl<'a> EventLogger<'a> {
    /// Events of this job. `program`: what its workers run; `node` and `nnodes`: this node's number, and of how many.
    pub fn new(spec: &'a TorchSpec, run_id: &str, host: &str, (node, nnodes): (usize, usize), program: &Path) -> Self {
        let entry_point = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (run_id, host) = (run_id.to_owned(), host.to_owned());
        let (node, nnodes) = (Cell::new(node), Cell::new(nnodes));
        Self { spec, run_id, host, nnodes, node, entry_point, attempt: Cell::new(0), began: clock::now() }
    }

    /// Sets this node's number, and the number of nodes.
    pub fn set_node(&self, node: usize, nnodes: usize) {
        self.node.set(node);
        self.nnodes.set(nnodes);
    }

    /// The rendezvous for this attempt is complete; it took this long.
    pub fn rendezvous_done(&self, attempt: u32, took: Duration) {
        self.attempt.set(attempt);
        let millis = took.as_secs_f64() * 1000.0;
        // In both events torchelastic has the sizes from before the rendezvous.
        let is_known = attempt > 0;
        for (state, millis) in [("RENDEZVOUS", millis), ("ASSIGN_WORKER_RANKS", 0.0)] {
            let size = if is_known { json!(self.nnodes.get()) } else { Value::Null };
            let details = json!({"group_world_size": size, "entry_point": self.entry_point});
            let group_rank = if is_known { json!(self.node.get()) } else { Value::Null };
            self.write_event(state, "AGENT", None, (group_rank, details), Value::Null, json!(millis));
        }
    }

    /// A worker's process has started.
    pub fn started(&self, pid: i32, id: ChildId, launch: &Launch<'_>) {
        let worker =
            WorkerFields { pid, rank: launch.plan.ranks[id.local_rank].rank, local_rank: id.local_rank, launch };
        self.attempt.set(id.attempt);
        self.worker("START", &worker, None, Value::Null);
    }

    /// The job has ended. `error_data`: the content of a worker's error file.
    pub fn ended(&self, launch: &Launch<'_>, launched: &LaunchResult, error_data: &dyn Fn(usize) -> Value) {
        let succeeded = launched.report.outcome == NodeOutcome::Completed;
        for (local_rank, end) in launched.report.ranks.iter().enumerate() {
            let Some(pid) = launched.processes[local_rank].pid else { continue };
            let worker = WorkerFields { pid, rank: launch.plan.ranks[local_rank].rank, local_rank, launch };
            let failed = end.exit.filter(|exit| !exit.is_success() && !end.signalled);
            match failed {
                _ if succeeded => self.worker("SUCCEEDED", &worker, None, Value::Null),
                None => self.worker("TERMINATED", &worker, None, Value::Null),
                Some(exit) => {
                    let raw = json!(error_data(local_rank).to_string());
                    self.worker("FAILED", &worker, Some(exit.returncode()), raw);
                }
            }
        }
        let details = json!({"group_world_size": self.nnodes.get(), "entry_point": self.entry_point});
        let state = if succeeded { "SUCCEEDED" } else { "FAILED" };
        self.write_event(state, "AGENT", None, (json!(self.node.get()), details), Value::Null, Value::Null);
    }

    fn worker(&self, state: &str, worker: &WorkerFields<'_>, code: Option<i32>, raw_error: Value) {
        let number = |name: &str| -> Value {
            worker.launch.plan.ranks[worker.local_rank].env.get(name).and_then(|text| text.parse::<u64>().ok()).into()
        };
        let details = json!({
            "group_world_size": self.nnodes.get(),
            "entry_point": self.entry_point,
            "local_rank": [worker.local_rank],
            "role_rank": [number("ROLE_RANK")],
            "role_world_size": [number("ROLE_WORLD_SIZE")],
            "exit_code": [code],
            "worker_pid": [code.map(|_| worker.pid)],
        });
        let worker = Some((worker.rank, worker.pid));
        self.write_event(state, "WORKER", worker, (json!(self.node.get()), details), raw_error, Value::Null);
    }

    fn write_event(
        &self,
        state: &str,
        source: &str,
        worker: Option<(usize, i32)>,
        (group_rank, details): (Value, Value),
        raw_error: Value,
        duration_ms: Value,
    ) {
        let has_ended = matches!(state, "SUCCEEDED" | "FAILED" | "TERMINATED");
        let seconds = if has_ended { clock::now().saturating_sub(self.began).as_secs() } else { 0 };
        let event = json!({
            "name": format!("torchelastic.worker.status.{state}"),
            "source": source,
            "timestamp": 0,
            "metadata": {
                "run_id": self.run_id,
                "global_rank": worker.map(|(rank, _)| rank),
                "group_rank": group_rank,
                "worker_id": worker.map(|(_, pid)| pid.to_string()),
                "role": self.spec.role,
                "hostname": self.host,
                "state": state,
                "total_run_time": seconds,
                "rdzv_backend": self.spec.backend,
                "raw_error": raw_error,
                "metadata": details.to_string(),
                "agent_restarts": self.attempt.get(),
                "duration_ms": duration_ms,
            },
        });
        message::to_stderr(format!("{event}\n").as_bytes());
    }
}

struct WorkerFields<'a> {
    pid: i32,
    rank: usize,
    local_rank: usize,
    launch: &'a Launch<'a>,
}
