//! Answers the requests of clients of the control socket. Runs on a thread of its own, so that a job whose event loop waits for a
//! disk can still be looked at and stopped.

use super::live_status::{LiveStatus, RestartRequest};
use super::message::{ControlAnswer, ControlRequest, LONGEST_REQUEST, RequestLine, to_line};
use crate::net::server::{
    CommandSender, Connection, ConnectionEnd, ConnectionId, ConnectionState, Connections, Handled, Service, Socket,
};
use crate::net::thread;
use crate::report::job_status::{CONTROL_VERSION, JobStatus, LaunchPhase, RankStatus};
use crate::run::stacks::collector::{StackReader, StacksUnavailable};
use crate::run::stacks::look::{RankTarget, StackAnswer, StackRequest};
use crate::sys::process::{current, pidfd};
use crate::sys::signals;
use nix::unistd::geteuid;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::warn;

/// How long a client may take for a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one that reads its answer slowly may take, and one that waits for stacks.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that may wait to be sent to a client before its next request is read.
const MOST_WAITING: usize = 1 << 20;

/// What has arrived from a client.
#[derive(Default)]
pub(super) struct ClientState {
    received: Vec<u8>,
}

impl ConnectionState for ClientState {
    type Shared = Vec<u8>;

    fn feed(&mut self, bytes: &[u8]) {
        self.received.extend(bytes);
    }

    fn held(&self) -> usize {
        self.received.capacity()
    }

    fn may_handle(&self, backlog: usize) -> bool {
        backlog < MOST_WAITING
    }
}

/// An answer that another thread has prepared, for this connection.
pub(super) struct PreparedAnswer {
    connection: ConnectionId,
    line: Vec<u8>,
}

/// How a job is stopped from outside.
pub struct StopSwitch {
    /// A pidfd of the launcher process.
    pub launcher: OwnedFd,
    /// The signal that stops the job; `None`: all such signals are forwarded to the ranks.
    pub signal: Option<i32>,
    /// The job's grace period.
    pub grace: Duration,
}

pub(super) struct ControlService {
    pub(super) status: LiveStatus,
    pub(super) reader: StackReader,
    pub(super) stop: StopSwitch,
    /// Sends answers back to this service.
    pub(super) answers: Arc<OnceLock<CommandSender<PreparedAnswer>>>,
    pub(super) reads_stacks: Arc<AtomicBool>,
}

impl Service for ControlService {
    type State = ClientState;
    type Command = PreparedAnswer;

    fn begin(&mut self, own: &[RawFd]) {
        // A lifeline kills the rest of a rank's process group when its last copy closes, and the threads of a killed process end one after
        // another: this one must not hold any.
        let kept: Vec<RawFd> = own.iter().copied().chain([self.stop.launcher.as_raw_fd()]).collect();
        if let Err(error) = current::keep_descriptors(&kept) {
            warn!("the thread of the control socket has no table of descriptors of its own: {error}");
        }
    }

    fn end(&mut self, connections: &mut Connections<ClientState>) {
        // Their numbers mean other files in the other threads' table. An error leaves clients waiting until the process ends.
        let _ = connections.close_all();
    }

    fn accept(&mut self, socket: &Socket) -> io::Result<ClientState> {
        // The mode of the socket's folder keeps others out already, but for root.
        let user = socket.user()?;
        if user == 0 || user == geteuid().as_raw() {
            Ok(ClientState::default())
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    fn opened(&mut self, connections: &mut Connections<ClientState>, id: ConnectionId, now: Duration) {
        connections.set_deadline(id, now + PATIENCE);
    }

    fn handle_next(&mut self, connections: &mut Connections<ClientState>, id: ConnectionId, now: Duration) -> Handled {
        let Some(connection) = connections.get_mut(id) else { return Handled::Incomplete };
        let received = &mut connection.state.received;
        let Some(end) = received.iter().take(LONGEST_REQUEST).position(|byte| *byte == b'\n') else {
            return if received.len() < LONGEST_REQUEST { Handled::Incomplete } else { Handled::Violation };
        };
        let line: Vec<u8> = received.drain(..=end).collect();
        let answer = match serde_json::from_slice::<RequestLine>(&line) {
            Err(error) => Some(refused(format!("not a request of version {CONTROL_VERSION}: {error}"))),
            Ok(line) => self.answer(id, line.request),
        };
        if let Some(answer) = answer {
            send(connection, &to_line(&answer));
        }
        connections.set_deadline(id, now + ANSWER_PATIENCE);
        Handled::Request
    }

    fn closed(&mut self, _: ConnectionId, _: ClientState, _: ConnectionEnd, _: Duration) {}

    fn command(&mut self, connections: &mut Connections<ClientState>, answer: PreparedAnswer) -> ControlFlow<()> {
        if let Some(connection) = connections.get_mut(answer.connection) {
            send(connection, &answer.line);
        }
        ControlFlow::Continue(())
    }
}

fn send(connection: &mut Connection<ClientState>, line: &[u8]) {
    connection.push(line.to_vec());
}

fn refused(message: impl Into<String>) -> ControlAnswer {
    ControlAnswer::Error { message: message.into() }
}

impl ControlService {
    /// The answer, unless another thread prepares it.
    fn answer(&self, id: ConnectionId, request: ControlRequest) -> Option<ControlAnswer> {
        match request {
            ControlRequest::Status => Some(ControlAnswer::Status(self.status.get())),
            ControlRequest::Stop { grace_period } => Some(self.stop(grace_period)),
            ControlRequest::Restart { grace_period } => Some(self.restart(grace_period)),
            ControlRequest::Stacks => self.begin_stacks(id).err().map(refused),
        }
    }

    fn stop(&self, grace_period: Option<f64>) -> ControlAnswer {
        let Some(signal) = self.stop.signal else {
            return refused(
                "the launcher ignores all stop signals, or forwards them (--forward_signals); kill it instead",
            );
        };
        match self.check_grace(grace_period) {
            Ok(grace) => grace.into_iter().for_each(|grace| self.status.limit_grace(grace)),
            Err(why) => return refused(why),
        }
        // A second signal would end the grace period.
        if self.status.get().phase == LaunchPhase::Stopping && grace_period != Some(0.0) {
            return ControlAnswer::Stopping;
        }
        match pidfd::send_signal(self.stop.launcher.as_fd(), signal) {
            Ok(()) => ControlAnswer::Stopping,
            Err(error) => refused(format!("the launcher cannot be signalled: {error}")),
        }
    }

    /// The grace period that a client asks for, if it does.
    fn check_grace(&self, seconds: Option<f64>) -> Result<Option<Duration>, String> {
        let Some(seconds) = seconds else { return Ok(None) };
        match Duration::try_from_secs_f64(seconds) {
            Ok(grace) if grace <= self.stop.grace => Ok(Some(grace)),
            _ => {
                let most = self.stop.grace.as_secs_f64();
                Err(format!("--grace_period {seconds}: give 0 to {most}, the job's own"))
            }
        }
    }

    fn restart(&self, grace_period: Option<f64>) -> ControlAnswer {
        let grace = match self.check_grace(grace_period) {
            Ok(grace) => grace,
            Err(why) => return refused(why),
        };
        match self.status.request_restart(RestartRequest { grace }) {
            Ok(attempt) => {
                // As a rank does that has something to tell.
                signals::wake();
                ControlAnswer::Restarting { attempt }
            }
            Err(why) => refused(why.to_string()),
        }
    }

    /// Has a thread read the stacks, which takes a while.
    fn begin_stacks(&self, connection: ConnectionId) -> Result<(), String> {
        let Some(answers) = self.answers.get().cloned() else { return Err("the launcher is starting".into()) };
        if self.reads_stacks.swap(true, Ordering::SeqCst) {
            return Err("another client reads the stacks at the moment; try again".into());
        }
        let (status, reader, reads) = (self.status.get(), self.reader.clone(), Arc::clone(&self.reads_stacks));
        if !status.ranks.iter().any(RankStatus::is_alive) {
            reads.store(false, Ordering::SeqCst);
            return Err(format!("no rank runs: the launcher is {}", status.phase.word()));
        }
        let begun = thread::spawn("rlaunch-stacks", move || {
            let answer = read_stacks(status, &reader).unwrap_or_else(|error| refused(error.to_string()));
            reads.store(false, Ordering::SeqCst);
            // The server may have ended.
            let _ = answers.send(PreparedAnswer { connection, line: to_line(&answer) });
        });
        begun.map(drop).map_err(|error| {
            self.reads_stacks.store(false, Ordering::SeqCst);
            format!("no thread for it: {error}")
        })
    }
}

fn read_stacks(status: JobStatus, reader: &StackReader) -> Result<ControlAnswer, StacksUnavailable> {
    let target = |rank: &RankStatus| {
        let process = (rank.pid.filter(|_| rank.exit.is_none())?, rank.start_ticks?);
        Some(RankTarget::new(rank.local_rank, process, rank.logs.clone()))
    };
    let request = StackRequest { ranks: status.ranks.iter().filter_map(target).collect(), hang: None };
    match reader.start(&request)?.wait()? {
        StackAnswer::Stacks(dump) => Ok(ControlAnswer::Stacks { status, dump }),
        _ => Err(StacksUnavailable::Failed),
    }
}
