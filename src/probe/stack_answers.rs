//! The stacks that a process writes itself when it is asked to: faulthandler's, at a signal, into a file of its own
//! (`rlaunch/_rank/stack_answers.py`). For ranks whose memory no other process may read.

use crate::report::stacks::{StackFrame, ThreadStack};
use crate::sys::clock;
use crate::sys::io::fd;
use crate::sys::process::{pidfd, procfs};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::getpid;
use std::fs::{self, File, OpenOptions};
use std::io::{IoSliceMut, Read, Seek};
use std::os::fd::AsFd;
use std::time::Duration;

/// The name of the file.
const FILE: &str = "rlaunch-stacks";
/// How long a process may take to write.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the file is looked at.
const INTERVAL: Duration = Duration::from_millis(5);
/// After so many looks at the same text it is complete: the main thread comes last, and its outermost frame in it.
const UNCHANGED_AT_END: u32 = 3;
/// The same for a text that does not end with the frame of a module.
const UNCHANGED: u32 = 20;
/// The longest answer, in bytes: faulthandler writes 100 frames of 100 threads at most.
const MOST: u64 = 4 << 20;

/// The signal at which the stacks are written.
fn signal() -> i32 {
    libc::SIGRTMIN() + 7
}

/// Whether other processes of this user may read the memory of this one, as far as that is known: Yama (ptrace_scope 2 and 3) and
/// seccomp filters bar it.
pub fn is_readable() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let is_barred_by_yama = scope.is_ok_and(|scope| scope.trim().parse().is_ok_and(|scope: u32| scope >= 2));
    let (byte, mut copy) = (0_u8, [0_u8]);
    let here = RemoteIoVec { base: std::ptr::from_ref(&byte) as usize, len: 1 };
    !is_barred_by_yama && process_vm_readv(getpid(), &mut [IoSliceMut::new(&mut copy)], &[here]).is_ok()
}

/// Asks a process for its stacks, the main thread first; `None`: it does not answer such questions, or not in time.
pub fn ask(pid: i32) -> Option<Vec<ThreadStack>> {
    // From here on its number cannot go to another process that the signal would end.
    let process = pidfd::open(pid).ok()?;
    let mut file = answer_file(pid).filter(|_| catches_signal(pid))?;
    file.set_len(0).ok()?;
    pidfd::send_signal(process.as_fd(), signal()).ok()?;
    let until = clock::now() + PATIENCE;
    let (mut text, mut unchanged) = (String::new(), 0);
    while clock::now() < until && !pidfd::await_any(&[process.as_fd()], INTERVAL) {
        let now = read(&mut file)?;
        unchanged = if now == text { unchanged + 1 } else { 0 };
        text = now;
        let is_outermost = text.trim_end().ends_with(" in <module>");
        if !text.is_empty() && unchanged >= if is_outermost { UNCHANGED_AT_END } else { UNCHANGED } {
            break;
        }
    }
    let threads = parse(&text);
    (!threads.is_empty()).then_some(threads)
}

fn answer_file(pid: i32) -> Option<File> {
    let paths = procfs::list(pid, "fd").ok()?.flatten().map(|entry| entry.path());
    let path = paths.into_iter().find(|path| fs::read_link(path).is_ok_and(|target| fd::is_memory(&target, FILE)))?;
    OpenOptions::new().read(true).write(true).open(path).ok()
}

/// Whether the signal has a handler (proc_pid_status(5)): else it would end the process.
fn catches_signal(pid: i32) -> bool {
    let Ok(status) = procfs::read(pid, "status") else { return false };
    let status = String::from_utf8_lossy(&status);
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal() - 1) & 1 == 1)
}

fn read(file: &mut File) -> Option<String> {
    let mut bytes = Vec::new();
    file.rewind().ok()?;
    file.take(MOST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The threads that faulthandler has written, the main thread first: it writes that last.
fn parse(text: &str) -> Vec<ThreadStack> {
    let mut threads: Vec<ThreadStack> = Vec::new();
    for line in text.lines() {
        let head = ["Thread 0x", "Current thread 0x"].iter().find_map(|head| line.strip_prefix(head));
        if let Some(head) = head.and_then(|head| head.strip_suffix(" (most recent call first):")) {
            // Python 3.14 adds the name.
            let name = head.split_once(" [").and_then(|(_, name)| name.strip_suffix(']')).map(str::to_owned);
            threads.push(ThreadStack { thread: None, name, frames: Vec::new() });
        } else if let (Some(frame), Some(thread)) = (parse_frame(line), threads.last_mut()) {
            thread.frames.push(frame);
        }
    }
    threads.reverse();
    threads
}

fn parse_frame(line: &str) -> Option<StackFrame> {
    let (file, rest) = line.strip_prefix("  File \"")?.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    Some(StackFrame { function: function.to_owned(), file: file.to_owned(), line: line.parse().unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_comes_first_and_a_thread_has_its_name() {
        let text = "Thread 0x00007f01 [loader] (most recent call first):\n  File \"/a/b \"c\".py\", line 3 in get\n  ...\n\n\
            Current thread 0x00007f02 (most recent call first):\n  File \"t.py\", line ??? in f\n  File \"t.py\", line 9 in <module>\n";
        let frame =
            |function: &str, file: &str, line| StackFrame { function: function.into(), file: file.into(), line };
        let main = vec![frame("f", "t.py", 0), frame("<module>", "t.py", 9)];
        let loader = vec![frame("get", "/a/b \"c\".py", 3)];
        let named = |name: Option<&str>, frames| ThreadStack { thread: None, name: name.map(str::to_owned), frames };
        assert_eq!(parse(text), [named(None, main), named(Some("loader"), loader)]);
        assert!(parse("").is_empty());
    }

    #[test]
    fn a_process_that_does_not_answer_is_sent_nothing() {
        assert_eq!(ask(std::process::id() as i32), None);
    }
}
