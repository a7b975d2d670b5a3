//! Log rotation (`--log_max_size`) while ranks write: the older part of a log is copied to `workerlog.N.1`, then the file
//! system removes it from the beginning of the file (fallocate(2)). Ranks that append neither notice nor lose a byte. One
//! thread does it; it sleeps until a log grows.

use crate::run::output::log_files::{TAIL_BYTES, create_unlinked, numbered, plain};
use crate::run::output::rotated_log::RotatedLog;
use crate::spec::SpecError;
use crate::spec::records::log_rotation;
use crate::sys::io::inotify::{FileWatch, GrowthWatch};
use crate::sys::io::poll::Poller;
use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the size of a growing log is checked.
const PAUSE: Duration = Duration::from_millis(50);
/// The same without inotify watches (fs.inotify.max_user_watches).
pub(crate) const WITHOUT_WATCH: Duration = Duration::from_secs(1);
/// Bytes copied between two checks for the end of the job.
const CHUNK: usize = 1 << 20;

/// Checks that the file system of a folder supports log rotation.
pub fn check(folder: &Path) -> Result<(), SpecError> {
    let tried = || -> io::Result<()> {
        let mut file = create_unlinked(folder)?;
        file.write_all(&[0; 1 << 16])?;
        fallocate(&file, FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 1 << 15)?;
        Ok(())
    };
    tried().map_err(|error| {
        let why = format!("cannot be kept in {}: {}", folder.display(), plain(&error));
        SpecError::new("--log_max_size", "", why, "leave it out, or name a --log_dir on another file system")
    })
}

/// Rotates the logs of a job.
pub struct LogRotation {
    spec: log_rotation::LogRotationSpec,
    /// The logs of the present attempt, with the local rank.
    logs: Vec<(usize, Arc<RotatedLog>)>,
    new: Sender<Arc<RotatedLog>>,
    wakeup: Arc<EventFd>,
    over: Arc<AtomicBool>,
    asleep: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LogRotation {
    /// Starts the thread.
    pub fn new(spec: log_rotation::LogRotationSpec) -> io::Result<Self> {
        let (new, logs) = unbounded();
        let wakeup = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let over = Arc::new(AtomicBool::new(false));
        let asleep = Arc::new(AtomicBool::new(false));
        let rotator = Rotator {
            spec,
            new: logs,
            wakeup: wakeup.clone(),
            over: over.clone(),
            asleep: asleep.clone(),
            growth: GrowthWatch::of_process(),
            logs: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("rotation".into()).spawn(move || {
            // On an error of epoll the logs just grow.
            let _ = rotator.run();
        })?;
        Ok(Self { spec, logs: Vec::new(), new, wakeup, over, asleep, thread: Some(thread) })
    }

    /// Adds the log of a local rank in its present attempt. `overwrite`: removes the older parts of an earlier job.
    pub fn add(&mut self, local_rank: usize, path: &Path, overwrite: bool) -> io::Result<Arc<RotatedLog>> {
        if overwrite {
            (1..=self.spec.backups).map(|n| numbered(path, n)).for_each(|old| drop(std::fs::remove_file(old)));
        }
        let log = Arc::new(RotatedLog::open(path, self.spec.max_size, self.spec.until_shown)?);
        self.logs.push((local_rank, log.clone()));
        let _ = self.new.send(log.clone());
        self.wakeup.write(1)?;
        Ok(log)
    }

    /// Wakes the thread because files have grown. While it is awake, it needs no call for each write.
    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            let _ = self.wakeup.write(1);
        }
    }

    /// The log of the present attempt at this path.
    pub fn log(&self, path: &Path) -> Option<&RotatedLog> {
        self.logs.iter().map(|(_, log)| &**log).find(|log| log.path == path)
    }

    /// Ends rotation after all ranks have ended. A log that begins with a hole is rewritten without it; an open reader keeps
    /// the old file.
    pub fn finish(&mut self) -> Vec<FinishedLog> {
        let finish = |(local_rank, log): (usize, Arc<RotatedLog>)| {
            let state = log.state();
            log.closed.store(true, Ordering::Relaxed);
            if state.reserved.is_some()
                && let Ok(found) = state.file.metadata()
            {
                // Gives back what was reserved behind its end (ftruncate(2) to its present size).
                let _ = state.file.set_len(found.len());
            }
            let rewritten = || {
                create_unfinished(&log.path).and_then(|new| {
                    copy(&state.file, state.hole..state.file.metadata()?.len(), &new, &|| true)?;
                    std::fs::rename(unfinished(&log.path), &log.path)
                })
            };
            let hole = if state.hole > 0 && rewritten().is_ok() { state.hole } else { 0 };
            FinishedLog {
                local_rank,
                path: log.path.clone(),
                removed: state.removed + hole,
                lost: state.lost + state.cut_off(),
            }
        };
        self.logs.drain(..).map(finish).collect()
    }
}

/// A log whose rotation has ended.
#[derive(Debug)]
pub struct FinishedLog {
    /// Its local rank.
    pub local_rank: usize,
    /// Its path.
    pub path: PathBuf,
    /// Bytes that were removed from its beginning.
    pub removed: u64,
    /// Those of a captured stream that the console has not shown either.
    pub lost: u64,
}

impl Drop for LogRotation {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.wakeup.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Rotator {
    spec: log_rotation::LogRotationSpec,
    new: Receiver<Arc<RotatedLog>>,
    wakeup: Arc<EventFd>,
    over: Arc<AtomicBool>,
    /// Whether it sleeps until a log grows.
    asleep: Arc<AtomicBool>,
    growth: Option<&'static GrowthWatch>,
    /// The logs, with the size that each had when it was checked.
    logs: Vec<(Arc<RotatedLog>, u64)>,
}

impl Rotator {
    fn run(mut self) -> io::Result<()> {
        let poll = Poller::new()?;
        poll.readable(&*self.wakeup, 0)?;
        // The logs are watched only while they do not grow: else every write would wake the event loop.
        let mut watches: Option<Vec<FileWatch>> = None;
        while !self.over.load(Ordering::Relaxed) {
            poll.wait(match &watches {
                None => Some(PAUSE),
                Some(watches) if watches.len() >= self.logs.len() => None,
                Some(_) => Some(WITHOUT_WATCH),
            })?;
            let _ = self.wakeup.read();
            // Before the sizes are checked: a write after the check wakes this thread again.
            self.asleep.store(watches.is_some(), Ordering::SeqCst);
            self.logs.retain(|(log, _)| !log.closed.load(Ordering::Relaxed));
            let before = self.logs.len();
            self.logs.extend(self.new.try_iter().map(|log| (log, 0)));
            if self.rotate_full_logs() || self.logs.len() > before {
                self.asleep.store(false, Ordering::SeqCst);
                watches = None;
            } else if watches.is_none() {
                self.asleep.store(true, Ordering::SeqCst);
                let add = |(log, _): &(Arc<RotatedLog>, u64)| self.growth?.add(&log.path).ok();
                watches = Some(self.logs.iter().filter_map(add).collect());
                // A write before the watch causes no event.
                self.wakeup.write(1)?;
            }
        }
        Ok(())
    }

    /// Rotates logs that have reached their limit. Returns whether any log has grown since the last call.
    fn rotate_full_logs(&mut self) -> bool {
        let mut logs = std::mem::take(&mut self.logs);
        let mut grown = false;
        for (log, size) in &mut logs {
            self.rotate_if_full(log);
            let now = log.state().file.metadata().map_or(*size, |m| m.len());
            grown |= now != std::mem::replace(size, now);
        }
        self.logs = logs;
        grown
    }

    fn rotate_if_full(&self, log: &RotatedLog) {
        if log.is_captured() {
            return log.shorten(false);
        }
        let mut state = log.state();
        let size = state.file.metadata().map_or(0, |m| m.len());
        if size.saturating_sub(state.hole) < state.limit {
            return;
        }
        // Set back once the older part is removed. If that fails (full disk), the next try comes after as much growth.
        state.limit += self.spec.max_size;
        let block = state.file.metadata().map_or(4096, |m| m.blksize().max(1));
        let range = state.hole..(size - TAIL_BYTES.min(size)) / block * block;
        let Ok(file) = state.file.try_clone() else { return };
        drop(state);
        let wanted = || !self.over.load(Ordering::Relaxed) && !log.closed.load(Ordering::Relaxed);
        let copied = range.start < range.end && self.copy_older(log, &file, range.clone(), &wanted).is_ok();
        // Written back now, so that nothing waits for the disk while the lock is held.
        let _ = file.sync_data();
        let mut state = log.state();
        if copied && wanted() && self.shift_backups(log).and_then(|()| state.remove_before(range.end)).is_ok() {
            state.limit = self.spec.max_size;
        } else {
            let _ = std::fs::remove_file(unfinished(&log.path));
        }
    }

    fn copy_older(
        &self,
        log: &RotatedLog,
        file: &File,
        range: Range<u64>,
        wanted: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        if self.spec.backups == 0 { Ok(()) } else { copy(file, range, &create_unfinished(&log.path)?, wanted) }
    }

    /// Renames each older part to the next number, drops the oldest and adds the new one.
    fn shift_backups(&self, log: &RotatedLog) -> io::Result<()> {
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

/// The name of an older part while it is written.
fn unfinished(log: &Path) -> PathBuf {
    PathBuf::from(format!("{}.new", log.display()))
}

fn create_unfinished(log: &Path) -> io::Result<File> {
    let path = unfinished(log);
    // A launcher that was killed may have left one.
    let _ = std::fs::remove_file(&path);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Copies a range of a log. Fails with `Interrupted` once `wanted` is false.
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
