//! Reads of `/proc/PID` files that need the memory lock of the process, with a time limit. A process that the kernel holds in
//! mmap(2) or munmap(2), such as one on a hung file system, keeps that lock, and a read of these files waits as long as it does
//! (proc_pid_cmdline_read in fs/proc/base.c). Only a fatal signal ends such a wait, so a thread of its own reads.

use nix::sys::signal::{SigSet, SigmaskHow};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long one file may take. A process that forks without pause delayed its reader by 50 ms.
const PATIENCE: Duration = Duration::from_millis(200);

/// How many processes may hold a thread before nothing more is read: each thread costs its stack.
const MOST_HELD: usize = 32;

/// A file of `/proc/PID` whose read needs the memory lock of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockedFile {
    /// `environ`
    Environment,
    /// `cmdline`
    CommandLine,
    /// `maps`
    MemoryMap,
}

impl LockedFile {
    fn name(self) -> &'static str {
        match self {
            Self::Environment => "environ",
            Self::CommandLine => "cmdline",
            Self::MemoryMap => "maps",
        }
    }
}

type ReadFile = fn(i32, LockedFile) -> io::Result<Vec<u8>>;

/// Reads such files. Its thread is started by the first read and ends with it. To be used by one process only: a fork of it
/// has no such thread.
#[derive(Debug)]
pub struct LockedFileReader {
    read: ReadFile,
    patience: Duration,
    state: RefCell<ReaderState>,
}

#[derive(Debug, Default)]
struct ReaderState {
    thread: Option<ReaderThread>,
    /// Processes that hold a thread.
    held: BTreeSet<i32>,
}

impl Default for LockedFileReader {
    fn default() -> Self {
        Self { read: |pid, file| super::read(pid, file.name()), patience: PATIENCE, state: RefCell::default() }
    }
}

impl LockedFileReader {
    /// The contents of this file of these processes. Those that are gone, may not be read, or hold their lock for longer than
    /// the limit are missing. A process that has held it once is not read again.
    pub fn read_all(&self, pids: impl IntoIterator<Item = i32>, file: LockedFile) -> BTreeMap<i32, Vec<u8>> {
        let mut state = self.state.borrow_mut();
        let mut todo: Vec<i32> = pids.into_iter().filter(|pid| !state.held.contains(pid)).collect();
        let mut found = BTreeMap::new();
        while !todo.is_empty() && state.held.len() < MOST_HELD {
            // Without a thread nothing can be read in safety. The processes are found by their parents and by the cgroup then.
            let Ok(thread) = state.thread.take().map_or_else(|| ReaderThread::start(self.read), Ok) else { break };
            let answered = thread.read(&todo, file, self.patience, &mut found);
            if answered == todo.len() {
                state.thread = Some(thread);
            } else {
                state.held.insert(todo[answered]);
                thread.abandon();
            }
            todo.drain(..=answered.min(todo.len() - 1));
        }
        found
    }

    /// The content of this file of one process.
    pub fn read(&self, pid: i32, file: LockedFile) -> Option<Vec<u8>> {
        self.read_all([pid], file).remove(&pid)
    }
}

impl Drop for LockedFileReader {
    fn drop(&mut self) {
        if let Some(thread) = self.state.get_mut().thread.take() {
            thread.end();
        }
    }
}

/// A thread that reads files in the order of the requests.
#[derive(Debug)]
struct ReaderThread {
    requests: Sender<(Vec<i32>, LockedFile)>,
    answers: Receiver<io::Result<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl ReaderThread {
    /// Its signals are blocked, so that the handlers run on other threads.
    fn start(read: ReadFile) -> io::Result<Self> {
        let (requests, todo) = channel::<(Vec<i32>, LockedFile)>();
        let (done, answers) = channel();
        let run = move || {
            // Both ends fail once the other side is dropped.
            let _ =
                todo.iter().try_for_each(|(pids, file)| pids.iter().try_for_each(|pid| done.send(read(*pid, file))));
        };
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let thread = Builder::new().name("proc-reader".into()).spawn(run);
        mask.thread_set_mask()?;
        Ok(Self { requests, answers, thread: thread? })
    }

    /// Reads until a file takes longer than `patience`. Returns how many were answered.
    fn read(&self, pids: &[i32], file: LockedFile, patience: Duration, found: &mut BTreeMap<i32, Vec<u8>>) -> usize {
        if self.requests.send((pids.to_vec(), file)).is_err() {
            return 0;
        }
        for (number, pid) in pids.iter().enumerate() {
            match self.answers.recv_timeout(patience) {
                Ok(answer) => found.extend(answer.ok().map(|bytes| (*pid, bytes))),
                Err(_) => return number,
            }
        }
        pids.len()
    }

    fn end(self) {
        drop(self.requests);
        // It waits for a request, so this takes no time. A panic has been reported.
        let _ = self.thread.join();
    }

    /// It ends once the process releases its lock.
    fn abandon(self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn threads() -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect()
    }

    #[test]
    fn files_of_processes_that_are_there_are_read() {
        let (reader, own) = (LockedFileReader::default(), std::process::id() as i32);
        for file in [LockedFile::Environment, LockedFile::CommandLine, LockedFile::MemoryMap] {
            let found = reader.read_all([own, 0, own], file);
            assert_eq!(found.keys().collect::<Vec<_>>(), [&own], "{file:?}");
            assert_eq!(reader.read(0, file), None);
        }
        assert_eq!(reader.read_all([], LockedFile::Environment).len(), 0);
    }

    #[test]
    fn a_process_that_holds_its_lock_is_left_out_and_not_asked_again() {
        static RELEASED: AtomicBool = AtomicBool::new(false);
        fn read(pid: i32, _: LockedFile) -> io::Result<Vec<u8>> {
            while pid % 2 == 1 && !RELEASED.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(vec![pid as u8])
        }
        let patience = Duration::from_millis(5);
        let reader = LockedFileReader { read, patience, state: RefCell::default() };
        let found = reader.read_all([2, 1, 4, 3, 6], LockedFile::Environment);
        assert_eq!(found, BTreeMap::from([(2, vec![2]), (4, vec![4]), (6, vec![6])]));
        assert_eq!(reader.read(1, LockedFile::CommandLine), None);
        let held = reader.state.borrow().held.clone();
        assert_eq!(held, BTreeSet::from([1, 3]));
        // Many such processes do not take a limit each.
        assert_eq!(reader.read_all((1..=1000).map(|n| 2 * n + 1), LockedFile::Environment), BTreeMap::new());
        assert_eq!(reader.state.borrow().held.len(), MOST_HELD);
        let begun = clock::now();
        assert_eq!(reader.read(8, LockedFile::Environment), None);
        assert!(clock::now() - begun < patience, "nothing is waited for any more");
        RELEASED.store(true, Ordering::Relaxed);
    }

    #[test]
    fn the_thread_ends_with_the_reader() {
        let named = || threads().iter().filter(|name| name.trim() == "proc-reader").count();
        // Other tests have readers too; each of these had one at the same time.
        let readers: Vec<_> = (0..64).map(|_| LockedFileReader::default()).collect();
        let own = std::process::id() as i32;
        assert!(readers.iter().all(|reader| reader.read(own, LockedFile::CommandLine).is_some()));
        assert!(named() >= 64);
        drop(readers);
        assert!(named() < 64);
    }
}
