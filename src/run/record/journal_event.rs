//! The events of the journal, one a line of `events.jsonl`. Their schema is `docs/events.schema.json`.

use crate::model::{Exit, Role};
use crate::run::sampling::queue::RankSample;
use crate::run::stop_requests::{Arrival, StopCount, StopRoute};
use serde::Serialize;

/// One event. `rank` is the number in the job among ranks of its role; `local_rank` is the number on this node.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the schema describes each field")]
pub enum JournalEvent<'a> {
    JobStarted {
        job_id: &'a str,
        host: &'a str,
        ranks: usize,
        supervisor: u32,
        argv: Vec<String>,
    },
    ZygoteReady {
        pid: i32,
        seconds: f64,
        modules: &'a [String],
    },
    RankStarted {
        role: Role,
        rank: usize,
        local_rank: usize,
        attempt: u32,
        pid: i32,
    },
    RankNotStarted {
        role: Role,
        rank: usize,
        local_rank: usize,
        attempt: u32,
        why: &'a str,
    },
    RankEnded {
        role: Role,
        rank: usize,
        local_rank: usize,
        attempt: u32,
        pid: i32,
        exit: Exit,
        swept: usize,
        peak_memory_bytes: u64,
        cpu_seconds: f64,
    },
    Signal {
        signal: i32,
        /// Who asked: `signal`, or `user` by `rlaunch stop`.
        origin: &'static str,
        /// How a stop counts (`StopCount`).
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<&'static str>,
    },
    FrontLost,
    PreemptNotice {
        cause: &'static str,
        left_seconds: f64,
    },
    StopStep {
        step: Option<u64>,
    },
    Finishing {
        living: Vec<usize>,
        living_roles: Vec<Role>,
    },
    AwaitingServers {
        living: Vec<usize>,
        living_roles: Vec<Role>,
        limit_seconds: Option<f64>,
    },
    Stopping {
        signal: i32,
        living: Vec<usize>,
        living_roles: Vec<Role>,
    },
    Forced {
        living: Vec<usize>,
        living_roles: Vec<Role>,
    },
    Stragglers {
        living: Vec<usize>,
        living_roles: Vec<Role>,
        first: usize,
        first_role: Role,
        limit_seconds: f64,
    },
    Killing {
        living: Vec<usize>,
        living_roles: Vec<Role>,
    },
    Unkillable {
        living: Vec<usize>,
        living_roles: Vec<Role>,
    },
    Restarting {
        attempt: u32,
        restart: u32,
        of: u32,
        culprit: usize,
        culprit_role: Role,
        exit: Exit,
        message: String,
        delay_seconds: f64,
    },
    RestartRequested {
        attempt: u32,
        living: Vec<usize>,
        living_roles: Vec<Role>,
        grace_seconds: f64,
    },
    NotRestarting {
        why: &'static str,
    },
    RoundStarted {
        round: u64,
        attempt: u32,
        node: usize,
        nnodes: usize,
        world_size: usize,
        first_rank: usize,
    },
    RoundEnded {
        round: u64,
        outcome: &'a str,
        why: Option<&'a str>,
    },
    Sample {
        ranks: &'a [RankSample],
    },
    StuckExit {
        role: Role,
        rank: usize,
        local_rank: usize,
        seconds: f64,
        report: &'a str,
    },
    Hang {
        silent_seconds: f64,
        odd: Vec<usize>,
        odd_roles: Vec<Role>,
        report: &'a str,
    },
    JobEnded {
        outcome: &'a str,
        exit_status: i32,
    },
}

impl JournalEvent<'_> {
    /// A signal or a request that has come.
    pub fn signal(arrival: &Arrival) -> Self {
        let origin = if arrival.route == StopRoute::User { "user" } else { "signal" };
        Self::Signal { signal: arrival.signal, origin, request: arrival.count.map(StopCount::word) }
    }
}
