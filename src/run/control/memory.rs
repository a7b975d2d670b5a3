//! The memory of a rank's processes: each page counts once, divided among the processes that share it (PSS, proc_pid_smaps(5)).
//!
//! The kernel walks all pages of a process for it: 10 ms a GB or so. A process is therefore asked again only after a multiple of the time
//! that the last answer took; meanwhile its resident memory says what has changed.

use crate::sys::clock;
use crate::sys::process::procfs;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Of the time that passes, the share in which processes may be asked.
const SHARE: u32 = 50;

/// The memory of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryUse {
    pub bytes: u64,
    /// The kernel does not say of a process what it shares: of that one, shared pages count in full.
    pub is_resident: bool,
}

/// What the kernel has said of a process.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// `None`: it refuses.
    proportional: Option<u64>,
    resident: u64,
    next: Duration,
}

/// By process id and start time.
static READINGS: Mutex<BTreeMap<(i32, u64), Reading>> = Mutex::new(BTreeMap::new());

/// The memory of these processes. `started`: the start time of each, by which a number is known to be the same process's.
pub(super) fn of_processes(tree: &BTreeSet<i32>, started: impl Fn(i32) -> Option<u64>) -> MemoryUse {
    let mut sum = MemoryUse::default();
    for pid in tree {
        let (Some(started), Some(resident)) = (started(*pid), resident(*pid)) else { continue };
        let reading = read((*pid, started), resident);
        match reading.proportional {
            Some(bytes) => sum.bytes += bytes.saturating_add(resident).saturating_sub(reading.resident).min(resident),
            None => sum = MemoryUse { bytes: sum.bytes + resident, is_resident: true },
        }
    }
    sum
}

fn read(process: (i32, u64), resident: u64) -> Reading {
    let began = clock::now();
    let known = || READINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(reading) = known().get(&process).filter(|reading| began < reading.next) {
        return *reading;
    }
    let proportional = proportional(process.0);
    let now = clock::now();
    let reading = Reading { proportional, resident, next: now + now.saturating_sub(began) * SHARE };
    let mut all = known();
    // Those of processes that are gone.
    all.retain(|_, reading| reading.next + Duration::from_secs(60) > now);
    all.insert(process, reading);
    reading
}

/// The proportional set size.
fn proportional(pid: i32) -> Option<u64> {
    let text = String::from_utf8(procfs::read(pid, "smaps_rollup").ok()?).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The resident set size.
fn resident(pid: i32) -> Option<u64> {
    let pages: u64 = String::from_utf8(procfs::read(pid, "statm").ok()?).ok()?.split(' ').nth(1)?.parse().ok()?;
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten()?;
    pages.checked_mul(u64::try_from(size).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_its_share_and_no_more_than_is_resident() {
        let own = std::process::id() as i32;
        let used = of_processes(&BTreeSet::from([own]), |_| Some(1));
        assert!(!used.is_resident && used.bytes > 0 && used.bytes <= resident(own).unwrap(), "{used:?}");
        assert_eq!(of_processes(&BTreeSet::from([own]), |_| None), MemoryUse::default());
    }
}
