//! Copies what a rank writes to a pipe or to a terminal to the rank's log, unchanged, on a thread. The console follows the log as it
//! does without (`console.rs`). It makes the rank wait only if its captured log has reached its limit.

use crate::run::output::log_files::{has_no_room, plain};
use crate::run::output::rotated_log::RotatedLog;
use crate::sys::clock;
use crate::sys::io::console::Console;
use crate::sys::io::output_end::{OutputEnd, OutputRead};
use crate::sys::signals;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::dispatcher::{get_default, with_default};
use tracing::{Dispatch, warn};

/// Bytes that are collected for one write to the log. The kernel holds no more than this in a pipe or pseudo-terminal.
const CHUNK: usize = 64 * 1024;
/// Time between two writes to a log that has no room.
const RETRY: Duration = Duration::from_millis(50);
/// How long a rank waits for room on the disk of its log. Then output is lost.
const DISK_PATIENCE: Duration = Duration::from_secs(30);
/// The same for a rank that saves its state in a grace period.
const SAVING_PATIENCE: Duration = Duration::from_secs(1);
/// Time after which it waits again.
const DISK_RESPITE: Duration = Duration::from_secs(300);

/// Where a rank's output goes.
pub struct CopiedLog {
    /// The rank's log.
    pub file: Arc<File>,
    /// Its path.
    pub path: PathBuf,
    /// Its limits, if it has some.
    pub rotated: Option<Arc<RotatedLog>>,
    /// The terminal that the user sees, if the rank writes to one.
    pub console: Option<Arc<Console>>,
}

/// The pipe or the terminal of a rank in one attempt.
pub struct RankOutput {
    copier: Arc<Mutex<LogCopier>>,
    saves: Arc<AtomicBool>,
    over: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the log takes what is written to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogState {
    Takes,
    /// Its disk has been full since this time. The rank waits.
    Full(Duration),
    /// It has been so for too long. What it does not take is lost.
    GivenUp,
}

struct LogCopier {
    /// `None` once no process has the other end open.
    end: Option<Arc<OutputEnd>>,
    log: CopiedLog,
    buffer: Vec<u8>,
    /// The bytes of the buffer that the log has not taken yet: from the first position to the second one.
    rest: (usize, usize),
    state: LogState,
    /// When it may wait for room again.
    waits_from: Duration,
    /// Bytes that the log has not taken in time.
    lost: u64,
    /// Whether the rank is asked to stop: it does not wait for the console any more, and its log grows.
    saves: Arc<AtomicBool>,
    /// Whether it has ended. The log grows then too.
    has_ended: bool,
}

impl LogCopier {
    /// Copies what has been written, at most `CHUNK` bytes.
    fn copy(&mut self) {
        self.write_rest();
        let Some(end) = self.end.as_ref().filter(|_| !self.has_rest()) else { return };
        let (mut filled, mut read) = (0, OutputRead::Nothing);
        while filled < CHUNK {
            read = end.read(&mut self.buffer[filled..]);
            let OutputRead::Bytes(more) = read else { break };
            filled += more;
        }
        if let Some(console) = &self.log.console {
            // A launcher in the background receives no SIGWINCH.
            let _ = end.resize(&**console);
        }
        if read == OutputRead::Closed {
            self.end = None;
        }
        self.rest = (0, filled);
        self.write_rest();
    }

    fn has_rest(&self) -> bool {
        self.rest.0 < self.rest.1
    }

    /// Writes to the log what it takes.
    fn write_rest(&mut self) {
        while self.has_rest() {
            if let Some(rotated) = self.log.rotated.as_ref().filter(|_| !self.has_ended && !self.saves())
                && !rotated.make_room()
            {
                return;
            }
            match (&*self.log.file).write(&self.buffer[self.rest.0..self.rest.1]) {
                Ok(written) => {
                    self.rest.0 += written;
                    if std::mem::replace(&mut self.state, LogState::Takes) != LogState::Takes {
                        warn!("{} is written again", self.log.path.display());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if let Some(rotated) = &self.log.rotated {
                        rotated.shorten(true);
                    }
                    self.note_refusal(&error);
                    if self.state != LogState::GivenUp {
                        return;
                    }
                    self.lost += (self.rest.1 - self.rest.0) as u64;
                    self.rest = (0, 0);
                }
            }
        }
    }

    fn saves(&self) -> bool {
        self.saves.load(Ordering::Relaxed)
    }

    fn note_refusal(&mut self, error: &io::Error) {
        let (now, path, why) = (clock::now(), self.log.path.display(), plain(error));
        let patience = if self.saves() && !self.has_ended { SAVING_PATIENCE } else { DISK_PATIENCE };
        let given_up = match self.state {
            LogState::Takes if has_no_room(error) && now >= self.waits_from => {
                warn!("{path}: {why}; the rank that writes to it waits until there is room");
                self.state = LogState::Full(now);
                return;
            }
            LogState::Takes => true,
            LogState::Full(since) => now.saturating_sub(since) >= patience,
            LogState::GivenUp => return,
        };
        if given_up {
            warn!("{path}: {why}; output of the rank is lost until it can be written");
            self.state = LogState::GivenUp;
            self.waits_from = now.saturating_add(DISK_RESPITE);
        }
    }
}

impl RankOutput {
    /// Opens a pipe, or a terminal like the one that the user sees, and copies what is written to it. Returns also the end for
    /// the rank.
    pub fn open(log: CopiedLog) -> io::Result<(Self, File)> {
        let (end, for_rank) = match &log.console {
            Some(console) => OutputEnd::open_terminal(&**console)?,
            None => OutputEnd::open_pipe()?,
        };
        let (end, over) = (Arc::new(end), Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?));
        let saves = Arc::new(AtomicBool::new(false));
        let copier = LogCopier {
            end: Some(end.clone()),
            log,
            buffer: vec![0; CHUNK],
            rest: (0, 0),
            state: LogState::Takes,
            waits_from: Duration::ZERO,
            lost: 0,
            saves: saves.clone(),
            has_ended: false,
        };
        let copier = Arc::new(Mutex::new(copier));
        let (shared, wakeup, messages) = (copier.clone(), over.clone(), get_default(Dispatch::clone));
        let body = move || {
            // Signals have to interrupt the event loop, not this thread.
            let _blocked = signals::block_all();
            with_default(&messages, || copy_until_over(&end, &wakeup, &shared));
        };
        let thread = std::thread::Builder::new().name("rank-output".into()).spawn(body)?;
        Ok((Self { copier, saves, over, thread: Some(thread) }, for_rank))
    }

    /// Copies what has been written before this call. A process that goes on writing does not prolong it.
    pub fn drain(&self) {
        lock(&self.copier).copy();
    }

    /// From now on takes what the rank writes, above the limit of its log too. A rank that saves its state must not wait for a reader,
    /// and for the disk of its log only for a second.
    pub fn wait_no_more(&self) {
        self.saves.store(true, Ordering::Relaxed);
    }

    /// Gives the rank's terminal the size of the one that the user sees.
    pub fn resize(&self) {
        let copier = lock(&self.copier);
        if let (Some(end), Some(console)) = (&copier.end, &copier.log.console) {
            let _ = end.resize(&**console);
        }
    }

    /// Copies what has been written, and waits for room on the disk until `deadline`. Returns the bytes that are lost. Does not wait
    /// until all processes have closed the other end: later writes of a process that no sweep has found fail.
    pub fn close(self, deadline: Duration) -> u64 {
        let mut written = {
            let mut copier = lock(&self.copier);
            copier.has_ended = true;
            copier.end.as_ref().map_or(0, |end| end.unread())
        };
        loop {
            let mut copier = lock(&self.copier);
            copier.copy();
            // A process may have made its pipe larger than a chunk (F_SETPIPE_SZ).
            if !copier.has_rest() && written > CHUNK {
                written -= CHUNK;
                continue;
            }
            if !copier.has_rest() || clock::now() >= deadline {
                let unread = copier.end.as_ref().filter(|_| copier.has_rest()).map_or(0, |end| end.unread());
                return copier.lost + (copier.rest.1 - copier.rest.0 + unread) as u64;
            }
            drop(copier);
            OutputEnd::pause(&*self.over, RETRY);
        }
    }
}

impl Drop for RankOutput {
    fn drop(&mut self) {
        let _ = self.over.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn copy_until_over(end: &OutputEnd, over: &EventFd, copier: &Mutex<LogCopier>) {
    loop {
        let has_rest = lock(copier).has_rest();
        let goes_on = if has_rest { !OutputEnd::pause(over, RETRY) } else { end.await_output(over) };
        if !goes_on {
            return;
        }
        let mut copier = lock(copier);
        copier.copy();
        if copier.end.is_none() && !copier.has_rest() {
            return;
        }
    }
}

fn lock(copier: &Mutex<LogCopier>) -> MutexGuard<'_, LogCopier> {
    copier.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn a_rank_that_saves_waits_less_for_a_full_disk_and_all_that_is_lost_is_counted() -> io::Result<()> {
        let path = PathBuf::from("/dev/full");
        let file = Arc::new(OpenOptions::new().write(true).open(&path)?);
        let (output, mut rank) = RankOutput::open(CopiedLog { file, path, rotated: None, console: None })?;
        output.wait_no_more();
        let (begun, bytes) = (clock::now(), vec![b'x'; 8 * CHUNK]);
        rank.write_all(&bytes)?;
        assert!(clock::now() - begun < DISK_PATIENCE, "as long as a rank that does not save");
        drop(rank);
        assert_eq!(output.close(clock::now()), bytes.len() as u64);
        Ok(())
    }
}
