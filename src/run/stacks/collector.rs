//! Starts the process that reads stacks, and receives its answer.

use crate::run::stacks::look::{StackAnswer, StackRequest};
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use crate::sys::io::{fd, packet};
use crate::sys::process::child::Child;
use crate::sys::process::lifeline::{KillScope, Lifeline};
use crate::sys::process::pidfd;
use crate::sys::process::spawn::{self, SpawnCommand, SpawnDescriptors};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use thiserror::Error;

/// `-c` puts the working folder first into `sys.path`; a file there must not hide a module of the standard library.
const COMMAND: &str =
    "import sys; sys.path.sort(key=bool, reverse=True); from rlaunch.control._read_stacks import main; main()";

/// How long the reader may take, beside the time for which stacks are watched.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take beside that for each rank.
const RANK_PATIENCE: Duration = Duration::from_millis(200);
/// How long the end of a killed reader is waited for, on the event loop.
const END: Duration = Duration::from_millis(100);
/// How often a pause looks whether the start of a process is over.
const PAUSE_INTERVAL: Duration = Duration::from_millis(5);
/// The longest answer.
const LONGEST: usize = 64 << 20;

/// Why there are no stacks.
#[derive(Debug, Error)]
pub enum StacksUnavailable {
    /// The launcher does not know its interpreter.
    #[error("the launcher's Python interpreter is not known")]
    NoInterpreter,
    /// The reader process could not be started.
    #[error("the process that reads stacks cannot be started: {0}")]
    NotStarted(#[from] io::Error),
    /// It took too long.
    #[error("the process that reads stacks has not answered in {0:?}")]
    Late(Duration),
    /// An earlier one has not ended in time: it cannot be started, or not be ended.
    #[error("the process that reads stacks cannot be started in time: does the disk of the Python interpreter answer?")]
    Busy,
    /// It ended without an answer.
    #[error("the process that reads stacks has failed; is the rlaunch package complete?")]
    Failed,
}

/// Starts reader processes for one launch. Clones share the list of those that run.
#[derive(Clone, Debug, Default)]
pub struct StackReader {
    python: PathBuf,
    environment: Arc<[(OsString, OsString)]>,
    running: Arc<Mutex<BTreeSet<i32>>>,
}

impl StackReader {
    /// `python`: the absolute path of an interpreter that has this package; `environment`: its variables.
    pub fn new(python: PathBuf, environment: &[(OsString, OsString)]) -> Self {
        Self { python, environment: environment.into(), running: Arc::default() }
    }

    /// The reader processes that run, and none is started until the result is dropped: during a sweep, which would take it for a process
    /// that a rank has left behind. `None`: one is being started, and this has not succeeded within `patience`: its program is on a disk
    /// that hangs. The sweep may end it.
    pub fn pause(&self, patience: Duration) -> Option<MutexGuard<'_, BTreeSet<i32>>> {
        let until = clock::now() + patience;
        loop {
            match self.running.try_lock() {
                Ok(running) => return Some(running),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if clock::now() >= until => return None,
                Err(TryLockError::WouldBlock) => drop(pidfd::await_any(&[], PAUSE_INTERVAL)),
            }
        }
    }

    /// How long a reader process may take for this request.
    pub fn patience(&self, request: &StackRequest) -> Duration {
        let watched = request.hang.map_or(0.0, |hang| hang.watched_seconds);
        let ranks = u32::try_from(request.ranks.len()).unwrap_or(u32::MAX);
        PATIENCE + Duration::from_secs_f64(watched) + RANK_PATIENCE.saturating_mul(ranks)
    }

    /// Starts a reader process. Waits where the interpreter is on a disk that hangs.
    pub fn start(&self, request: &StackRequest) -> Result<StackCollector, StacksUnavailable> {
        if !self.python.is_absolute() {
            return Err(StacksUnavailable::NoInterpreter);
        }
        let patience = self.patience(request);
        let question = packet::file_of(&serde_json::to_vec(request).map_err(io::Error::from)?)?;
        let (answer, end) = fd::pipe(OFlag::O_NONBLOCK)?;
        // The end that the process writes to may block.
        nix::fcntl::fcntl(&end, nix::fcntl::FcntlArg::F_SETFL(OFlag::empty())).map_err(io::Error::from)?;
        let nothing = OpenOptions::new().write(true).open("/dev/null")?;
        let (lifeline, tied) = Lifeline::open()?;
        let words = [self.python.as_os_str().as_bytes(), b"-c", COMMAND.as_bytes()];
        let variables = self.environment.iter().map(|(name, value)| [name.as_bytes(), value.as_bytes()].join(&b'='));
        let command = SpawnCommand::new(words[0], words.map(<[u8]>::to_vec).into(), variables.collect())
            .map_err(io::Error::from)?;
        let descriptors = SpawnDescriptors {
            stdio: [Some(question.as_fd()), Some(end.as_fd()), Some(nothing.as_fd())],
            lifeline: Some((tied.as_fd(), KillScope::Group)),
            ..SpawnDescriptors::default()
        };
        // Nothing may reap it or end it between its start and its entry in the list.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let started = spawn::start(&command, &descriptors).map_err(io::Error::other)?;
        running.insert(started.pid);
        Ok(StackCollector {
            child: Child::new(started.pid, started.pidfd, true),
            answer,
            received: Vec::new(),
            patience,
            until: clock::now() + patience,
            running: Arc::clone(&self.running),
            _lifeline: lifeline,
        })
    }
}

/// A reader process that runs.
#[derive(Debug)]
pub struct StackCollector {
    child: Child,
    answer: OwnedFd,
    received: Vec<u8>,
    patience: Duration,
    until: Duration,
    running: Arc<Mutex<BTreeSet<i32>>>,
    /// Kills the process when this one dies.
    _lifeline: Lifeline,
}

impl AsFd for StackCollector {
    /// Readable when there is something to receive.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }
}

impl StackCollector {
    /// When it is given up (`clock::now`).
    pub fn until(&self) -> Duration {
        self.until
    }

    /// Receives what has arrived; the answer once it is complete.
    pub fn receive(&mut self) -> Result<Option<StackAnswer>, StacksUnavailable> {
        let mut bytes = [0; 64 * 1024];
        loop {
            match nix::unistd::read(&self.answer, &mut bytes) {
                Ok(0) => {
                    let answer = serde_json::from_slice(&self.received).map_err(|_| StacksUnavailable::Failed)?;
                    return Ok(Some(answer));
                }
                Ok(count) => self.received.extend(&bytes[..count]),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if clock::now() >= self.until => return Err(StacksUnavailable::Late(self.patience)),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(error) => return Err(io::Error::from(error).into()),
            }
            if self.received.len() > LONGEST {
                return Err(StacksUnavailable::Failed);
            }
        }
    }

    /// Waits for the answer.
    pub fn wait(mut self) -> Result<StackAnswer, StacksUnavailable> {
        let poll = Poller::new()?;
        poll.readable(&self.answer, 0)?;
        loop {
            if let Some(answer) = self.receive()? {
                return Ok(answer);
            }
            poll.wait(Some(self.until.saturating_sub(clock::now())))?;
        }
    }
}

impl Drop for StackCollector {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.signal(libc::SIGKILL);
        // The kernel needs a millisecond. A process that it does not release is left to the reaping of orphans.
        let _ = self.child.wait(Some(END));
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.child.pid());
    }
}
