//! To which processes of a rank a stop signal goes first, by how its main process handles the signal.

use crate::supervise::MainProcess;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::procfs::status::ProcStatus;
use crate::sys::process::{procfs, tree};

/// Programs that run a trap for a signal only once the program in the foreground has ended (sh(1p), "Signals and Error Handling").
const SHELLS: [&str; 10] = ["sh", "ash", "bash", "busybox", "dash", "fish", "ksh", "ksh93", "mksh", "zsh"];

/// The main process of a rank, if it handles this signal itself. `None`: the signal is to go to its process group, because the main
/// process neither catches it nor waits for it, cannot be read, or is a shell that waits for a program.
pub fn main_process(pid: i32, signal: i32) -> Option<MainProcess> {
    let main = ProcStatus::of(pid)?;
    if !is_shell(pid, &main) {
        let handles = main.catches(signal) || main.blocks(signal) && !main.ignores(signal);
        return handles.then_some(MainProcess::Program);
    }
    if !main.catches(signal) {
        return None;
    }
    let own = ProcStatus::of(std::process::id() as i32).is_some_and(|own| own.ignores(libc::SIGQUIT));
    let mut programs = tree::children(pid).into_iter().filter_map(ProcStatus::of);
    (!programs.any(|program| is_in_foreground(&program, pid, own))).then_some(MainProcess::Shell)
}

/// Whether a process is a shell. It has the name of its script, if it was started by the `#!` line of that (execve(2)). Its program may
/// be hidden from this process.
fn is_shell(pid: i32, status: &ProcStatus) -> bool {
    SHELLS.contains(&procfs::program(pid).as_deref().unwrap_or(&status.name))
}

/// Whether a shell waits for this program of its group. A script's commands with `&` ignore SIGQUIT (sh(1p), "Signals and Error
/// Handling"). `ignored_before`: the shell was started so, and then each counts as one in the foreground.
fn is_in_foreground(program: &ProcStatus, group: i32, ignored_before: bool) -> bool {
    let is_async = program.ignores(libc::SIGQUIT) && !ignored_before;
    program.group.is_none_or(|of| of == group) && !is_async
}

/// Whether a process of this group may end by the signal, once the main process has ended: it does not ignore it, or cannot be read. Of
/// all processes only those below this one are looked at.
pub fn any_heeds(group: i32, signal: i32) -> bool {
    let members = members_below(std::process::id() as i32, group);
    members.is_empty() || members.into_iter().any(|pid| heeds(pid, group, signal))
}

/// Whether a process or one below it in its group does not ignore the signal.
fn heeds(pid: i32, group: i32, signal: i32) -> bool {
    ProcStatus::of(pid).is_none_or(|status| !status.ignores(signal))
        || members_below(pid, group).into_iter().any(|pid| heeds(pid, group, signal))
}

/// The children of a process that are members of a group and run.
fn members_below(pid: i32, group: i32) -> Vec<i32> {
    let is_member = |stat: ProcStat| stat.group == group && stat.is_alive();
    tree::children(pid).into_iter().filter(|pid| ProcStat::of(*pid).is_some_and(is_member)).collect()
}
