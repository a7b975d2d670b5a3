//! Reads of `/proc/PID` files that need the memory lock of the process, with a time limit. A process that the kernel holds in
//! mmap(2) or munmap(2), such as one on a hung file system, keeps that lock, and a read of these files waits as long as it does
//! (proc_pid_cmdline_read in fs/proc/base.c). Only a fatal signal ends such a wait, so a thread that belongs to the reader reads.

use super::held_threads::{HELD, HeldThreads};
use crate::sys::clock;
use crate::sys::process::spawn::THREAD_EXIT;
use nix::sys::signal::{SigSet, SigmaskHow};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long one file may take. A process that forks without pause delayed its reader by 50 ms.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long all files of one call may take on the event loop, which serves nothing else meanwhile.
const EVENT_LOOP_PATIENCE: Duration = Duration::from_millis(400);

/// The stack of a thread. In a host program, the C library takes the thread-local variables of all libraries from it.
const STACK: usize = 256 * 1024;

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

/// What was read of several processes. Those that are gone or may not be read are in neither field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readings<T = Vec<u8>> {
    /// By process id.
    pub found: BTreeMap<i32, T>,
    /// Processes that were not read in time.
    pub late: BTreeSet<i32>,
}

impl Readings {
    /// The same of what `of` finds in the contents.
    pub fn map<T>(self, of: impl Fn(&[u8]) -> T) -> Readings<T> {
        Readings { found: self.found.iter().map(|(pid, bytes)| (*pid, of(bytes))).collect(), late: self.late }
    }
}

impl<T> Default for Readings<T> {
    fn default() -> Self {
        Self { found: BTreeMap::new(), late: BTreeSet::new() }
    }
}

type ReadFile = fn(i32, LockedFile) -> io::Result<Vec<u8>>;

/// How a thread is started. It may fail, such as at RLIMIT_NPROC or at the limit of a cgroup.
type StartThread = fn(ReadFile, &'static HeldThreads) -> io::Result<ReaderThread>;

/// Reads such files. Its thread is started by the first read and ends with it at the latest. To be used by one process only: a fork of it
/// has no such thread.
#[derive(Debug)]
pub struct LockedFileReader {
    read: ReadFile,
    start: StartThread,
    patience: Duration,
    /// The limit of one call, if there is one.
    total: Option<Duration>,
    held: &'static HeldThreads,
    thread: RefCell<Option<ReaderThread>>,
}

impl Default for LockedFileReader {
    fn default() -> Self {
        Self::with_total(None)
    }
}

impl LockedFileReader {
    fn with_total(total: Option<Duration>) -> Self {
        let read: ReadFile = |pid, file| super::read(pid, file.name());
        let (start, patience, thread) = (ReaderThread::start, PATIENCE, RefCell::default());
        Self { read, start, patience, total, held: &HELD, thread }
    }

    /// A reader whose calls have a limit for all their processes together.
    pub fn for_event_loop() -> Self {
        Self::with_total(Some(EVENT_LOOP_PATIENCE))
    }

    /// The contents of this file of these processes, in the order of their ids. A process that holds its lock for longer than the
    /// limit is not read again until it has released it.
    pub fn read_each(&self, pids: impl IntoIterator<Item = i32>, file: LockedFile) -> Readings {
        let deadline = self.total.map(|total| clock::now() + total);
        let pids: BTreeSet<i32> = pids.into_iter().collect();
        let late: BTreeSet<i32> = pids.iter().copied().filter(|pid| self.held.contains(*pid)).collect();
        let mut todo: Vec<i32> = pids.difference(&late).copied().collect();
        let mut readings = Readings { late, found: BTreeMap::new() };
        let mut thread = self.thread.borrow_mut();
        let mut died_at = None;
        while !todo.is_empty() && !self.held.is_full() && deadline.is_none_or(|at| clock::now() < at) {
            let Ok(mut reading) = thread.take().map_or_else(|| (self.start)(self.read, self.held), Ok) else {
                // It may block. But without any read nothing would be found, and processes with a held lock are few.
                let direct = todo.drain(..).filter_map(|pid| Some((pid, (self.read)(pid, file).ok()?)));
                readings.found.extend(direct);
                break;
            };
            let (answered, end) = reading.read(&todo, file, (self.patience, deadline), &mut readings.found);
            let mut done = answered;
            match end {
                BatchEnd::Complete => *thread = Some(reading),
                BatchEnd::Late => done += 1,
                // Not the fault of the process, at least the first time.
                BatchEnd::Died => done += usize::from(died_at.replace(todo[answered]) == Some(todo[answered])),
            }
            readings.late.extend(&todo[answered..done]);
            todo.drain(..done);
        }
        readings.late.extend(todo);
        readings
    }

    /// The contents that `read_each` finds.
    pub fn read_all(&self, pids: impl IntoIterator<Item = i32>, file: LockedFile) -> BTreeMap<i32, Vec<u8>> {
        self.read_each(pids, file).found
    }

    /// The content of this file of one process.
    pub fn read(&self, pid: i32, file: LockedFile) -> Option<Vec<u8>> {
        self.read_all([pid], file).remove(&pid)
    }

    /// Ends the thread until the next read.
    pub fn end_thread(&self) {
        if let Some(thread) = self.thread.take() {
            thread.end();
        }
    }
}

impl Drop for LockedFileReader {
    fn drop(&mut self) {
        self.end_thread();
    }
}

/// How the reads of one request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchEnd {
    /// All were answered.
    Complete,
    /// The next one is not answered in time. The thread is left waiting for it.
    Late,
    /// The thread has ended.
    Died,
}

/// A thread that reads files in the order of the requests.
#[derive(Debug)]
struct ReaderThread {
    requests: Sender<(Vec<i32>, LockedFile)>,
    answers: Receiver<io::Result<Vec<u8>>>,
    /// How many reads the thread has finished, or `GIVEN_UP`.
    finished: Arc<AtomicUsize>,
    /// How many answers were received.
    received: usize,
    /// Returns the path of its folder below /proc.
    thread: JoinHandle<Option<PathBuf>>,
    held: &'static HeldThreads,
}

/// The reader waits for the thread no more. The thread removes its entry and ends once it has finished its read.
const GIVEN_UP: usize = usize::MAX;

impl ReaderThread {
    /// Its signals are blocked, so that the handlers run on other threads.
    fn start(read: ReadFile, held: &'static HeldThreads) -> io::Result<Self> {
        let (requests, todo) = channel::<(Vec<i32>, LockedFile)>();
        let (done, answers) = channel();
        let finished = Arc::new(AtomicUsize::new(0));
        let count = finished.clone();
        let count_read =
            move || count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| (n != GIVEN_UP).then(|| n + 1)).is_ok();
        let answer = move |pid: i32, file: LockedFile| {
            let answer = read(pid, file);
            if !count_read() {
                held.remove(pid);
                return Err(());
            }
            // Fails once the other side is dropped.
            done.send(answer).map_err(drop)
        };
        let run = move || {
            let _ = todo.iter().try_for_each(|(pids, file)| pids.iter().try_for_each(|pid| answer(*pid, file)));
            std::fs::read_link("/proc/thread-self").ok()
        };
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let thread = Builder::new().name("proc-reader".into()).stack_size(STACK).spawn(run);
        mask.thread_set_mask()?;
        Ok(Self { requests, answers, finished, received: 0, thread: thread?, held })
    }

    /// Reads until a file takes longer than `patience` or the deadline has passed. Returns how many were answered.
    fn read(
        &mut self,
        pids: &[i32],
        file: LockedFile,
        (patience, deadline): (Duration, Option<Duration>),
        found: &mut BTreeMap<i32, Vec<u8>>,
    ) -> (usize, BatchEnd) {
        if self.requests.send((pids.to_vec(), file)).is_err() {
            return (0, BatchEnd::Died);
        }
        for (number, pid) in pids.iter().enumerate() {
            let left = deadline.map_or(patience, |at| patience.min(at.saturating_sub(clock::now())));
            let answer = match self.answers.recv_timeout(left) {
                Err(RecvTimeoutError::Timeout) if self.give_up(*pid) => return (number, BatchEnd::Late),
                // The thread has finished this read, so it answers without a wait.
                Err(RecvTimeoutError::Timeout) => self.answers.recv().map_err(drop),
                answer => answer.map_err(drop),
            };
            let Ok(answer) = answer else { return (number, BatchEnd::Died) };
            self.received += 1;
            found.extend(answer.ok().map(|bytes| (*pid, bytes)));
        }
        (pids.len(), BatchEnd::Complete)
    }

    /// Leaves the thread to the process that it is reading. Not if it has just finished that.
    fn give_up(&self, pid: i32) -> bool {
        if !self.held.add(pid) {
            // Other readers have filled the list meanwhile. The thread ends as it cannot send its answer.
            return true;
        }
        let is_reading =
            self.finished.compare_exchange(self.received, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !is_reading {
            self.held.remove(pid);
        }
        is_reading
    }

    /// Ends the thread, and waits until the kernel lists it no more: Python warns of threads when it forks, and so does the
    /// launcher.
    fn end(self) {
        drop(self.requests);
        // It waits for a request, so this takes no time. A panic has been reported.
        let Ok(Some(task)) = self.thread.join() else { return };
        let (task, deadline) = (Path::new("/proc").join(task), clock::now() + THREAD_EXIT);
        while task.exists() && clock::now() < deadline {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::held_threads::MOST_HELD;
    use super::*;
    use crate::sys::process::tree::{self, KeyPlaces};
    use std::sync::{Mutex, PoisonError};

    fn threads() -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect()
    }

    #[test]
    fn files_of_processes_that_are_there_are_read() {
        let own = std::process::id() as i32;
        assert_eq!(LockedFileReader::for_event_loop().total, Some(EVENT_LOOP_PATIENCE));
        for reader in [LockedFileReader::default(), LockedFileReader::for_event_loop()] {
            for file in [LockedFile::Environment, LockedFile::CommandLine, LockedFile::MemoryMap] {
                let found = reader.read_all([own, 0, own], file);
                assert_eq!(found.keys().collect::<Vec<_>>(), [&own], "{file:?}");
                assert_eq!(reader.read(0, file), None);
            }
            assert_eq!(reader.read_all([], LockedFile::Environment).len(), 0);
        }
    }

    /// A reader with a list of its own.
    fn reader(read: ReadFile, held: &'static HeldThreads) -> LockedFileReader {
        let (patience, thread) = (Duration::from_millis(100), RefCell::default());
        LockedFileReader { read, start: ReaderThread::start, patience, total: None, held, thread }
    }

    fn bytes(pids: &[i32]) -> BTreeMap<i32, Vec<u8>> {
        pids.iter().map(|pid| (*pid, vec![*pid as u8])).collect()
    }

    /// Waits until no thread is held.
    fn await_released(held: &HeldThreads) {
        while !held.0.iter().all(|entry| HeldThreads::is_free(entry.load(Ordering::SeqCst))) {
            std::thread::yield_now();
        }
    }

    /// Until the lock is released, odd processes are not read.
    fn read_behind(lock: &Mutex<()>, pid: i32) -> io::Result<Vec<u8>> {
        if pid % 2 == 1 {
            drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(vec![pid as u8])
    }

    #[test]
    fn a_process_that_holds_its_lock_is_left_out_and_not_asked_again() {
        static LOCK: Mutex<()> = Mutex::new(());
        static HELD: HeldThreads = HeldThreads::new();
        let locked = LOCK.lock();
        let reader = reader(|pid, _| read_behind(&LOCK, pid), &HELD);
        let readings = reader.read_each([2, 1, 4, 3, 6], LockedFile::Environment);
        assert_eq!(readings, Readings { found: bytes(&[2, 4, 6]), late: BTreeSet::from([1, 3]) });
        assert_eq!(reader.read(1, LockedFile::CommandLine), None);
        assert_eq!([1, 2, 3, 4].map(|pid| HELD.contains(pid)), [true, false, true, false]);
        // Many such processes do not take a limit each: there is room for one more thread.
        assert!((4..=MOST_HELD as i32).all(|pid| HELD.add(2 * pid)));
        assert_eq!(reader.read_all((1..=1000).map(|n| 2 * n + 1), LockedFile::Environment), BTreeMap::new());
        assert!(HELD.is_full());
        assert_eq!(reader.read_each([2], LockedFile::Environment).late, BTreeSet::from([2]));
        assert!(reader.thread.borrow().is_none(), "nothing is waited for any more");
        (4..=MOST_HELD as i32).for_each(|pid| HELD.remove(2 * pid));
        drop(locked);
        await_released(&HELD);
        assert_eq!(reader.read_all([1, 8], LockedFile::Environment), bytes(&[1, 8]));
    }

    #[test]
    fn a_process_that_is_not_read_in_time_may_have_a_key() {
        static LOCK: Mutex<()> = Mutex::new(());
        static HELD: HeldThreads = HeldThreads::new();
        fn read(pid: i32, _: LockedFile) -> io::Result<Vec<u8>> {
            read_behind(&LOCK, pid).map(|_| b"KEY=a/1\0".to_vec())
        }
        let locked = LOCK.lock();
        // The number of no process is that of this test.
        let (late, other) = (i32::MAX, i32::MAX - 1);
        for places in [KeyPlaces::Environment, KeyPlaces::EnvironmentAndMemory] {
            let found = tree::keys(&reader(read, &HELD), [late, other], "KEY", places);
            assert_eq!(found.keys.get(&other), Some(&vec![b"a/1".to_vec()]), "{places:?}");
            assert_eq!((found.late, found.bare), (BTreeSet::from([late]), BTreeSet::new()), "{places:?}");
        }
        drop(locked);
        await_released(&HELD);
    }

    #[test]
    fn a_process_delays_one_of_all_readers() {
        static LOCK: Mutex<()> = Mutex::new(());
        static HELD: HeldThreads = HeldThreads::new();
        static READS: AtomicUsize = AtomicUsize::new(0);
        fn read(pid: i32, _: LockedFile) -> io::Result<Vec<u8>> {
            READS.fetch_add(1, Ordering::SeqCst);
            read_behind(&LOCK, pid)
        }
        let locked = LOCK.lock();
        for file in [LockedFile::Environment, LockedFile::CommandLine, LockedFile::MemoryMap] {
            let readings = reader(read, &HELD).read_each([1], file);
            assert_eq!(readings, Readings { late: BTreeSet::from([1]), ..Readings::default() });
        }
        assert_eq!(READS.load(Ordering::SeqCst), 1);
        drop(locked);
        await_released(&HELD);
        assert_eq!(reader(read, &HELD).read(1, LockedFile::Environment), Some(vec![1]));
    }

    #[test]
    fn entries_of_the_process_that_this_one_was_forked_from_do_not_count() {
        static HELD: HeldThreads = HeldThreads::new();
        for entry in &HELD.0 {
            entry.store(1 << 32 | 5, Ordering::SeqCst);
        }
        assert!(!HELD.is_full() && !HELD.contains(5));
        assert!((1..=MOST_HELD as i32).all(|pid| HELD.add(pid)) && HELD.is_full() && !HELD.add(5));
        HELD.remove(7);
        assert!(!HELD.contains(7) && HELD.add(5) && HELD.contains(5));
    }

    #[test]
    fn a_call_has_a_limit_for_all_processes() {
        static LOCK: Mutex<()> = Mutex::new(());
        static HELD: HeldThreads = HeldThreads::new();
        let locked = LOCK.lock();
        let patient = reader(|pid, _| read_behind(&LOCK, pid), &HELD);
        let mut limited = reader(patient.read, &HELD);
        (limited.total, limited.patience) = (Some(patient.patience), Duration::from_secs(3600));
        let readings = limited.read_each([1, 2, 3], LockedFile::Environment);
        assert_eq!(readings, Readings { late: BTreeSet::from([1, 2, 3]), ..Readings::default() });
        assert_eq!([2, 3].map(|pid| HELD.contains(pid)), [false, false]);
        // The next call goes on with them.
        assert_eq!(patient.read_all([1, 2, 3], LockedFile::Environment), bytes(&[2]));
        drop(locked);
    }

    #[test]
    fn without_a_thread_files_are_read_directly() {
        let start: StartThread = |_, _| Err(io::ErrorKind::WouldBlock.into());
        let (mut reader, own) = (LockedFileReader::default(), std::process::id() as i32);
        reader.start = start;
        let readings = reader.read_each([own, 0], LockedFile::Environment);
        assert_eq!((readings.found.len(), readings.found.contains_key(&own), readings.late.len()), (1, true, 0));
    }

    #[test]
    fn a_thread_that_dies_is_replaced() {
        static HELD: HeldThreads = HeldThreads::new();
        static DEATHS: AtomicUsize = AtomicUsize::new(0);
        fn read(pid: i32, _: LockedFile) -> io::Result<Vec<u8>> {
            // Process 1 ends one thread, process 3 each one.
            if pid == 3 || pid == 1 && DEATHS.load(Ordering::SeqCst) == 0 {
                DEATHS.fetch_add(1, Ordering::SeqCst);
                std::panic::resume_unwind(Box::new(()));
            }
            Ok(vec![pid as u8])
        }
        let mut reader = reader(read, &HELD);
        reader.patience = Duration::from_secs(3600);
        let readings = reader.read_each([1, 2, 3, 4], LockedFile::Environment);
        assert_eq!(readings, Readings { found: bytes(&[1, 2, 4]), late: BTreeSet::from([3]) });
        assert_eq!(DEATHS.load(Ordering::SeqCst), 3);
        assert!(!HELD.contains(3));
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
