//! The memory of a rank's processes: each page counts once, divided among the processes that share it (PSS, proc_pid_smaps(5)).
//!
//! The kernel walks all pages of a process for it: 20 ms a GiB or so. A process is therefore asked again only after a multiple of the time
//! that the last answer took; meanwhile its resident memory says what has changed. A look at a job has a limit for all its processes too.

use crate::sys::clock;
use crate::sys::process::procfs;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Of the time that passes, the share in which processes may be asked.
const SHARE: u32 = 50;
/// The time of a look. The next look asks the processes that are left.
const LONGEST: Duration = Duration::from_secs(1);

/// The memory of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryUse {
    pub bytes: u64,
    /// Of a process it is not known what it shares, as the kernel refuses it or there was no time to ask: of that one, shared pages count in full.
    pub is_resident: bool,
}

/// The answer of the kernel about a process.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// `None`: it refuses.
    proportional: Option<u64>,
    resident: u64,
    next: Duration,
}

/// By process id and start time.
static READINGS: Mutex<BTreeMap<(i32, u64), Reading>> = Mutex::new(BTreeMap::new());

/// A look at the memory of a job.
pub(super) struct MemoryLook {
    until: Duration,
}

impl MemoryLook {
    /// Begins one.
    pub fn begin() -> Self {
        Self { until: clock::now() + LONGEST }
    }

    /// The memory of these processes. `started`: the start time of each, by which a number is known to be the same process's.
    pub fn of_processes(&self, tree: &BTreeSet<i32>, started: impl Fn(i32) -> Option<u64>) -> MemoryUse {
        let mut sum = MemoryUse::default();
        for pid in tree {
            let (Some(started), Some(resident)) = (started(*pid), resident(*pid)) else { continue };
            let reading = read((*pid, started), resident, self.until);
            let shared = reading.and_then(|reading| Some((reading.proportional?, reading.resident)));
            match shared {
                Some((bytes, before)) => {
                    sum.bytes += bytes.saturating_add(resident).saturating_sub(before).min(resident)
                }
                None => sum = MemoryUse { bytes: sum.bytes + resident, is_resident: true },
            }
        }
        sum
    }
}

/// Reads a process, or has the last reading. `None`: there is none, and no time is left.
fn read(process: (i32, u64), resident: u64, until: Duration) -> Option<Reading> {
    let began = clock::now();
    let known = || READINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let last = known().get(&process).copied();
    if began >= until || last.is_some_and(|reading| began < reading.next) {
        return last;
    }
    let proportional = proportional(process.0);
    let now = clock::now();
    let reading = Reading { proportional, resident, next: now + now.saturating_sub(began) * SHARE };
    let mut all = known();
    // Those of processes that are gone.
    all.retain(|_, reading| reading.next + Duration::from_secs(60) > now);
    all.insert(process, reading);
    Some(reading)
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

    fn of_own(look: &MemoryLook, started: u64) -> MemoryUse {
        look.of_processes(&BTreeSet::from([std::process::id() as i32]), |_| Some(started))
    }

    #[test]
    fn a_process_has_its_share() {
        let used = of_own(&MemoryLook::begin(), 1);
        assert!(!used.is_resident && used.bytes > 0, "{used:?}");
        let unknown = MemoryLook::begin().of_processes(&BTreeSet::from([std::process::id() as i32]), |_| None);
        assert_eq!(unknown, MemoryUse::default());
    }

    #[test]
    fn a_look_that_has_no_time_left_has_what_is_known() {
        let late = MemoryLook { until: Duration::ZERO };
        let used = of_own(&late, 2);
        assert!(used.is_resident && used.bytes > 0, "{used:?}");
        assert!(!of_own(&MemoryLook::begin(), 2).is_resident);
        assert!(!of_own(&late, 2).is_resident);
    }
}
