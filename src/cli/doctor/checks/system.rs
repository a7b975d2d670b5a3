//! The kernel, /proc, cgroups, memory and the clock.

use crate::cli::doctor::facts::SystemFacts;
use crate::cli::doctor::finding::{Finding, error, ok, unknown, warning};
use crate::probe::limits::refusal;
use crate::probe::memory::size;
use crate::sys::denied_calls::DeniedCall;
use std::time::Duration;

/// 2026-01-01: no clock that is right shows an earlier time to this program.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);

/// Clocks of nodes that differ by more confuse logs, certificates and the times of checkpoints.
/// The kernel's bound of the error of a clock that is kept grows by 1 s in 2,000 s, and a time daemon may ask as rarely as that.
const LARGEST_ERROR: Duration = Duration::from_secs(3);

pub(super) fn check(facts: &SystemFacts) -> Vec<Finding> {
    vec![kernel(facts), system_calls(&facts.denied), proc(facts), cgroup(facts), memory(facts), clock(facts)]
}

fn kernel(facts: &SystemFacts) -> Finding {
    ok("kernel", format!("Linux {}", facts.release))
}

/// What is missing without a system call that no job needs.
fn loss_without(call: &DeniedCall) -> &'static str {
    match call.name {
        "memfd_create" => "unlinked files in /dev/shm or TMPDIR take its place",
        "inotify_init1" => "the console shows lines late",
        "timerfd_create" => "jobs of several nodes do not start",
        "ptrace" | "process_vm_readv" => "stacks of ranks may be missing in reports",
        _ => "rlaunch does without it",
    }
}

fn system_calls(denied: &[DeniedCall]) -> Finding {
    let (needed, others): (Vec<&DeniedCall>, Vec<&DeniedCall>) = denied.iter().partition(|call| call.is_needed);
    let others: Vec<_> = others.iter().map(|call| format!("{call}: {}", loss_without(call))).collect();
    if !needed.is_empty() {
        let rest = if others.is_empty() { String::new() } else { format!("; also {}", others.join("; ")) };
        let text = format!("denied: {}; no job starts without{rest}", refusal::list(needed));
        return error("system calls", text, format!("use Linux 5.4 or later; {}", refusal::WAY_OUT));
    }
    if others.is_empty() {
        return ok("system calls", "all that rlaunch makes are allowed");
    }
    warning("system calls", format!("denied: {}", others.join("; ")), refusal::WAY_OUT)
}

fn proc(facts: &SystemFacts) -> Finding {
    match &facts.procfs {
        Ok(()) => ok("procfs", "shows the processes of this PID namespace"),
        Err(why) => warning(
            "procfs",
            format!("{why}: a process that a rank has put into a session of its own may survive the job"),
            "mount -t proc proc /proc; with unshare, use --mount-proc",
        ),
    }
}

fn cgroup(facts: &SystemFacts) -> Finding {
    match (facts.has_cgroup, &facts.procfs) {
        (true, _) => ok("cgroup", "a job may create one of its own"),
        (false, Ok(())) => ok("cgroup", "none can be created; rlaunch finds the processes of a job in /proc"),
        (false, Err(_)) => {
            unknown("cgroup", "/proc does not name it, so its limits of CPUs, memory and processes are not known")
        }
    }
}

fn memory(facts: &SystemFacts) -> Finding {
    match facts.memory {
        Some(bytes) => ok("memory", format!("{} for this process and its children", size(bytes))),
        None => unknown("memory", "/proc/meminfo cannot be read"),
    }
}

fn clock(facts: &SystemFacts) -> Finding {
    if facts.wall < EARLIEST {
        let days = facts.wall.as_secs() / 86_400;
        return warning(
            "clock",
            format!(
                "it is {days} days after 1970-01-01, which is in the past: certificates are refused, and newer checkpoints look old"
            ),
            "set it: chronyc makestep, or timedatectl set-ntp true",
        );
    }
    match facts.clock {
        Some(clock) if clock.is_synchronized && clock.largest_error > LARGEST_ERROR => warning(
            "clock",
            format!(
                "it may be wrong by {:.0} s: the logs of several nodes do not fit together",
                clock.largest_error.as_secs_f64()
            ),
            "look for the reason: chronyc tracking, or timedatectl timesync-status",
        ),
        Some(clock) if clock.is_synchronized => {
            ok("clock", format!("synchronized, at most {} ms wrong", clock.largest_error.as_millis()))
        }
        Some(_) => unknown("clock", "no program reports to the kernel how exact it is (chrony and ntpd do)"),
        None => unknown("clock", "this process may not ask the kernel how exact it is"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sound::{levels, sound};
    use super::*;
    use crate::cli::doctor::finding::Level;
    use crate::sys::clock::Discipline;
    use crate::sys::process::procfs::ProcfsUnusable;

    #[test]
    fn faults_of_the_system_are_found() {
        let mut facts = sound().system;
        assert!(check(&facts).iter().all(|finding| finding.level == Level::Ok));
        let call = |name, is_needed| DeniedCall { name, is_needed, errno: None };
        facts.denied = vec![call("memfd_create", false), call("pidfd_open", true)];
        facts.procfs = Err(ProcfsUnusable::Missing);
        facts.has_cgroup = false;
        facts.memory = None;
        facts.clock = Some(Discipline { is_synchronized: true, largest_error: Duration::from_secs(4) });
        assert_eq!(
            levels(&check(&facts)),
            "kernel ok, system calls error, procfs warning, cgroup unknown, memory unknown, clock warning"
        );
        assert!(
            system_calls(&facts.denied)
                .text
                .contains("pidfd_open(2) (SIGSYS); no job starts without; also memfd_create(2)")
        );
        assert_eq!(system_calls(&facts.denied[..1]).level, Level::Warning);
        facts.wall = Duration::from_secs(86_400);
        assert!(clock(&facts).text.contains("1 days after 1970-01-01"));
        facts.wall = EARLIEST;
        facts.clock = None;
        assert_eq!(clock(&facts).level, Level::Unknown);
    }
}
