//! The zygote, seen from the launcher: a process that imports what all ranks need, once, and that they are forked from.
//! `python/rlaunch/_zygote.py` is its other side. docs/zygote.md says what it is for.

use super::launch::Launch;
use crate::model::Exit;
use crate::model::exit::signal_label;
use crate::plan;
use crate::plan::zygote::{Main, Source};
use crate::spec::zygote::Zygote as Asked;
use crate::supervise::KILL_PATIENCE;
use crate::sys::child::Child;
use crate::sys::lifeline::{Lifeline, Scope};
use crate::sys::poll::Poll;
use crate::sys::spawn::{self, Group, Start, Started};
use crate::sys::{clock, packet, pidfd};
use nix::errno::Errno;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

/// What lies in the working folder is no module of Python's own.
const COMMAND: &str = "import sys; sys.path.sort(key=bool, reverse=True); from rlaunch._zygote import main; main()";

/// By this name it is seen in `ps`.
pub const NAME: &str = "rlaunch-zygote";

/// A fork takes milliseconds. Who does not answer in so long has been stopped by somebody.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long one that has closed its socket may take to end.
const ENDING: Duration = Duration::from_millis(100);

/// Imports that take longer are told of.
const LONG: Duration = Duration::from_secs(1);

/// One for all ranks of this node, in all attempts and rounds.
pub struct Zygote {
    asked: Asked,
    source: Source,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    process: Option<Process>,
    /// Whether people have been told that it takes long.
    told: bool,
}

/// Where it stands.
#[derive(Default)]
enum Phase {
    /// It has not been started, or has been lost, and how; another may be started.
    #[default]
    None,
    Lost(String),
    /// It imports, since then.
    Importing(Duration),
    /// Ranks can be forked from it.
    Ready,
    /// No other would fare better: why, and what else is to be said of it, lines.
    Impossible(String, String),
    /// Every rank imports for itself.
    Unwanted,
}

struct Process {
    child: Child,
    socket: OwnedFd,
    /// It dies when this is dropped, whatever becomes of this process.
    _lifeline: Lifeline,
}

/// What is heard of it.
pub enum News {
    /// It has imported these modules, in so many seconds.
    Ready {
        /// Its process id.
        pid: i32,
        /// How long the imports took.
        seconds: f64,
    },
    /// There will be none.
    Failed,
}

/// Its first packet.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Ready { seconds: f64 },
    Refused { refused: String },
    Failed { failed: String, traceback: String },
}

impl Zygote {
    /// Nothing is started yet.
    pub fn new(asked: Asked, source: Source) -> Self {
        Self { asked, source, state: RefCell::default() }
    }

    /// The modules, for people.
    pub fn names(&self) -> String {
        self.asked.names()
    }

    /// The modules.
    pub fn modules(&self) -> &[String] {
        &self.asked.modules
    }

    /// Its process, while there is one.
    pub fn pid(&self) -> Option<i32> {
        self.state.borrow().process.as_ref().map(|process| process.child.pid())
    }

    /// Whether it cannot be told yet whether ranks can be forked from it.
    pub fn is_importing(&self) -> bool {
        matches!(self.state.borrow().phase, Phase::Importing(_))
    }

    /// Starts it, unless it is there, or there is to be none; and has `poll` tell by these two tokens when there is news.
    pub fn begin(&self, launch: &Launch<'_>, poll: &Poll, tokens: (u64, u64)) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        // Nobody has listened between two rounds.
        if let (Phase::Ready, Some(process)) = (&state.phase, &state.process)
            && let Some(exit) = process.child.try_exit()?
        {
            state.phase = Phase::Lost(lost(process.child.pid(), exit));
        }
        if matches!(state.phase, Phase::None | Phase::Lost(_)) {
            state.process = None;
            state.told = false;
            match self.start_process(launch) {
                Ok(process) => {
                    state.process = Some(process);
                    state.phase = Phase::Importing(clock::now());
                }
                Err(why) => state.phase = impossible(format!("it could not be started: {why}")),
            }
        }
        if let Some(process) = &state.process {
            if matches!(state.phase, Phase::Importing(_)) {
                poll.readable(&process.socket, tokens.0)?;
            }
            poll.readable(process.child.as_fd(), tokens.1)?;
        }
        Ok(())
    }

    /// The same, for the next attempt: only one that has been lost is followed by another.
    pub fn begin_anew(&self, launch: &Launch<'_>, poll: &Poll, tokens: (u64, u64)) -> io::Result<()> {
        // Its end may not have been heard yet.
        self.look(poll)?;
        match self.state.borrow().phase {
            Phase::Lost(_) => {}
            _ => return Ok(()),
        }
        self.begin(launch, poll, tokens)
    }

    fn start_process(&self, launch: &Launch<'_>) -> Result<Process, String> {
        let text = |error: io::Error| super::logs::plain(&error).to_string();
        let (socket, theirs) = packet::pair().map_err(text)?;
        let lifeline = Lifeline::new().map_err(text)?;
        let end = lifeline.open_end().map_err(text)?;
        let Source { python, flags, main } = &self.source;
        let last = ["-c".into(), COMMAND.into(), theirs.as_raw_fd().to_string().into_bytes(), self.setup(main, &end)];
        let argv = std::iter::once(python).chain(flags).map(|word| word.clone().into_vec()).chain(last);
        let base: Vec<_> = launch.base.iter().map(|(n, v)| (n.clone().into_vec(), v.clone().into_vec())).collect();
        let vars = plan::zygote::environment(&base, &launch.plan.ranks);
        let strings = |items: Vec<Vec<u8>>| spawn::c_strings(items).map_err(|e| e.to_string());
        let start = Start {
            program: CString::new(launch.program.as_os_str().as_bytes()).map_err(|e| e.to_string())?,
            argv: strings(argv.collect())?,
            envp: strings(vars.into_iter().map(|(name, value)| [name, value].join(&b'=')).collect())?,
            stdio: [None; 3],
            keep: vec![theirs.as_raw_fd()],
            group: Group::Session,
            // Not the job's: it outlives attempts.
            cgroup: None,
            cwd: None,
            detached: false,
            lifeline: Some((end.as_raw_fd(), Scope::Group)),
            mask: spawn::current_mask(),
            nofile: launch.nofile,
            affinity: None,
            default_sigpipe: true,
        };
        let Started { pid, pidfd } = spawn::start(&start).map_err(|error| error.to_string())?;
        Ok(Process { child: Child::new(pid, pidfd, true), socket, _lifeline: lifeline })
    }

    /// The JSON of its command line. Names of folders are whatever bytes they are, as in any argument.
    fn setup(&self, main: &Main, lifeline: &OwnedFd) -> Vec<u8> {
        let first = match main {
            Main::Module => Vec::new(),
            Main::Script(script) => folder_of(script),
        };
        let known =
            json!({ "modules": self.asked.modules, "path": null, "lifeline": lifeline.as_raw_fd() }).to_string();
        let mut text = known.trim_end_matches('}').to_owned().into_bytes();
        text.extend(b",\"first\":\"");
        for byte in first {
            match byte {
                b'"' | b'\\' => text.extend([b'\\', byte]),
                0..0x20 => text.extend(format!("\\u{byte:04x}").bytes()),
                _ => text.push(byte),
            }
        }
        text.extend(b"\"}");
        text
    }

    /// When people are to be told that it takes long; `None`: they have been, or it does not import.
    pub fn long_at(&self) -> Option<Duration> {
        let state = self.state.borrow();
        match state.phase {
            Phase::Importing(since) if !state.told => Some(since.saturating_add(LONG)),
            _ => None,
        }
    }

    /// Whether people are to be told now; asked again, no more.
    pub fn takes_long(&self) -> bool {
        let takes = self.long_at().is_some_and(|at| clock::now() >= at);
        self.state.borrow_mut().told |= takes;
        takes
    }

    /// Whether they have been told.
    pub fn was_told(&self) -> bool {
        self.state.borrow().told
    }

    /// Looks what has happened, once `poll` tells that something has.
    pub fn look(&self, poll: &Poll) -> io::Result<Option<News>> {
        let mut state = self.state.borrow_mut();
        let State { phase, process: place, .. } = &mut *state;
        let Some(process) = place else { return Ok(None) };
        let mut news = None;
        if matches!(phase, Phase::Importing(_)) {
            match packet::receive(process.socket.as_fd(), Duration::ZERO) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Ok(packet) if !packet.is_empty() => {
                    poll.forget(&process.socket)?;
                    (*phase, news) = self.answered(&packet, process.child.pid());
                    if let Some(News::Failed) = news {
                        // It still writes what was written while it imported.
                        end(&process.child, ENDING);
                    }
                }
                // How it ended is known in a moment.
                _ => drop(end(&process.child, ENDING)),
            }
        }
        let Some(exit) = process.child.try_exit()? else { return Ok(news) };
        let pid = process.child.pid();
        match phase {
            Phase::Importing(_) => {
                let why = format!("importing {} ended the process (pid {pid}) with {exit}", self.names());
                *phase = impossible(why);
                news = Some(News::Failed);
            }
            Phase::Ready => *phase = Phase::Lost(lost(pid, exit)),
            Phase::None | Phase::Lost(_) | Phase::Impossible(..) | Phase::Unwanted => {}
        }
        *place = None;
        Ok(news)
    }

    fn answered(&self, packet: &[u8], pid: i32) -> (Phase, Option<News>) {
        match serde_json::from_slice(packet) {
            Ok(Answer::Ready { seconds }) => (Phase::Ready, Some(News::Ready { pid, seconds })),
            Ok(Answer::Refused { refused }) => (impossible(refused), Some(News::Failed)),
            Ok(Answer::Failed { failed, traceback }) => (Phase::Impossible(failed, traceback), Some(News::Failed)),
            Err(error) => (impossible(format!("it said what nobody understands: {error}")), Some(News::Failed)),
        }
    }

    /// Forks a process that is this one's child. `None`: it is to be started as ever. The error is text for people, and
    /// where `auto` was asked for the last one.
    pub fn start(&self, start: &Start) -> Result<Option<Started>, String> {
        let mut state = self.state.borrow_mut();
        let (why, more) = match (&state.phase, &state.process) {
            (Phase::Unwanted, _) => return Ok(None),
            (Phase::Ready, Some(process)) => match fork(process, start) {
                Ok(Ok(started)) => return Ok(Some(started)),
                Ok(Err(error)) => return Err(error.to_string()),
                Err(error) => {
                    let pid = process.child.pid();
                    let exit = end(&process.child, ENDING);
                    state.process = None;
                    let why = match (error.kind(), exit) {
                        (io::ErrorKind::TimedOut, _) => format!("the zygote (pid {pid}) does not answer"),
                        (_, Some(exit)) => lost(pid, exit),
                        (_, None) => format!("the zygote (pid {pid}): {}", super::logs::plain(&error)),
                    };
                    state.phase = Phase::Lost(why.clone());
                    (why, String::new())
                }
            },
            (Phase::Lost(why), _) => (why.clone(), String::new()),
            (Phase::Impossible(why, more), _) => (why.clone(), more.clone()),
            (Phase::None | Phase::Importing(_) | Phase::Ready, _) => ("there is none yet".into(), String::new()),
        };
        if self.asked.auto {
            state.phase = Phase::Unwanted;
            return Err(why);
        }
        let modules = self.asked.modules.join(",");
        let way_out = format!("with --zygote={modules},auto every rank imports for itself then");
        Err([&format!("{why}; {way_out}"), more.trim_end()].join("\n").trim_end().to_owned())
    }

    /// Whether every rank imports for itself from now on.
    pub fn is_given_up(&self) -> bool {
        matches!(self.state.borrow().phase, Phase::Unwanted)
    }

    /// Stops it, or lets it go on, while it imports; later it does nothing of itself.
    pub fn freeze(&self, signal: i32) {
        if let Some(process) = &self.state.borrow().process {
            // An error means that it has just ended, which is seen next.
            let _ = process.child.signal(signal);
        }
    }

    /// Ends it, for good. Whether there was one.
    pub fn end(&self) -> bool {
        let process = self.state.take().process;
        process.is_some_and(|process| {
            end(&process.child, Duration::ZERO);
            true
        })
    }
}

fn impossible(why: String) -> Phase {
    Phase::Impossible(why, String::new())
}

/// Kills it, unless it ends of itself within `patience`; how it ended.
fn end(child: &Child, patience: Duration) -> Option<Exit> {
    await_end(child, patience).or_else(|| {
        let _ = child.signal(libc::SIGKILL);
        await_end(child, KILL_PATIENCE)
    })
}

fn await_end(child: &Child, patience: Duration) -> Option<Exit> {
    let until = clock::now().saturating_add(patience);
    loop {
        let left = until.saturating_sub(clock::now());
        // A wait ends early when a handler of ours has run.
        match child.wait(Some(left)) {
            Ok(Some(exit)) => return Some(exit),
            Ok(None) if !left.is_zero() => {}
            _ => return None,
        }
    }
}

fn lost(pid: i32, exit: Exit) -> String {
    match exit {
        Exit::Signal(signal) => format!("the zygote (pid {pid}) was killed by {}", signal_label(signal)),
        _ => format!("the zygote (pid {pid}) has ended with {exit}"),
    }
}

/// What Python puts first into `sys.path` for a script: its folder, once all links are followed; or itself, where it is
/// a folder or an archive.
fn folder_of(script: &OsStr) -> Vec<u8> {
    let path = Path::new(script);
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if real.is_dir() {
        return script.as_bytes().to_vec();
    }
    real.parent().map(|folder| folder.as_os_str().as_bytes().to_vec()).unwrap_or_default()
}

/// Asks for a process and waits until it is there. The outer error: nobody answers.
fn fork(process: &Process, start: &Start) -> io::Result<Result<Started, Refused>> {
    let (text, mut descriptors) = request(start);
    let file = packet::file_of(&text)?;
    descriptors.insert(0, file.as_raw_fd());
    // Stopped, it is of no use to anybody. An error means that it has just ended, and so says the next step.
    let _ = process.child.signal(libc::SIGCONT);
    packet::send(process.socket.as_fd(), b"F", &descriptors)?;
    let answer = packet::receive(process.socket.as_fd(), PATIENCE)?;
    let answer = String::from_utf8_lossy(&answer);
    let (number, step) = answer.split_once(' ').unwrap_or((&answer, ""));
    match number.parse::<i32>() {
        // Ours, and not collected yet: the number is its own.
        Ok(pid) if pid > 0 => Ok(Ok(Started { pid, pidfd: pidfd::open(pid)? })),
        Ok(errno) => Ok(Err(Refused { step: step.to_owned(), errno: -errno })),
        Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Why it could not fork one.
struct Refused {
    step: String,
    errno: i32,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let errno = Errno::from_raw(self.errno);
        match self.step.as_str() {
            "fork" => write!(f, "fork: {} ({errno:?})", errno.desc()),
            // It says in words what the errno means.
            step => write!(f, "{step} ({errno:?})"),
        }
    }
}

/// A request and the descriptors behind it, in the protocol's words (docs/architecture.md). Bytes are the characters of
/// Latin-1, whatever they mean.
fn request(start: &Start) -> (Vec<u8>, Vec<RawFd>) {
    let latin = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
    let texts = |list: &[CString]| list.iter().map(|text| latin(text.as_bytes())).collect::<Vec<_>>();
    let [stdin, stdout, stderr] = start.stdio;
    let lifeline = start.lifeline.map(|(fd, _)| fd);
    let named =
        [("stdin", stdin), ("stdout", stdout), ("stderr", stderr), ("lifeline", lifeline), ("cgroup", start.cgroup)];
    let (mut fds, mut descriptors) = (Map::new(), Vec::new());
    for (name, fd) in named.into_iter().filter_map(|(name, fd)| Some((name, fd?))) {
        descriptors.push(fd);
        fds.insert(name.to_owned(), Value::from(descriptors.len()));
    }
    let scope = match start.lifeline {
        Some((_, Scope::Process)) => "process",
        _ => "group",
    };
    let request = json!({
        "argv": texts(&start.argv),
        "env": texts(&start.envp),
        "cwd": start.cwd.as_ref().map(|cwd| latin(cwd.as_bytes())),
        "fds": fds,
        "session": start.group == Group::Session,
        "scope": scope,
        "nofile": start.nofile,
        "cpus": start.affinity.as_ref().map(|mask| mask.cpus().iter().collect::<Vec<u16>>()),
        "default_sigpipe": start.default_sigpipe,
        "orphan": true,
        "parent": std::process::id(),
        "payload": null,
    });
    (request.to_string().into_bytes(), descriptors)
}
