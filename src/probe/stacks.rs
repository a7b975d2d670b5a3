//! Reads the Python stacks of other processes, without stopping them, by the reader of py-spy. A read copies their memory
//! (process_vm_readv(2)), which needs the permission to trace them (ptrace(2), "Ptrace access mode checking").

use crate::probe::stack_answers;
use crate::report::stacks::{ProcessStack, StackFrame, ThreadStack};
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::{procfs, tree};
use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy, StackTrace};
use std::panic::{self, AssertUnwindSafe};

/// What py-spy says where it can follow the stacks of no interpreter, whatever the reason is.
const NO_INTERPRETER: &str = "Failed to find a python interpreter";
/// What that may mean.
const UNFOLLOWED: &str = "its stacks cannot be followed: a thread has more than 4096 Python frames, or its interpreter is starting or \
     ending";
/// How often a stack is read again that changed while it was read.
const TRIES: usize = 8;

/// The stacks of a process and of its descendants, parents first; empty if the process has ended. `started`: its start time in
/// clock ticks since boot: a process with another one has taken its number.
pub fn read_tree(all: &Snapshot, pid: i32, started: u64) -> Vec<ProcessStack> {
    if all.get(pid).is_none_or(|stat| stat.started != started) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut todo = std::collections::VecDeque::from([pid]);
    while let Some(next) = todo.pop_front() {
        if let Some(stat) = all.get(next) {
            found.push(read_process(next, stat));
            todo.extend(all.children(next));
        }
    }
    found
}

fn read_process(pid: i32, stat: &ProcStat) -> ProcessStack {
    let (threads, unread) = if stat.is_alive() {
        match python_threads(pid) {
            Ok(threads) => (threads, None),
            Err(why) => match stack_answers::ask(pid) {
                Some(threads) => (threads, None),
                None => (Vec::new(), Some(why)),
            },
        }
    } else {
        (Vec::new(), None)
    };
    ProcessStack {
        pid,
        name: stat.name.clone(),
        state: stat.state,
        wait_channel: tree::wait_channel(pid),
        cpu_seconds: stat.cpu_seconds(),
        cpu_seconds_watched: None,
        threads,
        unread,
    }
}

fn python_threads(pid: i32) -> Result<Vec<ThreadStack>, String> {
    // The reader interprets memory that changes meanwhile: a panic of it is one more failed read.
    let read = panic::catch_unwind(AssertUnwindSafe(|| {
        let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
        let mut spy = PythonSpy::new(pid, &config).map_err(|error| why_not(pid, &error.to_string()))?;
        let mut last = String::new();
        for _ in 0..TRIES {
            match spy.get_stack_traces() {
                Ok(traces) => return Ok(traces.into_iter().map(thread_of).collect::<Vec<_>>()),
                Err(error) => last = error.to_string(),
            }
        }
        Err(why_not(pid, &last))
    }));
    let mut threads = read.unwrap_or_else(|_| Err(UNFOLLOWED.to_owned()))?;
    put_main_first(&mut threads, pid);
    Ok(threads)
}

/// Sorts the threads, which Python lists from the newest to the oldest. Before Python 3.11 it does not know their ids.
fn put_main_first(threads: &mut [ThreadStack], pid: i32) {
    threads.reverse();
    threads.sort_by_key(|thread| (thread.thread != u64::try_from(pid).ok(), thread.thread));
}

fn thread_of(trace: StackTrace) -> ThreadStack {
    let frame = |frame: py_spy::Frame| StackFrame { function: frame.name, file: frame.filename, line: frame.line };
    ThreadStack {
        thread: trace.os_thread_id,
        name: trace.thread_name,
        frames: trace.frames.into_iter().map(frame).collect(),
    }
}

/// A reason in words, and what would help.
fn why_not(pid: i32, error: &str) -> String {
    let first = error.lines().next().unwrap_or_default().trim();
    match procfs::read(pid, "maps") {
        Err(denied) if denied.kind() == std::io::ErrorKind::PermissionDenied => {
            "this user may not trace it; set kernel.yama.ptrace_scope to 0 or 1, or allow SYS_PTRACE in the container"
                .to_owned()
        }
        Ok(maps) if !has_python(&maps) => "it runs no Python".to_owned(),
        // The reader takes an interpreter for one only if it can follow its stacks: 4096 frames a thread at most.
        _ if first.contains(NO_INTERPRETER) => UNFOLLOWED.to_owned(),
        _ => format!("it cannot be read: {first}"),
    }
}

fn has_python(maps: &[u8]) -> bool {
    String::from_utf8_lossy(maps).to_ascii_lowercase().contains("python")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_comes_first() {
        let order = |ids: &[Option<u64>]| {
            let thread = |(at, id): (usize, &Option<u64>)| ThreadStack {
                thread: *id,
                name: Some(at.to_string()),
                frames: Vec::new(),
            };
            let mut threads: Vec<ThreadStack> = ids.iter().enumerate().map(thread).collect();
            put_main_first(&mut threads, 7);
            threads.into_iter().filter_map(|thread| thread.name).collect::<Vec<_>>()
        };
        assert_eq!(order(&[Some(9), Some(8), Some(7)]), ["2", "1", "0"]);
        assert_eq!(order(&[Some(9), Some(7), Some(8)]), ["1", "2", "0"]);
        assert_eq!(order(&[None, None, None]), ["2", "1", "0"], "the newest is listed first");
    }
}
