//! Keeping logs short (`--log_max_size`) while their ranks write to them: the older part is copied to
//! `workerlog.N.1` and taken out of the file's beginning by the file system, where appending writers neither
//! notice nor lose a byte. A thread of its own does it, which sleeps until a log grows.

use super::logs::{nameless, numbered, plain};
use super::start::TAIL_BYTES;
use crate::spec::{SpecError, rotation};
use crate::sys::inotify::GrowthWatch;
use crate::sys::poll::Poll;
use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a log that grows is looked at; one that does not is not.
const PAUSE: Duration = Duration::from_millis(50);
/// The same where the system has no more watches to give.
pub(super) const WITHOUT_WATCH: Duration = Duration::from_secs(1);
/// Copied before it is looked whether the job is over.
const CHUNK: usize = 1 << 20;

/// One rank's log in one attempt. Places in it are counted from its beginning as it was before any of it
/// was taken out.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    state: Mutex<State>,
    /// It is written no more.
    closed: AtomicBool,
    until_shown: bool,
}

#[derive(Debug)]
struct State {
    file: File,
    /// Bytes that are no longer in the file: they were taken out of its beginning.
    taken: u64,
    /// Bytes at the beginning of what is left that read as zeroes: where a file system cannot take a range
    /// out of a file (tmpfs, btrfs), it is made a hole.
    hollow: u64,
    /// How large it may become before it is looked at again.
    limit: u64,
    /// From this place on it is still to be shown, and stays until then.
    unread: Option<u64>,
}

impl State {
    /// Takes out all before `end`. A file system that can do it only in blocks of another size says EINVAL.
    fn take_out(&mut self, end: u64) -> io::Result<()> {
        let range = |mode| fallocate(&self.file, mode, 0, i64::try_from(end).unwrap_or(i64::MAX));
        if self.hollow == 0 && range(FallocateFlags::FALLOC_FL_COLLAPSE_RANGE).is_ok() {
            self.taken += end;
            return Ok(());
        }
        range(FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE)?;
        self.hollow = end;
        Ok(())
    }
}

impl Log {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from `file`, which is this log, at a place that it moves on. What has been taken out before it
    /// could be read is passed over.
    pub fn read_at(&self, file: &File, buffer: &mut [u8], place: &mut u64) -> io::Result<usize> {
        let mut state = self.state();
        *place = (*place).max(state.taken + state.hollow);
        let read = file.read_at(buffer, *place - state.taken)?;
        *place += read as u64;
        if let Some(unread) = &mut state.unread {
            *unread = *place;
        }
        Ok(read)
    }

    /// It is read from this place on by who shows it.
    pub fn shown_from(&self, place: u64) {
        self.state().unread = self.until_shown.then_some(place);
    }

    /// It is shown no more.
    pub fn shown_no_more(&self) {
        self.state().unread = None;
    }

    /// Where in the file a place is now.
    pub fn offset(&self, place: u64) -> u64 {
        let state = self.state();
        place.saturating_sub(state.taken).max(state.hollow)
    }
}

/// Checks that the files of a folder can be kept short.
pub fn check(folder: &Path) -> Result<(), SpecError> {
    let tried = || -> io::Result<()> {
        let mut file = nameless(folder)?;
        file.write_all(&[0; 1 << 16])?;
        fallocate(&file, FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 1 << 15)?;
        Ok(())
    };
    tried().map_err(|error| {
        let why = format!("cannot be kept in {}: {}", folder.display(), plain(&error));
        SpecError::new("--log_max_size", "", why, "leave it out, or name a --log_dir on another file system")
    })
}

/// Keeps the logs of a job short.
pub struct Rotation {
    spec: rotation::Rotation,
    logs: Vec<Option<Arc<Log>>>,
    new: Sender<Arc<Log>>,
    bell: Arc<EventFd>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Rotation {
    /// Of this many ranks.
    pub fn new(spec: rotation::Rotation, ranks: usize) -> io::Result<Self> {
        let (new, logs) = unbounded();
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let over = Arc::new(AtomicBool::new(false));
        let rotator = Rotator { spec, new: logs, bell: bell.clone(), over: over.clone(), logs: Vec::new() };
        let thread = std::thread::Builder::new().name("rotation".into()).spawn(move || {
            // It cannot wait or watch: then logs grow.
            let _ = rotator.run();
        })?;
        Ok(Self { spec, logs: vec![None; ranks], new, bell, over, thread: Some(thread) })
    }

    /// Keeps one more log short: that of a local rank, in its present attempt. `overwrite`: what an earlier
    /// job has left of it goes.
    pub fn add(&mut self, local_rank: usize, path: &Path, overwrite: bool) -> io::Result<Arc<Log>> {
        if overwrite {
            (1..=self.spec.backups).map(|n| numbered(path, n)).for_each(|old| drop(std::fs::remove_file(old)));
        }
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        let state = Mutex::new(State { file, taken: 0, hollow: 0, limit: self.spec.max_size, unread: None });
        let (closed, until_shown) = (AtomicBool::new(false), self.spec.until_shown);
        let log = Arc::new(Log { path: path.to_owned(), state, closed, until_shown });
        self.logs[local_rank] = Some(log.clone());
        let _ = self.new.send(log.clone());
        self.bell.write(1)?;
        Ok(log)
    }

    /// A local rank's log in its present attempt.
    pub fn log(&self, local_rank: usize) -> Option<&Log> {
        self.logs[local_rank].as_deref()
    }

    /// All ranks have ended: nothing is taken out of their logs any more. A log whose beginning is a hole is
    /// written anew without it; who reads the old file keeps it. Returns how many bytes each log lacks at its
    /// beginning by now, by local rank.
    pub fn settle(&mut self) -> Vec<u64> {
        let settle = |log: Arc<Log>| {
            let state = log.state();
            log.closed.store(true, Ordering::Relaxed);
            if state.hollow == 0 {
                return state.taken;
            }
            let rewritten = fresh(&log.path).and_then(|new| {
                copy(&state.file, state.hollow..state.file.metadata()?.len(), &new, &|| true)?;
                std::fs::rename(unfinished(&log.path), &log.path)
            });
            state.taken + if rewritten.is_ok() { state.hollow } else { 0 }
        };
        self.logs.iter_mut().map(|log| log.take().map_or(0, settle)).collect()
    }
}

impl Drop for Rotation {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.bell.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Rotator {
    spec: rotation::Rotation,
    new: Receiver<Arc<Log>>,
    bell: Arc<EventFd>,
    over: Arc<AtomicBool>,
    logs: Vec<Arc<Log>>,
}

impl Rotator {
    fn run(mut self) -> io::Result<()> {
        let (asleep, awake, growth) = (Poll::new()?, Poll::new()?, GrowthWatch::new().ok());
        asleep.readable(&*self.bell, 0)?;
        awake.readable(&*self.bell, 0)?;
        if let Some(growth) = &growth {
            asleep.readable(growth, 1)?;
        }
        // While logs grow only the bell is heard, and they are looked at now and then: else every write would
        // wake this thread.
        let mut growing = false;
        while !self.over.load(Ordering::Relaxed) {
            match (&growth, growing) {
                (None, _) => awake.wait(Some(WITHOUT_WATCH))?,
                (Some(_), true) => awake.wait(Some(PAUSE))?,
                (Some(_), false) => asleep.wait(None)?,
            };
            let _ = self.bell.read();
            growing = growth.as_ref().is_none_or(|growth| growth.drain().is_ok_and(|grown| !grown.is_nothing()));
            for log in self.new.try_iter() {
                if let Some(growth) = &growth {
                    let _ = growth.add(&log.path);
                }
                self.logs.push(log);
                growing = true;
            }
            self.logs.retain(|log| !log.closed.load(Ordering::Relaxed));
            if growing {
                self.logs.iter().for_each(|log| self.look_at(log));
            }
        }
        Ok(())
    }

    fn look_at(&self, log: &Log) {
        let mut state = log.state();
        let size = state.file.metadata().map_or(0, |m| m.len());
        if size.saturating_sub(state.hollow) < state.limit {
            return;
        }
        // The limit holds again once the older part is gone. A full disk: tried again when as much has come.
        state.limit += self.spec.max_size;
        let block = state.file.metadata().map_or(4096, |m| m.blksize().max(1));
        let unread = state.unread.map_or(u64::MAX, |place| place.saturating_sub(state.taken));
        let range = state.hollow..(size - TAIL_BYTES.min(size)).min(unread) / block * block;
        let Ok(file) = state.file.try_clone() else { return };
        drop(state);
        let wanted = || !self.over.load(Ordering::Relaxed) && !log.closed.load(Ordering::Relaxed);
        let copied = range.start < range.end && self.copied(log, &file, range.clone(), &wanted).is_ok();
        // What is written back now is not waited for while the log is held.
        let _ = file.sync_data();
        let mut state = log.state();
        if copied && wanted() && self.kept(log).and_then(|()| state.take_out(range.end)).is_ok() {
            state.limit = self.spec.max_size;
        } else {
            let _ = std::fs::remove_file(unfinished(&log.path));
        }
    }

    fn copied(&self, log: &Log, file: &File, range: Range<u64>, wanted: &dyn Fn() -> bool) -> io::Result<()> {
        if self.spec.backups == 0 { Ok(()) } else { copy(file, range, &fresh(&log.path)?, wanted) }
    }

    /// Moves each older part on by one, the oldest out, and the newest in.
    fn kept(&self, log: &Log) -> io::Result<()> {
        if self.spec.backups == 0 {
            return Ok(());
        }
        for n in (1..self.spec.backups).rev() {
            match std::fs::rename(numbered(&log.path, n), numbered(&log.path, n + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(unfinished(&log.path), numbered(&log.path, 1))
    }
}

/// A part that is not whole yet.
fn unfinished(log: &Path) -> PathBuf {
    PathBuf::from(format!("{}.new", log.display()))
}

fn fresh(log: &Path) -> io::Result<File> {
    let path = unfinished(log);
    // Of a launcher that was killed.
    let _ = std::fs::remove_file(&path);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Copies a range of a log, as long as that is `wanted`.
fn copy(from: &File, range: Range<u64>, mut to: &File, wanted: &dyn Fn() -> bool) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut at = range.start;
    while at < range.end {
        if !wanted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let most = usize::try_from(range.end - at).map_or(CHUNK, |left| left.min(CHUNK));
        let read = from.read_at(&mut buffer[..most], at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all(&buffer[..read])?;
        at += read as u64;
    }
    Ok(())
}
