//! The process tree below this process, read from /proc. Only for the launcher's own processes: in a host program, other
//! code may own these children.

use crate::sys::process::{mark, pidfd};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

/// Makes this process a subreaper: descendants whose parent dies become its children instead of init's (prctl(2),
/// PR_SET_CHILD_SUBREAPER). Children do not inherit the setting.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: prctl on integers.
    let rc = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The children of a process, including zombies; empty when it is gone. May miss a child that is forked meanwhile
/// (proc_pid_task(5)), so a complete list needs repeated calls.
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

/// All descendants of a process.
pub fn descendants(pid: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut todo = children(pid);
    while let Some(next) = todo.pop() {
        if found.insert(next) {
            todo.extend(children(next));
        }
    }
    found
}

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcStat {
    /// Its name, shortened by the kernel to 15 bytes.
    pub name: String,
    /// `R`, `S`, `D`, `T`, `Z`, ...
    pub state: char,
    /// Its parent's process id.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// Whether it is exiting: it runs no more code of its own and becomes a zombie.
    pub exiting: bool,
    /// Its start time in clock ticks since boot.
    pub started: u64,
}

/// PF_EXITING of include/linux/sched.h, a bit of the ninth field.
const PF_EXITING: u64 = 4;

impl ProcStat {
    /// The fields for a process; `None` when it is gone.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The fields in a line of that file.
    pub fn parse(line: &[u8]) -> Option<Self> {
        // The name may contain any byte, also `)` and blanks (proc_pid_stat(5)): it ends at the last `)`.
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

    /// Whether it is a zombie or gone.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether it still runs code: neither exiting nor a zombie.
    pub fn is_alive(&self) -> bool {
        !self.exiting && !self.is_gone()
    }
}

/// The kernel function in which a process sleeps, if the kernel shows it.
pub fn wait_channel(pid: i32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/wchan")).ok()?;
    (!text.is_empty() && text != "0").then_some(text)
}

fn scan(wanted: impl Fn(&ProcStat) -> bool) -> Vec<i32> {
    let pids = all_pids();
    pids.into_iter().filter(|pid| ProcStat::of(*pid).is_some_and(|stat| wanted(&stat))).collect()
}

fn all_pids() -> Vec<i32> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    folder.flatten().filter_map(|entry| std::str::from_utf8(entry.file_name().as_bytes()).ok()?.parse().ok()).collect()
}

/// The value of a variable in the environment that a process was started with; `None` if it has none, is gone, or may not
/// be read.
pub fn variable(pid: i32, name: &str) -> Option<Vec<u8>> {
    let block = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut vars = block.split(|b| *b == 0);
    vars.find_map(|var| var.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec))
}

/// Whether a process has no environment: for a moment during execve, or always.
pub fn has_no_environment(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|block| block.is_empty())
}

/// A helper process that ends by itself once its clients have, after it has removed what they shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanupHelper {
    /// multiprocessing's (and loky's) resource tracker, which unlinks shared memory, and its fork server: both end at
    /// once.
    Multiprocessing,
    /// `torch_shm_manager`, which unlinks the memory of torch's sharing strategy `file_system`: 2 s after its last
    /// client has ended (SHUTDOWN_TIMEOUT in torch/lib/libshm/manager.cpp).
    TorchShmManager,
}

/// `torch_shm_manager` as the kernel shortens it.
const TORCH_SHM_MANAGER: &str = "torch_shm_manag";

impl CleanupHelper {
    /// Which of them a process is.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = ProcStat::of(pid)?;
        if stat.name == TORCH_SHM_MANAGER {
            return Some(Self::TorchShmManager);
        }
        // Processes that the fork server has forked have its command line too.
        let is_fork_server = |pid: i32| command_line_has(pid, b"forkserver import main");
        let helps = command_line_has(pid, b"resource_tracker import main")
            || is_fork_server(pid) && !is_fork_server(stat.parent);
        helps.then_some(Self::Multiprocessing)
    }

    /// Whether a process is `torch_shm_manager`; reads less of it than `of`.
    pub fn is_torch_shm_manager(pid: i32) -> bool {
        ProcStat::of(pid).is_some_and(|stat| stat.name == TORCH_SHM_MANAGER)
    }
}

/// Whether a process is creating shared memory for torch: it has opened the file and not yet removed its name
/// (MapAllocator.cpp of aten/src/ATen). If it is killed in between, the file stays.
pub fn is_creating_torch_memory(pid: i32) -> bool {
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let start = format!("/dev/shm/torch_{pid}_");
    open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|path| {
        let path = path.as_os_str().as_bytes();
        path.starts_with(start.as_bytes()) && !path.ends_with(b" (deleted)")
    })
}

fn command_line_has(pid: i32, part: &[u8]) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.windows(part.len()).any(|window| window == part)
}

/// Whether a live process has no command line: for a moment during execve, after its parent has resumed.
pub fn has_no_command_line(pid: i32) -> bool {
    let empty = std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.is_empty());
    empty && ProcStat::of(pid).is_some_and(|stat| stat.is_alive())
}

/// Whether a process has a variable `name` with this value, or a mark in its memory with it.
pub fn has_key(pid: i32, name: &str, value: &str) -> bool {
    let is_it = |found: &Vec<u8>| found == value.as_bytes();
    variable(pid, name).as_ref().is_some_and(is_it) || mark::in_memory(pid).iter().any(is_it)
}

/// Whether a process has a variable `name` that starts with `prefix`, or a mark in its memory that does.
pub fn has_key_prefix(pid: i32, name: &str, prefix: &str) -> bool {
    let starts = |found: &Vec<u8>| found.starts_with(prefix.as_bytes());
    variable(pid, name).as_ref().is_some_and(starts) || mark::in_memory(pid).iter().any(starts)
}

/// All processes of the machine that `has_key_prefix` holds for and that are not older than this one.
pub fn all_with_key(name: &str, prefix: &str) -> Vec<i32> {
    let own = std::process::id() as i32;
    let began = ProcStat::of(own).map_or(0, |stat| stat.started);
    let young = |pid: i32| ProcStat::of(pid).is_some_and(|stat| stat.started >= began);
    all_pids().into_iter().filter(|&pid| pid != own && young(pid) && has_key_prefix(pid, name, prefix)).collect()
}

/// Kills a process if `is_it` holds for its fields. They are read again after its pidfd is open, because the pid may have
/// been reused since the caller read it.
pub fn kill_if(pid: i32, is_it: impl Fn(&ProcStat) -> bool) -> bool {
    signal_if(pid, libc::SIGKILL, is_it)
}

/// Sends a signal to a process in the same way.
pub fn signal_if(pid: i32, signal: i32, is_it: impl Fn(&ProcStat) -> bool) -> bool {
    let Ok(fd) = pidfd::open(pid) else { return false };
    let alive = ProcStat::of(pid).is_some_and(|stat| stat.is_alive() && is_it(&stat));
    alive && pidfd::send_signal(fd.as_fd(), signal).is_ok()
}

/// Kills a process whose main thread has ended while other threads run: /proc shows it as a zombie.
pub fn kill_leaderless(pid: i32) {
    let Ok(fd) = pidfd::open(pid) else { return };
    if ProcStat::of(pid).is_some_and(|stat| stat.is_gone()) {
        // An error means that it has ended by now.
        let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
    }
}

/// Whether a process has more than one thread that has not ended. The first one counts as long as it is a zombie.
pub fn has_other_threads(pid: i32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1)
}

/// Reaps children that have ended, except those that `is_known` accepts: their owners reap them. Returns their ids.
pub fn reap_orphans(is_known: impl Fn(i32) -> bool) -> Vec<i32> {
    let mut reaped = Vec::new();
    // SAFETY: siginfo_t is plain data, for which all zeroes is a valid value; waitid fills `info`, or leaves the zeroes
    // when no child has ended (waitid(2)).
    unsafe {
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_ALL, 0, &mut info, look) != 0 || info.si_pid() == 0 || is_known(info.si_pid()) {
                return reaped;
            }
            let pid = info.si_pid();
            if libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, libc::WEXITED | libc::WNOHANG) != 0 {
                return reaped;
            }
            reaped.push(pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_parentheses() {
        let stat = ProcStat::parse(b"12 (a) (S b) R 1 2 3 0 -1 4194304 9 0 0 0 1 2 3 4 20 0 1 0 77 8")
            .unwrap_or_else(|| unreachable!());
        assert_eq!((stat.name.as_str(), stat.state, stat.parent, stat.session), ("a) (S b", 'R', 1, 3));
        assert_eq!(stat.started, 77);
        assert_eq!(
            [ProcStat::parse(b""), ProcStat::parse(b"1 ) ("), ProcStat::parse(b"1 (x) R 1")],
            [None, None, None]
        );
        assert!(stat.is_alive());
        let exiting = ProcStat::parse(b"12 (a) D 1 2 3 0 -1 4194564 9");
        assert!(exiting.is_some_and(|stat| !stat.is_alive()), "PF_EXITING");
    }
}
