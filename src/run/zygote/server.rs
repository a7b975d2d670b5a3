//! The preload server's process: its start, its imports, its forks, its end.

use super::error::{ForkedStartError, PreloadFailure, PreloadStartError};
use super::fork_request;
use super::server_end::{ENDING, await_end, end_soon, exit_of, has_ended};
use crate::plan::RankPlan;
use crate::plan::preload::{self, PythonMain, RankCommand};
use crate::run::engine::AttemptState;
use crate::spec::preload::PreloadSpec;
use crate::supervise::KILL_PATIENCE;
use crate::sys::clock;
use crate::sys::io::packet;
use crate::sys::io::poll::Poller;
use crate::sys::process::child::Child;
use crate::sys::process::lifeline::{KillScope, Lifeline};
use crate::sys::process::spawn;
use crate::sys::process::spawn::{SpawnCommand, SpawnDescriptors, SpawnedProcess};
use serde::Deserialize;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// `-c` puts the working folder first into `sys.path`; a file there must not hide a module of the standard library.
const COMMAND: &str =
    "import sys; sys.path.sort(key=bool, reverse=True); from rlaunch._preload.server import main; main()";

/// The process name of the server, as `ps` shows it.
pub const NAME: &str = "rlaunch-zygote";

/// A fork takes milliseconds. A server that needs longer than this has been stopped, or hangs in a hook.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a fork may still take once the job stops.
const STOPPED_FORK_PATIENCE: Duration = Duration::from_secs(1);

/// Imports that take longer than this are announced.
const SLOW: Duration = Duration::from_secs(1);

/// What the preload server is started with.
pub struct PreloadContext<'a> {
    /// The Python interpreter.
    pub program: &'a Path,
    /// The environment of the launcher.
    pub base: &'a [(OsString, OsString)],
    /// The ranks to be forked.
    pub ranks: &'a [RankPlan],
    /// The soft limit of open files that ranks get back, if the launcher raised its own.
    pub nofile: Option<u64>,
}

/// The preload server of this node, for all ranks in all attempts and rounds.
pub struct Zygote {
    spec: PreloadSpec,
    command: RankCommand,
    state: RefCell<ZygoteState>,
}

#[derive(Default)]
struct ZygoteState {
    phase: ZygotePhase,
    process: Option<ZygoteProcess>,
    /// Whether the slow import has been announced.
    announced: bool,
}

#[derive(Default)]
enum ZygotePhase {
    /// It has not been started.
    #[default]
    None,
    /// It was lost after its imports; another may be started.
    Lost(Arc<PreloadFailure>),
    /// It imports, since this time.
    Importing(Duration),
    /// Ranks can be forked from it.
    Ready,
    /// It has been asked to fork a rank.
    Forking(PendingFork),
    /// It failed, and another one would fail in the same way.
    Failed(Arc<PreloadFailure>),
    /// Every rank imports for itself.
    Abandoned,
}

/// A fork request without a reply.
struct PendingFork {
    /// When the server is given up.
    until: Duration,
    /// Whether that time is short because the job stops.
    is_shortened: bool,
    /// Why no reply can come. The server may be ending: then its exit status says more.
    broken: Option<io::Error>,
}

impl PendingFork {
    fn shorten(&mut self, patience: Duration) {
        self.until = self.until.min(clock::now() + patience);
    }
}

struct ZygoteProcess {
    child: Child,
    socket: OwnedFd,
    /// Kills the process when it is dropped, also when this process dies.
    _lifeline: Lifeline,
}

/// How far the fork of a rank is.
pub enum ForkProgress {
    /// The rank runs, as a child of this process.
    Forked(SpawnedProcess),
    /// The server has not replied yet.
    Pending,
    /// The rank has to be started without the preload server.
    WithoutServer,
}

/// A change in the state of the preload server.
pub enum ZygoteEvent {
    /// It has imported its modules.
    Ready {
        /// Its process id.
        pid: i32,
        /// Duration of the imports in seconds.
        seconds: f64,
    },
    /// It failed, and no other one is started.
    Failed,
}

/// The server's first packet.
#[derive(Deserialize)]
#[serde(untagged)]
enum ZygoteReply {
    Ready { seconds: f64 },
    Refused { refused: String },
    Failed { failed: String, traceback: String },
}

impl Zygote {
    /// A server that has not been started. `command`: the command line of the ranks.
    pub fn new(spec: PreloadSpec, command: RankCommand) -> Self {
        Self { spec, command, state: RefCell::default() }
    }

    /// The modules as text.
    pub fn names(&self) -> String {
        self.spec.names()
    }

    /// The modules.
    pub fn modules(&self) -> &[String] {
        &self.spec.modules
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.state.borrow().process.as_ref().map(|process| process.child.pid())
    }

    /// Whether it imports, so that it is not known yet whether ranks can be forked from it.
    pub fn is_importing(&self) -> bool {
        matches!(self.state.borrow().phase, ZygotePhase::Importing(_))
    }

    /// Starts it unless it runs or has failed for good, and registers it with `poll` under these two tokens.
    pub fn begin(&self, context: &PreloadContext<'_>, poll: &Poller, tokens: (u64, u64)) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        // Its end is not noticed between two rounds.
        if let (ZygotePhase::Ready, Some(process)) = (&state.phase, &state.process)
            && let Some(exit) = exit_of(&process.child)?
        {
            state.phase = lost(PreloadFailure::Ended { pid: process.child.pid(), exit });
        }
        if matches!(state.phase, ZygotePhase::None | ZygotePhase::Lost(_)) {
            state.process = None;
            state.announced = false;
            match self.start_process(context) {
                Ok(process) => {
                    state.process = Some(process);
                    state.phase = ZygotePhase::Importing(clock::now());
                }
                Err(error) => state.phase = failed(error.into()),
            }
        }
        if let Some(process) = &state.process {
            if matches!(state.phase, ZygotePhase::Importing(_)) {
                poll.readable(&process.socket, tokens.0)?;
            }
            poll.readable(process.child.as_fd(), tokens.1)?;
        }
        Ok(())
    }

    /// Starts another one for the next attempt if it has been lost.
    pub fn restart_if_lost(&self, context: &PreloadContext<'_>, poll: &Poller, tokens: (u64, u64)) -> io::Result<()> {
        // Its end may not have been noticed yet.
        self.check(poll)?;
        match self.state.borrow().phase {
            ZygotePhase::Lost(_) => {}
            _ => return Ok(()),
        }
        self.begin(context, poll, tokens)
    }

    fn start_process(&self, context: &PreloadContext<'_>) -> Result<ZygoteProcess, PreloadStartError> {
        let (socket, theirs) = packet::pair()?;
        let (lifeline, end) = Lifeline::open()?;
        let RankCommand { python, flags, main } = &self.command;
        let last = ["-c".into(), COMMAND.into()].into_iter().chain(self.setup(main, &theirs, &end));
        let argv = std::iter::once(python).chain(flags).map(|word| word.clone().into_vec()).chain(last);
        let base: Vec<_> = context.base.iter().map(|(n, v)| (n.clone().into_vec(), v.clone().into_vec())).collect();
        let vars = preload::common_environment(&base, context.ranks);
        let vars = vars.into_iter().map(|(name, value)| [name, value].join(&b'='));
        let command = SpawnCommand {
            nofile: context.nofile,
            ..SpawnCommand::new(context.program.as_os_str().as_bytes(), argv.collect(), vars.collect())?
        };
        let lifeline_end = Some((end.as_fd(), KillScope::Group));
        // Not in the job's cgroup, whose members are killed between attempts.
        let keep = vec![(theirs.as_fd(), theirs.as_raw_fd())];
        let descriptors = SpawnDescriptors { keep, lifeline: lifeline_end, ..SpawnDescriptors::default() };
        let SpawnedProcess { pid, pidfd } = spawn::start(&command, &descriptors)?;
        Ok(ZygoteProcess { child: Child::new(pid, pidfd, true), socket, _lifeline: lifeline })
    }

    /// The arguments of its command line, `NAME=VALUE`.
    fn setup(&self, main: &PythonMain, socket: &OwnedFd, lifeline: &OwnedFd) -> Vec<Vec<u8>> {
        let first = match main {
            PythonMain::Module => Vec::new(),
            PythonMain::Script(script) => first_of_sys_path(script),
        };
        let fds = [("socket", socket), ("lifeline", lifeline)].map(|(name, fd)| format!("{name}={}", fd.as_raw_fd()));
        let modules = self.spec.modules.iter().map(|module| format!("module={module}"));
        let first = [b"first=", &first[..]].concat();
        fds.into_iter().chain(modules).map(String::into_bytes).chain([first]).collect()
    }

    /// When the import counts as slow; `None`: it has been announced, or nothing is imported.
    pub fn slow_at(&self) -> Option<Duration> {
        let state = self.state.borrow();
        match state.phase {
            ZygotePhase::Importing(since) if !state.announced => Some(since.saturating_add(SLOW)),
            _ => None,
        }
    }

    /// Whether the import has become slow and is to be announced. True once.
    pub fn has_become_slow(&self) -> bool {
        let is_slow = self.slow_at().is_some_and(|at| clock::now() >= at);
        self.state.borrow_mut().announced |= is_slow;
        is_slow
    }

    /// Whether the slow import has been announced.
    pub fn was_announced(&self) -> bool {
        self.state.borrow().announced
    }

    /// Reads its reply and notices its end, once `poll` reports one of its tokens.
    pub fn check(&self, poll: &Poller) -> io::Result<Option<ZygoteEvent>> {
        let mut state = self.state.borrow_mut();
        let ZygoteState { phase, process: place, .. } = &mut *state;
        let Some(process) = place else { return Ok(None) };
        // `receive_fork` notices its end.
        if matches!(phase, ZygotePhase::Forking(_)) {
            return Ok(None);
        }
        let mut event = None;
        if matches!(phase, ZygotePhase::Importing(_)) {
            match packet::receive(process.socket.as_fd(), Duration::ZERO) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Ok(packet) if !packet.is_empty() => {
                    poll.forget(&process.socket)?;
                    (*phase, event) = reply(&packet, process.child.pid());
                    if let Some(ZygoteEvent::Failed) = event {
                        // It still flushes what its imports printed.
                        end_soon(&process.child);
                    }
                }
                // The connection is closed: its exit status follows.
                _ => {
                    // An error means that nothing waits for it.
                    let _ = poll.forget(&process.socket);
                    end_soon(&process.child);
                }
            }
        }
        let Some(exit) = exit_of(&process.child)? else { return Ok(event) };
        let pid = process.child.pid();
        match phase {
            ZygotePhase::Importing(_) => {
                *phase = failed(PreloadFailure::EndedByImport { modules: self.names(), pid, exit });
                event = Some(ZygoteEvent::Failed);
            }
            ZygotePhase::Ready => *phase = lost(PreloadFailure::Ended { pid, exit }),
            ZygotePhase::None
            | ZygotePhase::Forking(_)
            | ZygotePhase::Lost(_)
            | ZygotePhase::Failed(_)
            | ZygotePhase::Abandoned => {}
        }
        *place = None;
        Ok(event)
    }

    /// Asks it to fork a rank. From then on `poll` reports `token` when `receive_fork` has something to read.
    pub fn request_fork(
        &self,
        (command, descriptors): (&SpawnCommand, &SpawnDescriptors<'_>),
        poll: &Poller,
        token: u64,
    ) -> Result<ForkProgress, ForkedStartError> {
        let mut state = self.state.borrow_mut();
        let ZygoteState { phase, process, .. } = &mut *state;
        let failure = match (&*phase, &*process) {
            (ZygotePhase::Abandoned, _) => return Ok(ForkProgress::WithoutServer),
            (ZygotePhase::Ready, Some(server)) => {
                let sent = fork_request::send(&server.child, &server.socket, command, descriptors);
                let broken = sent.and_then(|()| poll.readable(&server.socket, token)).err();
                let until = clock::now() + if broken.is_some() { ENDING } else { PATIENCE };
                *phase = ZygotePhase::Forking(PendingFork { until, is_shortened: false, broken });
                return Ok(ForkProgress::Pending);
            }
            (ZygotePhase::Lost(failure) | ZygotePhase::Failed(failure), _) => failure.clone(),
            _ => Arc::new(PreloadFailure::NotReady),
        };
        Err(self.refuse_fork(phase, failure, AttemptState::Running))
    }

    /// The reply to `request_fork`, if it is there. While the attempt stops, the server has little time left.
    pub fn receive_fork(&self, poll: &Poller, attempt: AttemptState) -> Result<ForkProgress, ForkedStartError> {
        let mut state = self.state.borrow_mut();
        let ZygoteState { phase, process, .. } = &mut *state;
        let (ZygotePhase::Forking(fork), Some(server)) = (&mut *phase, &*process) else {
            return Err(self.refuse_fork(phase, Arc::new(PreloadFailure::NotReady), attempt));
        };
        match attempt {
            AttemptState::Stopping if !std::mem::replace(&mut fork.is_shortened, true) => {
                fork.shorten(STOPPED_FORK_PATIENCE);
            }
            AttemptState::Killing => fork.shorten(Duration::ZERO),
            AttemptState::Running | AttemptState::Stopping => {}
        }
        // Asked before the read: a server that has ended sends nothing more. Processes that it forked may hold the socket open.
        let has_ended = has_ended(&server.child);
        if fork.broken.is_none() {
            match fork_request::receive(&server.socket) {
                Ok(forked) => {
                    // An error means that nothing waits for it.
                    let _ = poll.forget(&server.socket);
                    *phase = ZygotePhase::Ready;
                    return Ok(ForkProgress::Forked(forked?));
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => {
                    let _ = poll.forget(&server.socket);
                    fork.broken = Some(error);
                    fork.shorten(ENDING);
                }
            }
        }
        if !has_ended && clock::now() < fork.until {
            return Ok(ForkProgress::Pending);
        }
        let _ = poll.forget(&server.socket);
        let failure = give_up_server(fork.broken.take(), process);
        *phase = ZygotePhase::Lost(failure.clone());
        Err(self.refuse_fork(phase, failure, attempt))
    }

    /// When the reply to `request_fork` is due; `None`: none is awaited.
    pub fn reply_due(&self) -> Option<Duration> {
        match self.state.borrow().phase {
            ZygotePhase::Forking(PendingFork { until, .. }) => Some(until),
            _ => None,
        }
    }

    /// Why a rank is not forked. With `auto`, all ranks import for themselves from now on, unless the job stops.
    fn refuse_fork(
        &self,
        phase: &mut ZygotePhase,
        failure: Arc<PreloadFailure>,
        attempt: AttemptState,
    ) -> ForkedStartError {
        if self.spec.auto && attempt == AttemptState::Running {
            *phase = ZygotePhase::Abandoned;
            return ForkedStartError::FallBack(failure);
        }
        ForkedStartError::Unavailable { failure, modules: self.spec.modules.join(",") }
    }

    /// Stops it or continues it while it imports; later it only acts on requests.
    pub fn signal(&self, signal: i32) {
        if let Some(process) = &self.state.borrow().process {
            // An error means that it has just ended, which is noticed next.
            let _ = process.child.signal(signal);
        }
    }

    /// Ends it for good. Whether there was one.
    pub fn end(&self) -> bool {
        let process = self.state.take().process;
        process.is_some_and(|process| {
            let _ = process.child.signal(libc::SIGKILL);
            await_end(&process.child, KILL_PATIENCE);
            let _ = process.child.try_exit();
            true
        })
    }
}

fn failed(failure: PreloadFailure) -> ZygotePhase {
    ZygotePhase::Failed(Arc::new(failure))
}

fn lost(failure: PreloadFailure) -> ZygotePhase {
    ZygotePhase::Lost(Arc::new(failure))
}

/// Kills a server from which no rank can be forked any more, without a wait: it may hang in the kernel. `check` reaps it once it
/// has ended. `broken`: the error of the connection; `None`: the server does not answer.
fn give_up_server(broken: Option<io::Error>, process: &mut Option<ZygoteProcess>) -> Arc<PreloadFailure> {
    let Some(server) = process else { return Arc::new(PreloadFailure::NotReady) };
    let pid = server.child.pid();
    if let Ok(Some(exit)) = exit_of(&server.child) {
        *process = None;
        return Arc::new(PreloadFailure::Ended { pid, exit });
    }
    let _ = server.child.signal(libc::SIGKILL);
    Arc::new(match broken {
        Some(source) => PreloadFailure::Connection { pid, source },
        None => PreloadFailure::NoAnswer { pid },
    })
}

fn reply(packet: &[u8], pid: i32) -> (ZygotePhase, Option<ZygoteEvent>) {
    let failure = match serde_json::from_slice(packet) {
        Ok(ZygoteReply::Ready { seconds }) => {
            return (ZygotePhase::Ready, Some(ZygoteEvent::Ready { pid, seconds }));
        }
        Ok(ZygoteReply::Refused { refused }) => PreloadFailure::UnsafeToFork(refused),
        Ok(ZygoteReply::Failed { failed: why, traceback }) => PreloadFailure::ImportRaised { why, traceback },
        Err(error) => PreloadFailure::InvalidReply(error),
    };
    (failed(failure), Some(ZygoteEvent::Failed))
}

/// The entry that Python puts first into `sys.path` for a script: the folder of its real path, or the script itself where
/// that is a folder or an archive.
fn first_of_sys_path(script: &OsStr) -> Vec<u8> {
    let path = Path::new(script);
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if real.is_dir() {
        return script.as_bytes().to_vec();
    }
    real.parent().map(|folder| folder.as_os_str().as_bytes().to_vec()).unwrap_or_default()
}
