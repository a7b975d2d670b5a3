//! What /proc, the logs and the GPU driver say about ranks: CPU, memory, processes, last output, GPU use.

use super::memory::MemoryLook;
use crate::net::thread;
use crate::probe::nvml::{GpuMonitor, GpuProcessUse};
use crate::report::job_status::{JobStatus, RankStatus};
use crate::run::gpu_reader::GpuReader;
use crate::run::stacks::look::{LOGS_PATIENCE, silent_seconds};
use crate::supervise::Lifecycle;
use crate::sys::clock;
use crate::sys::process::pidfd;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a rank does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankCondition {
    /// It has not been started.
    Waiting,
    /// It runs.
    #[default]
    Running,
    /// A signal has stopped it.
    Stopped,
    /// The user has suspended the job.
    Suspended,
    /// The job hangs: that was reported, and nothing has moved since, as far as is known.
    Hangs,
    /// It has ended.
    Ended,
}

impl RankCondition {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Suspended => "suspended",
            Self::Hangs => "hangs",
            Self::Ended => "ended",
        }
    }
}

/// A rank and the processes that it has started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankFacts {
    /// What it does.
    #[serde(default)]
    pub state: RankCondition,
    /// CPUs in use, in percent of one.
    pub cpu_percent: Option<f64>,
    /// CPU time of the processes that run and of the children that they have waited for, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Memory in bytes; a page that processes share is divided among them (PSS).
    pub memory_bytes: Option<u64>,
    /// The kernel does not say what some of its processes share: there, shared pages count in each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_is_resident: bool,
    /// Number of processes.
    pub processes: usize,
    /// Seconds since the last output; `None`: not all of it goes to a log, or the log's folder hangs.
    pub silent_seconds: Option<f64>,
    /// Seconds since the last output that went to a log, where not all of it goes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_silent_seconds: Option<f64>,
    /// GPUs in use, in percent of one; `None`: it uses none, or the driver does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_percent: Option<f64>,
    /// Memory on all GPUs, in bytes; `None`: the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
}

/// The start time of a process in clock ticks since boot.
pub fn start_ticks(pid: i32) -> Option<u64> {
    ProcStat::of(pid).map(|stat| stat.started)
}

/// All processes at a time.
#[derive(Debug, Default)]
pub struct Moment {
    processes: Snapshot,
    at: Duration,
}

impl Moment {
    /// The present one.
    pub fn now() -> Self {
        Self { processes: Snapshot::take(), at: clock::now() }
    }

    /// The processes of a rank; none if its own has ended.
    fn tree(&self, rank: &RankStatus) -> BTreeSet<i32> {
        let is_it = |pid: &i32| self.processes.get(*pid).is_some_and(|stat| Some(stat.started) == rank.start_ticks);
        self.processes.trees(rank.pid.filter(|pid| rank.is_alive() && is_it(pid)))
    }

    fn cpu_seconds(&self, tree: &BTreeSet<i32>) -> f64 {
        tree.iter().filter_map(|pid| self.processes.get(*pid)).map(ProcStat::cpu_seconds_with_waited).sum()
    }
}

impl RankFacts {
    /// The facts of a node's ranks; CPU use is measured for so long.
    pub fn of(status: &JobStatus, gpus: &GpuReader, sample: Duration) -> Vec<Self> {
        let pending = gpus.ask(GpuMonitor::process_use);
        let before = Moment::now();
        // A number of seconds is what is measured.
        pidfd::await_any(&[], sample);
        let after = Moment::now();
        Self::between(status, (&before, &after), &pending.wait().unwrap_or_default())
    }

    /// The facts at the second moment; CPU use is measured since the first.
    pub fn between(status: &JobStatus, moments: (&Moment, &Moment), gpu_use: &[GpuProcessUse]) -> Vec<Self> {
        let silences = silences(&status.ranks);
        let memory = MemoryLook::begin();
        let fact = |(number, rank): (usize, &RankStatus)| Self {
            silent_seconds: silences.get(number).copied().flatten().filter(|_| rank.all_output_logged),
            log_silent_seconds: silences.get(number).copied().flatten().filter(|_| !rank.all_output_logged),
            ..Self::of_rank(rank, status.suspended, moments, &memory, gpu_use)
        };
        let mut facts: Vec<Self> = status.ranks.iter().enumerate().map(fact).collect();
        let Some(since) = status.hanging_since else { return facts };
        let reported_for = clock::wall().as_secs_f64() - since;
        // A rank that has written something since does not hang, nor do those that wait for it.
        if !facts.iter().filter_map(|facts| facts.silent_seconds).any(|silent| silent < reported_for) {
            // Servers wait for their clients by design.
            let is_main = |rank: &RankStatus| Lifecycle::of(rank.role) == Lifecycle::Main;
            let found = facts.iter_mut().zip(&status.ranks).filter(|(_, rank)| is_main(rank));
            found.filter(|(facts, _)| facts.state == RankCondition::Running).for_each(|(facts, _)| {
                facts.state = RankCondition::Hangs;
            });
        }
        facts
    }

    /// Whether the driver says that it uses a GPU.
    pub fn uses_gpus(&self) -> bool {
        self.gpu_percent.is_some() || self.gpu_memory_bytes.is_some()
    }

    fn of_rank(
        rank: &RankStatus,
        is_suspended: bool,
        (before, after): (&Moment, &Moment),
        memory: &MemoryLook,
        gpu_use: &[GpuProcessUse],
    ) -> Self {
        let tree = after.tree(rank);
        let Some(own) = rank.pid.and_then(|pid| after.processes.get(pid)).filter(|_| !tree.is_empty()) else {
            let state = match (&rank.exit, rank.pid) {
                (Some(_), _) => RankCondition::Ended,
                (None, Some(_)) => RankCondition::Running,
                (None, None) => RankCondition::Waiting,
            };
            return Self { state, ..Self::default() };
        };
        let state = match (own.state, is_suspended) {
            ('T', true) => RankCondition::Suspended,
            ('T', false) => RankCondition::Stopped,
            _ => RankCondition::Running,
        };
        let now = after.cpu_seconds(&tree);
        let used = now - before.cpu_seconds(&before.tree(rank));
        let took = (after.at.saturating_sub(before.at)).as_secs_f64().max(1e-3);
        let (gpu_percent, gpu_memory_bytes) = sum_gpu_use(gpu_use, &tree);
        let memory = memory.of_processes(&tree, |pid| after.processes.get(pid).map(|stat| stat.started));
        Self {
            state,
            cpu_percent: Some((used.max(0.0) / took * 100.0).round()),
            cpu_seconds: Some(now),
            memory_bytes: Some(memory.bytes),
            memory_is_resident: memory.is_resident,
            processes: tree.len(),
            silent_seconds: None,
            log_silent_seconds: None,
            gpu_percent,
            gpu_memory_bytes,
        }
    }
}

/// The percent of a GPU and the bytes that these processes use together.
fn sum_gpu_use(all: &[GpuProcessUse], tree: &BTreeSet<i32>) -> (Option<f64>, Option<u64>) {
    let own: Vec<&GpuProcessUse> =
        all.iter().filter(|one| i32::try_from(one.pid).is_ok_and(|pid| tree.contains(&pid))).collect();
    let of_gpus: BTreeMap<u32, u32> = own.iter().filter_map(|one| Some((one.gpu, one.percent_of_gpu?))).collect();
    let percents: Vec<u32> = own.iter().filter_map(|one| one.percent).chain(of_gpus.into_values()).collect();
    let bytes: Vec<u64> = own.iter().filter_map(|one| one.memory).collect();
    let percent = percents.iter().copied().map(f64::from).sum();
    ((!percents.is_empty()).then_some(percent), (!bytes.is_empty()).then(|| bytes.iter().sum()))
}

/// How long each rank has been silent; nothing where a folder of logs hangs.
fn silences(ranks: &[RankStatus]) -> Vec<Option<f64>> {
    let logs: Vec<_> = ranks.iter().map(|rank| rank.logs.clone()).collect();
    thread::within(LOGS_PATIENCE, move || logs.iter().map(|logs| silent_seconds(logs)).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpu_use_of_a_rank_is_that_of_its_processes() {
        let one =
            |pid, gpu, memory, percent, percent_of_gpu| GpuProcessUse { pid, gpu, memory, percent, percent_of_gpu };
        let tree = BTreeSet::from([10, 11]);
        let all =
            [one(10, 0, Some(3), Some(40), None), one(11, 1, Some(4), Some(90), None), one(12, 0, Some(9), None, None)];
        assert_eq!(sum_gpu_use(&all, &tree), (Some(130.0), Some(7)));
        let untold =
            [one(10, 0, None, None, Some(50)), one(11, 0, None, None, Some(50)), one(11, 1, Some(1), None, None)];
        assert_eq!(sum_gpu_use(&untold, &tree), (Some(50.0), Some(1)), "the use of a GPU counts once");
        assert_eq!(sum_gpu_use(&all, &BTreeSet::from([99])), (None, None));
    }
}
