//! What is read of each rank: its processes, their threads, their frames.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A frame of a Python stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StackFrame {
    /// The name of the function.
    pub function: String,
    /// The path of the file, as Python has it.
    pub file: String,
    /// The line that runs, from 1; 0: unknown.
    pub line: i32,
}

/// The Python stack of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStack {
    /// Its id in the kernel, if it is known.
    pub thread: Option<u64>,
    /// Its name in Python, if it has one.
    pub name: Option<String>,
    /// Its frames, innermost first.
    pub frames: Vec<StackFrame>,
}

/// A process of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessStack {
    /// Its process id.
    pub pid: i32,
    /// Its name, as in /proc/PID/comm.
    pub name: String,
    /// Its state in the kernel: `R`, `S`, `D`, `T`, `Z`, ... (proc_pid_stat(5)).
    pub state: char,
    /// The kernel function that its main thread waits in, if the kernel says so (/proc/PID/wchan).
    pub wait_channel: Option<String>,
    /// CPU time in seconds since its start, in all threads.
    pub cpu_seconds: f64,
    /// CPU time in seconds while its stacks were watched; `None`: they were read once.
    pub cpu_seconds_watched: Option<f64>,
    /// Its Python threads, the main thread first; empty if it has none or they cannot be read.
    pub threads: Vec<ThreadStack>,
    /// Why its stacks cannot be read.
    pub unread: Option<String>,
}

impl ProcessStack {
    /// The frames of its main thread, innermost first.
    pub fn main_frames(&self) -> &[StackFrame] {
        self.threads.first().map_or(&[], |thread| &thread.frames)
    }

    /// Whether it is stopped by a signal (SIGSTOP, SIGTSTP) or a debugger.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

/// The processes of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankStacks {
    /// Its number on this node.
    pub local_rank: usize,
    /// Its own process and those that it has started, parents first; empty if it has ended.
    pub processes: Vec<ProcessStack>,
    /// Seconds since something was last written to its logs; `None`: it has none that can be read.
    pub silent_seconds: Option<f64>,
    /// The last line of its log, if there is one.
    pub last_line: Option<String>,
}

impl RankStacks {
    /// The process that runs its program: the first one with a Python stack (a shell script may have started it), or else the
    /// rank's own.
    pub fn main_process(&self) -> Option<&ProcessStack> {
        let python = self.processes.iter().find(|process| !process.main_frames().is_empty());
        python.or_else(|| self.processes.first())
    }

    /// The Python stacks of its program as faulthandler writes them: the main thread last. Empty without Python stacks.
    pub fn as_faulthandler(&self) -> String {
        let frame =
            |frame: &StackFrame| format!("  File \"{}\", line {} in {}\n", frame.file, frame.line, frame.function);
        let thread = |thread: &ThreadStack| {
            let name = thread.name.as_ref().map(|name| format!(" [{name}]")).unwrap_or_default();
            let frames: String = thread.frames.iter().map(frame).collect();
            format!("Thread 0x{:x}{name} (most recent call first):\n{frames}", thread.thread.unwrap_or_default())
        };
        let threads = self.main_process().map_or(&[][..], |process| &process.threads);
        threads.iter().rev().map(thread).collect::<Vec<_>>().join("\n")
    }

    /// Whether its processes used next to no CPU while they were watched, for so long. One that works in C code does not move, but is
    /// not idle.
    pub fn is_idle(&self, watched: Duration) -> bool {
        let used: f64 = self.processes.iter().filter_map(|process| process.cpu_seconds_watched).sum();
        used < IDLE * watched.as_secs_f64()
    }

    /// Whether any of its Python stacks differs from those of another dump: it makes progress.
    fn has_moved(&self, earlier: &Self) -> bool {
        let stacks = |rank: &Self| -> Vec<(i32, Vec<ThreadStack>)> {
            let mut all: Vec<_> = rank.processes.iter().map(|one| (one.pid, one.threads.clone())).collect();
            all.iter_mut().for_each(|(_, threads)| threads.sort_by_key(|thread| thread.thread));
            all.sort_by_key(|(pid, _)| *pid);
            all
        };
        stacks(self) != stacks(earlier)
    }
}

/// The ranks of one node at one moment, more or less.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StackDump {
    /// The ranks that were running, by local rank.
    pub ranks: Vec<RankStacks>,
}

impl StackDump {
    /// Leaves out all but the main thread of each rank's program.
    pub fn keep_main_threads(&mut self) {
        for rank in &mut self.ranks {
            let main = rank.main_process().map(|process| process.pid);
            rank.processes.retain(|process| Some(process.pid) == main);
            rank.processes.iter_mut().for_each(|process| process.threads.truncate(1));
        }
    }

    /// Notes how much CPU time each process has used since an earlier dump.
    pub fn note_cpu_use(&mut self, earlier: &Self) {
        let before: Vec<&ProcessStack> = earlier.ranks.iter().flat_map(|rank| &rank.processes).collect();
        for process in self.ranks.iter_mut().flat_map(|rank| &mut rank.processes) {
            let own = before.iter().find(|one| one.pid == process.pid);
            process.cpu_seconds_watched = own.map(|one| (process.cpu_seconds - one.cpu_seconds).max(0.0));
        }
    }

    /// Whether any Python stack of any rank has moved since an earlier dump. A rank whose stacks cannot be read has moved if it used
    /// CPU time.
    pub fn has_moved(&self, earlier: &Self) -> bool {
        self.has_moved_where(earlier, |process| process.main_frames().is_empty())
    }

    /// As `has_moved`, of ranks whose main program has ended: a function of C that Python calls at its exit has no Python frame.
    pub fn has_moved_at_exit(&self, earlier: &Self) -> bool {
        self.has_moved_where(earlier, |process| process.threads.is_empty())
    }

    fn has_moved_where(&self, earlier: &Self, is_unread: impl Fn(&ProcessStack) -> bool) -> bool {
        let earlier_of = |rank: &RankStacks| earlier.ranks.iter().find(|one| one.local_rank == rank.local_rank);
        let is_unread = |rank: &RankStacks| rank.main_process().is_none_or(&is_unread);
        let cpu = |rank: &RankStacks| rank.processes.iter().map(|process| process.cpu_seconds).sum::<f64>();
        self.ranks.len() != earlier.ranks.len()
            || self.ranks.iter().any(|rank| {
                earlier_of(rank).is_none_or(|before| {
                    rank.has_moved(before) || is_unread(rank) && cpu(rank) > cpu(before) + UNREAD_BUSY
                })
            })
    }
}

/// The share of a CPU below which a rank is idle.
const IDLE: f64 = 0.05;
/// CPU seconds between two dumps above which a rank whose stacks cannot be read counts as one that works.
const UNREAD_BUSY: f64 = 0.05;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn frame(function: &str, file: &str, line: i32) -> StackFrame {
        StackFrame { function: function.to_owned(), file: file.to_owned(), line }
    }

    /// A rank with one process and these frames.
    pub(in super::super) fn rank(local_rank: usize, state: char, frames: &[StackFrame]) -> RankStacks {
        let threads = match frames {
            [] => Vec::new(),
            frames => vec![ThreadStack { thread: Some(7), name: Some("MainThread".into()), frames: frames.to_vec() }],
        };
        let process = ProcessStack {
            pid: 100 + local_rank as i32,
            name: "python".into(),
            state,
            wait_channel: None,
            cpu_seconds: 1.0,
            cpu_seconds_watched: None,
            unread: threads.is_empty().then(|| "no Python".into()),
            threads,
        };
        RankStacks {
            local_rank,
            processes: vec![process],
            silent_seconds: Some(60.0),
            last_line: Some("step 7".into()),
        }
    }

    #[test]
    fn a_rank_without_frames_moves_by_its_cpu_time_but_at_its_exit() {
        let before = StackDump { ranks: vec![rank(0, 'R', &[])] };
        let mut after = before.clone();
        after.ranks[0].processes[0].cpu_seconds += 1.0;
        assert!(after.has_moved(&before) && after.has_moved_at_exit(&before));
        let thread = ThreadStack { thread: Some(7), name: None, frames: Vec::new() };
        let [before, after] = [before, after].map(|mut dump| {
            dump.ranks[0].processes[0].threads.push(thread.clone());
            dump
        });
        assert!(after.has_moved(&before) && !after.has_moved_at_exit(&before));
    }

    #[test]
    fn any_thread_of_any_rank_moves_a_job() {
        let stands =
            StackDump { ranks: vec![rank(0, 'S', &[frame("a", "t.py", 1)]), rank(1, 'S', &[frame("b", "t.py", 2)])] };
        assert!(!stands.has_moved(&stands));
        let mut moved = stands.clone();
        moved.ranks[1].processes[0].threads[0].frames[0].line = 3;
        assert!(moved.has_moved(&stands));
        let mut one_thread_more = stands.clone();
        one_thread_more.ranks[0].processes[0].threads.push(ThreadStack { thread: Some(8), name: None, frames: vec![] });
        assert!(one_thread_more.has_moved(&stands));
        let one_rank_less = StackDump { ranks: vec![stands.ranks[0].clone()] };
        assert!(one_rank_less.has_moved(&stands));
    }

    #[test]
    fn a_rank_without_python_moves_by_its_cpu_time() {
        let stands = StackDump { ranks: vec![rank(0, 'S', &[])] };
        assert!(!stands.has_moved(&stands));
        let mut busy = stands.clone();
        busy.ranks[0].processes[0].cpu_seconds += 1.0;
        assert!(busy.has_moved(&stands));
    }
}
