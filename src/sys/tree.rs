//! The processes below this one: who they are, and ending them all. Only for a process that is wholly
//! ours; in a host program these would be somebody else's children.

use super::{mark, pidfd};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

/// Processes whose parent dies become children of this one, instead of init's (prctl(2),
/// PR_SET_CHILD_SUBREAPER). Not inherited by children.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: prctl on integers.
    let rc = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The children of a process, zombies included; none when it is gone. May miss one that is born
/// meanwhile (proc_pid_task(5)), so whoever wants them all asks again.
pub fn children(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return found };
    for task in tasks.flatten() {
        match std::fs::read_to_string(task.path().join("children")) {
            Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(|p| p.parse::<i32>().ok())),
            // A kernel without CONFIG_PROC_CHILDREN, or a thread that has just ended.
            Err(_) if !task.path().exists() => {}
            Err(_) => return scan(|stat| stat.parent == pid),
        }
    }
    found
}

/// Everybody below `pid`, by ancestry.
pub fn below(pid: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut todo = children(pid);
    while let Some(next) = todo.pop() {
        if found.insert(next) {
            todo.extend(children(next));
        }
    }
    found
}

/// What `/proc/PID/stat` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its name, as the kernel cuts it (15 bytes).
    pub name: String,
    /// `R`, `S`, `D`, `T`, `Z`, ...
    pub state: char,
    /// Its parent.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// It is past its last instruction, on its way to being a zombie.
    pub exiting: bool,
    /// When it was started, in ticks since the machine was.
    pub started: u64,
}

/// PF_EXITING of include/linux/sched.h, in the ninth field.
const PF_EXITING: u64 = 4;

impl Stat {
    /// Of a process; `None` when it is gone.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        // The name may hold anything, `)` and blanks too (proc_pid_stat(5)): its end is the last `)`.
        let open = line.iter().position(|b| *b == b'(')?;
        let close = line.iter().rposition(|b| *b == b')')?;
        let name = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        let flags: u64 = fields.nth(2)?.parse().ok()?;
        let started = fields.nth(12).and_then(|field| field.parse().ok()).unwrap_or(u64::MAX);
        Some(Self { name, state, parent, group, session, exiting: flags & PF_EXITING != 0, started })
    }

    /// Whether it is past all it does: a zombie at most.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether it runs, or may.
    pub fn is_alive(&self) -> bool {
        !self.exiting && !self.is_gone()
    }
}

/// Where in the kernel a process sleeps, if it may be told.
pub fn wait_channel(pid: i32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/wchan")).ok()?;
    (!text.is_empty() && text != "0").then_some(text)
}

fn scan(wanted: impl Fn(&Stat) -> bool) -> Vec<i32> {
    let pids = all_pids();
    pids.into_iter().filter(|pid| Stat::of(*pid).is_some_and(|stat| wanted(&stat))).collect()
}

fn all_pids() -> Vec<i32> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    folder.flatten().filter_map(|entry| std::str::from_utf8(entry.file_name().as_bytes()).ok()?.parse().ok()).collect()
}

/// The value of a variable in the environment that a process was started with; `None` if it has none,
/// is gone, or may not be looked into.
pub fn variable(pid: i32, name: &str) -> Option<Vec<u8>> {
    let block = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut vars = block.split(|b| *b == 0);
    vars.find_map(|var| var.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec))
}

/// Whether a process shows no environment at all: for a moment while it calls execve, or for good.
pub fn is_bare(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|block| block.is_empty())
}

/// Whether a process is a resource tracker of Python's multiprocessing (or loky's): it ends by itself once
/// those it serves have, and unlinks the shared memory that they left.
pub fn is_resource_tracker(pid: i32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    const MAIN: &[u8] = b"resource_tracker import main";
    words.windows(MAIN.len()).any(|window| window == MAIN)
}

/// Whether a process that lives has no command line: for a moment, after its parent has gone on, in execve.
pub fn is_nameless(pid: i32) -> bool {
    let empty = std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.is_empty());
    empty && Stat::of(pid).is_some_and(|stat| stat.is_alive())
}

/// Whether a process has a variable `name` of this value, or such a mark in its memory.
pub fn has_been_given(pid: i32, name: &str, value: &str) -> bool {
    let is_it = |found: &Vec<u8>| found == value.as_bytes();
    variable(pid, name).as_ref().is_some_and(is_it) || mark::in_memory(pid).iter().any(is_it)
}

/// Whether a process has a variable `name` that starts with `value`, or such a mark in its memory.
pub fn carries(pid: i32, name: &str, value: &str) -> bool {
    let starts = |found: &Vec<u8>| found.starts_with(value.as_bytes());
    variable(pid, name).as_ref().is_some_and(starts) || mark::in_memory(pid).iter().any(starts)
}

/// Every process of the machine that `carries` it and is no older than this one.
pub fn carriers(name: &str, value: &str) -> Vec<i32> {
    let own = std::process::id() as i32;
    let began = Stat::of(own).map_or(0, |stat| stat.started);
    let young = |pid: i32| Stat::of(pid).is_some_and(|stat| stat.started >= began);
    all_pids().into_iter().filter(|&pid| pid != own && young(pid) && carries(pid, name, value)).collect()
}

/// Kills a process, if what `is_it` is told of it still holds: the number may have changed hands since
/// it was read, and what the pidfd stands for is looked at once more.
pub fn kill_if(pid: i32, is_it: impl Fn(&Stat) -> bool) -> bool {
    let Ok(fd) = pidfd::open(pid) else { return false };
    let alive = Stat::of(pid).is_some_and(|stat| stat.is_alive() && is_it(&stat));
    alive && pidfd::send_signal(fd.as_fd(), libc::SIGKILL).is_ok()
}

/// Kills a process whose first thread has ended while others go on: to look at it is a zombie.
pub fn kill_headless(pid: i32) {
    let Ok(fd) = pidfd::open(pid) else { return };
    if Stat::of(pid).is_some_and(|stat| stat.is_gone()) {
        // An error means that it has ended by now.
        let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
    }
}

/// Collects children that have ended, except those that `is_known` tells: somebody else does.
/// Returns how many were collected.
pub fn reap_strays(is_known: impl Fn(i32) -> bool) -> usize {
    let mut count = 0;
    // SAFETY: siginfo_t is plain data, for which all zeroes is a value; waitid fills it, or leaves the
    // zeroes when nobody has ended (waitid(2)).
    unsafe {
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_ALL, 0, &mut info, look) != 0 || info.si_pid() == 0 || is_known(info.si_pid()) {
                return count;
            }
            let pid = info.si_pid() as libc::id_t;
            if libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOHANG) != 0 {
                return count;
            }
            count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_what_ends_a_name() {
        let stat = Stat::parse(b"12 (a) (S b) R 1 2 3 0 -1 4194304 9 0 0 0 1 2 3 4 20 0 1 0 77 8")
            .unwrap_or_else(|| unreachable!());
        assert_eq!((stat.name.as_str(), stat.state, stat.parent, stat.session), ("a) (S b", 'R', 1, 3));
        assert_eq!(stat.started, 77);
        assert_eq!([Stat::parse(b""), Stat::parse(b"1 ) ("), Stat::parse(b"1 (x) R 1")], [None, None, None]);
        assert!(stat.is_alive());
        let going = Stat::parse(b"12 (a) D 1 2 3 0 -1 4194564 9");
        assert!(going.is_some_and(|stat| !stat.is_alive()), "PF_EXITING");
    }
}
