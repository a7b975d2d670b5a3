//! A connection to the control socket of a launcher.

use super::error::ControlError;
use crate::report::job_status::JobStatus;
use crate::run::control::message::{ControlAnswer, ControlRequest, NodeEntry, RequestLine, UNKNOWN_REQUEST};
use crate::run::control::node_answer::{NodeAnswer, NodeQuestion, SAMPLE};
use crate::run::control::rank_facts::RankFacts;
use crate::run::gpu_reader::GpuReader;
use crate::run::output::log_files;
use crate::sys::clock;
use crate::sys::process::pidfd;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a launcher may take for an answer. It reads stacks within 30 s.
const PATIENCE: Duration = Duration::from_secs(40);

/// How often `status --watch`, `logs --follow` and `top` ask again.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);

/// Why other nodes are not shown.
const OLDER: &str = "its launcher is of an earlier version of rlaunch, which cannot ask the other nodes";

/// A launcher, by its socket. Each request has a connection of its own.
#[derive(Clone, Debug)]
pub(super) struct Client {
    path: PathBuf,
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
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), gpus: GpuReader::default() }
    }

    /// Sends a request and returns the answer.
    pub fn ask(&mut self, request: ControlRequest) -> Result<ControlAnswer, ControlError> {
        self.ask_within(request, PATIENCE)
    }

    /// The same with this patience.
    pub fn ask_within(&mut self, request: ControlRequest, patience: Duration) -> Result<ControlAnswer, ControlError> {
        match serde_json::from_slice(&self.exchange(request, patience)?) {
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
        let mut only_this_node = None;
        if !this_node && status.nnodes > 1 {
            match self.ask(ControlRequest::Nodes { question }) {
                Ok(ControlAnswer::Nodes { nodes, only_this_node }) => {
                    return Ok(Answers { status, nodes, only_this_node });
                }
                Err(ControlError::EarlierVersion) => only_this_node = Some(OLDER.to_owned()),
                Ok(_) => return Err(ControlError::NotUnderstood),
                Err(error) => return Err(error),
            }
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
        Ok(Answers { status, nodes: vec![own], only_this_node })
    }

    /// Waits until the launcher has ended, at most for this time.
    pub fn await_end(&self, status: &JobStatus, limit: Duration) {
        // One in another PID namespace has no number here: then this waits for the limit.
        let launcher = pidfd::open(status.launcher).ok();
        let launcher: Vec<_> = launcher.iter().map(AsFd::as_fd).collect();
        pidfd::await_any(&launcher, limit);
    }

    fn exchange(&self, request: ControlRequest, patience: Duration) -> Result<Vec<u8>, ControlError> {
        let is_gone = |error: &io::Error| {
            use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
            matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotFound)
        };
        let failed =
            |error: io::Error| if is_gone(&error) { ControlError::Gone } else { ControlError::NoAnswer(error) };
        let mut socket = UnixStream::connect(&self.path).map_err(failed)?;
        socket
            .set_read_timeout(Some(patience))
            .and_then(|()| socket.set_write_timeout(Some(patience)))
            .map_err(failed)?;
        socket.write_all(&RequestLine::encode(request)).map_err(failed)?;
        let mut line = Vec::new();
        BufReader::new(socket).read_until(b'\n', &mut line).map_err(failed)?;
        // The launcher has ended before its answer.
        if line.is_empty() { Err(ControlError::Gone) } else { Ok(line) }
    }
}

/// The record of a job that has ended (`docs/result.schema.json`); null if there is none.
pub(super) fn read_result(log_dir: &Path) -> serde_json::Value {
    let text = std::fs::read(log_dir.join(log_files::RECORDS).join(log_files::RESULT));
    text.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}
