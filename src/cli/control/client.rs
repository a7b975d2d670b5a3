//! A connection to the control socket of a launcher.

use super::error::ControlError;
use crate::net::deadline::{self, TimeLeft};
use crate::net::unix;
use crate::report::job_status::JobStatus;
use crate::run::control::message::{ControlAnswer, ControlRequest, NodeEntry, RequestLine, UNKNOWN_REQUEST};
use crate::run::control::node_answer::{NodeAnswer, NodeQuestion, SAMPLE};
use crate::run::control::rank_facts::RankFacts;
use crate::run::control::runtime_folder::FoundSocket;
use crate::run::gpu_reader::GpuReader;
use crate::run::output::log_files;
use crate::sys::clock;
use crate::sys::process::pidfd;
use crate::sys::process::procfs::stat::ProcStat;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a launcher may take for an answer. It reads stacks within 30 s.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long a launcher may have no room for a connection: its queue is full, as when it has been stopped for long.
const FULL: Duration = Duration::from_millis(500);
/// How long to wait for the end of a launcher that has not answered, before it is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// How often `status --watch`, `logs --follow` and `top` ask again.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);

/// A launcher, by its socket. Each request has a connection of its own.
#[derive(Clone, Debug)]
pub(super) struct Client {
    socket: FoundSocket,
    /// The process that listens, once it has been connected to and if it is visible.
    server: Option<Arc<OwnedFd>>,
    gpus: GpuReader,
}

/// The answers of a job's nodes, or of one alone.
#[derive(Debug)]
pub(super) struct Answers {
    /// The state of the node whose launcher was asked.
    pub status: JobStatus,
    pub nodes: Vec<NodeEntry>,
    /// Why that node alone was asked, if the job has others.
    pub only_this_node: Option<String>,
}

impl Client {
    pub fn new(socket: &FoundSocket) -> Self {
        Self { socket: socket.clone(), server: None, gpus: GpuReader::default() }
    }

    /// Sends a request and returns the answer.
    pub fn ask(&mut self, request: ControlRequest) -> Result<ControlAnswer, ControlError> {
        self.ask_within(request, PATIENCE)
    }

    /// The same with this patience.
    pub fn ask_within(&mut self, request: ControlRequest, patience: Duration) -> Result<ControlAnswer, ControlError> {
        match serde_json::from_slice(&self.exchange(&request, patience)?) {
            Ok(ControlAnswer::Error { message }) if message.starts_with(UNKNOWN_REQUEST) => {
                Err(ControlError::EarlierVersion)
            }
            Ok(ControlAnswer::Error { message }) => Err(ControlError::Refused(message)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(ControlError::NotUnderstood),
        }
    }

    /// The state of the launch.
    pub fn status(&mut self) -> Result<JobStatus, ControlError> {
        match self.ask(ControlRequest::Status)? {
            ControlAnswer::Status(status) => Ok(status),
            _ => Err(ControlError::NotUnderstood),
        }
    }

    /// The answers of the job's nodes to a question. `this_node`: of this one alone.
    pub fn ask_nodes(&mut self, question: NodeQuestion, this_node: bool) -> Result<Answers, ControlError> {
        let status = self.status()?;
        if !this_node && status.nnodes > 1 {
            return match self.ask(ControlRequest::Nodes { question })? {
                ControlAnswer::Nodes { nodes, only_this_node } => Ok(Answers { status, nodes, only_this_node }),
                _ => Err(ControlError::NotUnderstood),
            };
        }
        let (status, facts, stacks) = match question {
            NodeQuestion::Status => {
                let facts = RankFacts::of(&status, &self.gpus, SAMPLE);
                (status, facts, None)
            }
            NodeQuestion::Stacks => match self.ask(ControlRequest::Stacks)? {
                ControlAnswer::Stacks { status, dump } => (status, Vec::new(), Some(dump)),
                _ => return Err(ControlError::NotUnderstood),
            },
        };
        let answer = NodeAnswer { at: clock::wall().as_secs_f64(), status: status.clone(), facts, stacks };
        let own = NodeEntry { node: None, host: status.host.clone(), is_own: true, answer: Some(answer), error: None };
        Ok(Answers { status, nodes: vec![own], only_this_node: None })
    }

    /// Waits until the launcher has ended, at most for this time.
    pub fn await_end(&self, status: &JobStatus, limit: Duration) {
        // One in another PID namespace has no number here: then this waits for the limit.
        let launcher = pidfd::open(status.launcher).ok();
        let launcher: Vec<_> = launcher.iter().map(AsFd::as_fd).collect();
        pidfd::await_any(&launcher, limit);
    }

    /// Sends a request and returns the line of the answer, all within this time.
    fn exchange(&mut self, request: &ControlRequest, patience: Duration) -> Result<Vec<u8>, ControlError> {
        let left = &mut deadline::until(clock::now, clock::now() + patience);
        loop {
            let error = match self.try_exchange(request, left) {
                Ok(line) => return Ok(line),
                Err(error) => error,
            };
            use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
            let may_be_gone =
                matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotFound | UnexpectedEof);
            let was_heard = !matches!(error.kind(), ConnectionRefused | NotFound);
            let time_left = left().unwrap_or_default();
            if may_be_gone && self.has_ended(time_left.min(AGAIN)) {
                return Err(ControlError::Gone);
            }
            // It runs: it ends soon, its socket's file was removed, or it had no room for this connection.
            if !may_be_gone || time_left.is_zero() || was_heard && !request.may_be_repeated() {
                return Err(ControlError::NoAnswer(error));
            }
            self.socket = self.socket.find_again().unwrap_or_else(|| self.socket.clone());
        }
    }

    fn try_exchange(&mut self, request: &ControlRequest, left: TimeLeft<'_>) -> io::Result<Vec<u8>> {
        let socket = unix::connect(&self.socket.path, &mut deadline::at_most(clock::now, FULL, left))?;
        // The process that listens, with its number in this PID namespace or 0 (unix(7)).
        let pid = getsockopt(&socket, PeerCredentials)?.pid();
        if self.server.is_none() && pid > 0 {
            self.server = pidfd::open(pid).ok().map(Arc::new);
        }
        if ProcStat::of(pid).is_some_and(|stat| stat.state == 'T') {
            return Err(io::Error::other("its supervisor process is stopped by a signal"));
        }
        unix::write_all(&socket, &RequestLine::encode(request.clone()), left)?;
        let line = unix::read_line(&socket, left)?;
        let is_whole = line.last() == Some(&b'\n');
        if is_whole { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Whether the process that listens has ended, which is waited for up to this time. Where it is not visible, its socket tells.
    fn has_ended(&self, patience: Duration) -> bool {
        match &self.server {
            Some(server) => pidfd::await_any(&[server.as_fd()], patience),
            None => !self.socket.path.exists() || unix::is_abandoned(&self.socket.path),
        }
    }
}

/// The record of a job that has ended (`docs/result.schema.json`); null if there is none.
pub(super) fn read_result(log_dir: &Path) -> serde_json::Value {
    let text = std::fs::read(log_dir.join(log_files::RECORDS).join(log_files::RESULT));
    text.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}
