//! The terminal of a rank whose output a terminal shows: a pseudo-terminal whose output a thread copies to the rank's log,
//! unchanged. The console follows the log as it does without (`console.rs`), so it never makes the rank wait.

use crate::run::output::log_files::plain;
use crate::sys::io::console::Console;
use crate::sys::io::pty::{self, Pty, PtyRead};
use crate::sys::signals;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tracing::dispatcher::{get_default, with_default};
use tracing::{Dispatch, warn};

/// Bytes that are collected for one write to the log. The kernel holds less than this in a pseudo-terminal.
const CHUNK: usize = 64 * 1024;

/// The terminal of a rank in one attempt.
pub struct RankTerminal {
    copier: Arc<Mutex<LogCopier>>,
    over: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// Copies to the log.
struct LogCopier {
    /// `None` once no process has the terminal open.
    pty: Option<Arc<Pty>>,
    /// The terminal that the user sees.
    console: Arc<Console>,
    log: Arc<File>,
    path: PathBuf,
    /// Whether the log could not be written.
    failed: bool,
    buffer: Vec<u8>,
}

impl LogCopier {
    /// Copies what has been written, at most `CHUNK` bytes.
    fn copy(&mut self) {
        let Some(pty) = &self.pty else { return };
        let (mut filled, mut state) = (0, PtyRead::Nothing);
        while filled < CHUNK {
            state = pty.read(&mut self.buffer[filled..]);
            let PtyRead::Bytes(read) = state else { break };
            filled += read;
        }
        // A launcher in the background receives no SIGWINCH.
        let _ = pty.resize(&*self.console);
        let written = (&*self.log).write_all(&self.buffer[..filled]);
        if let Some(error) = written.err().filter(|_| !std::mem::replace(&mut self.failed, true)) {
            warn!("{}: {}; output of the rank is lost", self.path.display(), plain(&error));
        }
        if state == PtyRead::Closed {
            self.pty = None;
        }
    }
}

impl RankTerminal {
    /// Opens a terminal like `console` and copies what is written to it to `log`. Returns also the end for the rank.
    pub fn open(console: Arc<Console>, log: Arc<File>, path: PathBuf) -> io::Result<(Self, File)> {
        let (pty, end) = pty::open(&*console)?;
        let (pty, over) = (Arc::new(pty), Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?));
        let copier = LogCopier { pty: Some(pty.clone()), console, log, path, failed: false, buffer: vec![0; CHUNK] };
        let copier = Arc::new(Mutex::new(copier));
        let (shared, wakeup, messages) = (copier.clone(), over.clone(), get_default(Dispatch::clone));
        let body = move || {
            // Signals have to interrupt the event loop, not this thread.
            let _blocked = signals::block_all();
            with_default(&messages, || copy_until_over(&pty, &wakeup, &shared));
        };
        let thread = std::thread::Builder::new().name("terminal".into()).spawn(body)?;
        Ok((Self { copier, over, thread: Some(thread) }, end))
    }

    /// Copies what has been written before this call. A process that goes on writing does not prolong it.
    pub fn drain(&self) {
        lock(&self.copier).copy();
    }

    /// Gives it the size of the terminal that the user sees.
    pub fn resize(&self) {
        let copier = lock(&self.copier);
        if let Some(pty) = &copier.pty {
            let _ = pty.resize(&*copier.console);
        }
    }
}

impl Drop for RankTerminal {
    /// Does not wait until all processes have closed the terminal: later writes of a process that no sweep has found fail.
    fn drop(&mut self) {
        self.drain();
        let _ = self.over.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn copy_until_over(pty: &Pty, over: &EventFd, copier: &Mutex<LogCopier>) {
    while pty.await_output(over) {
        let mut copier = lock(copier);
        copier.copy();
        if copier.pty.is_none() {
            return;
        }
    }
}

fn lock(copier: &Mutex<LogCopier>) -> MutexGuard<'_, LogCopier> {
    copier.lock().unwrap_or_else(PoisonError::into_inner)
}
