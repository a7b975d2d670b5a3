//! What /proc and the logs say about ranks: CPU, memory, processes, last output.

use crate::net::thread;
use crate::report::job_status::RankStatus;
use crate::run::stacks::look::{LOGS_PATIENCE, silent_seconds};
use crate::sys::clock;
use crate::sys::process::pidfd;
use crate::sys::process::procfs;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A rank and the processes that it has started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankFacts {
    /// CPUs in use, in percent of one.
    pub cpu_percent: Option<f64>,
    /// CPU time since the start of the processes that run, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory in bytes; pages that processes share count in each.
    pub memory_bytes: Option<u64>,
    /// Number of processes.
    pub processes: usize,
    /// Seconds since the last output; `None`: not all of it goes to a log, or the log's folder hangs.
    pub silent_seconds: Option<f64>,
}

/// The start time of a process in clock ticks since boot.
pub fn start_ticks(pid: i32) -> Option<u64> {
    ProcStat::of(pid).map(|stat| stat.started)
}

impl RankFacts {
    /// The facts of these ranks; CPU use is measured for so long.
    pub fn of(ranks: &[RankStatus], sample: Duration) -> Vec<Self> {
        let logged = |rank: &RankStatus| if rank.all_output_logged { rank.logs.clone() } else { Vec::new() };
        let logs: Vec<_> = ranks.iter().map(logged).collect();
        let silences = move || logs.iter().map(|logs| silent_seconds(logs)).collect::<Vec<_>>();
        let silences = thread::within(LOGS_PATIENCE, silences).unwrap_or_default();
        let before = Snapshot::take();
        let began = clock::now();
        // A number of seconds is what is measured.
        pidfd::await_any(&[], sample);
        let after = Snapshot::take();
        let took = (clock::now() - began).as_secs_f64();
        let fact = |(number, rank): (usize, &RankStatus)| Self {
            silent_seconds: silences.get(number).copied().flatten(),
            ..Self::of_rank(rank, (&before, &after), took)
        };
        ranks.iter().enumerate().map(fact).collect()
    }

    fn of_rank(rank: &RankStatus, (before, after): (&Snapshot, &Snapshot), took: f64) -> Self {
        let is_same = |pid: &i32| after.get(*pid).is_some_and(|stat| Some(stat.started) == rank.start_ticks);
        let Some(pid) = rank.pid.filter(|pid| rank.is_alive() && is_same(pid)) else {
            return Self::default();
        };
        let tree = after.trees([pid]);
        let cpu = |all: &Snapshot| tree.iter().filter_map(|pid| all.get(*pid)).map(ProcStat::cpu_seconds).sum::<f64>();
        let now = cpu(after);
        Self {
            cpu_percent: Some(((now - cpu(before)).max(0.0) / took * 100.0).round()),
            cpu_seconds: Some(now),
            memory_bytes: Some(tree.iter().filter_map(|pid| resident(*pid)).sum()),
            processes: tree.len(),
            silent_seconds: None,
        }
    }
}

fn resident(pid: i32) -> Option<u64> {
    let pages: u64 = String::from_utf8(procfs::read(pid, "statm").ok()?).ok()?.split(' ').nth(1)?.parse().ok()?;
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten()?;
    pages.checked_mul(u64::try_from(size).ok()?)
}
