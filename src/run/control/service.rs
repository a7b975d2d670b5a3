//! Answers the requests of clients of the control socket, and the questions of other nodes of the job. Runs on a thread of its own, so that a job whose event loop waits for a
//! disk can still be looked at and stopped.

use super::gathering::{AskerLimits, Gathering, Gatherings, Inquiry};
use super::grace_limit::GraceLimit;
use super::live_status::{JobNode, LiveStatus, RestartRequest};
use super::looks::{Destination, Look, LookOutcome};
use super::message::{
    ClientState, ControlAnswer, ControlRequest, LONGEST_REQUEST, RequestLine, UNKNOWN_REQUEST, to_line,
};
use super::node_answer::{self, NodeAnswer, NodeQuestion, QuestionText};
use super::runtime_folder::SocketFile;
use crate::net::server::{
    CommandSender, Connection, ConnectionEnd, ConnectionId, Connections, Handled, Service, Socket,
};
use crate::net::thread;
use crate::rendezvous::questions::{QuestionEvent, QuestionMessage};
use crate::report::job_status::{CONTROL_VERSION, LaunchPhase, RankStatus};
use crate::report::stacks::StackDump;
use crate::run::gpu_reader::GpuReader;
use crate::run::launcher_process::StopNotice;
use crate::run::preempt::StopMessage;
use crate::run::preempt::link::{Notice, NoticeCause, PreemptLink};
use crate::run::stacks::READER_THREAD;
use crate::run::stacks::collector::StackReader;
use crate::sys::clock;
use crate::sys::process::{current, pidfd};
use crate::sys::signals;
use crossbeam_channel::Sender;
use nix::unistd::geteuid;
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::{debug, warn};

/// How long a client may take for a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one that reads its answer slowly may take, and one that waits for stacks.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// Why other nodes cannot be asked.
const NO_BACKEND: &str =
    "the nodes of this job have no common rendezvous backend (etcd or an embedded master) that carries questions";
/// The same, where something has failed on this node.
const NO_CONNECTION: &str = "its launcher could not connect to those of the other nodes; its messages say why";
const TOO_MANY: &str = "too many wait for a look at its ranks; try again";
/// Bytes of the answers of all nodes, with all their stacks.
const LONGEST_LINE: usize = 16 << 20;

/// What other threads tell the service.
pub(super) enum ControlCommand {
    /// The answer of this node to a question, from the thread that has looked at the ranks.
    Looked(NodeQuestion, Box<Result<NodeAnswer, String>>),
    /// Questions of other nodes and their answers come from now on, and go here.
    Connected(Sender<QuestionMessage>),
    /// Another node asks or answers.
    Heard(QuestionEvent),
}

/// How a job is stopped from outside.
pub struct StopSwitch {
    /// A pidfd of the launcher process.
    pub launcher: OwnedFd,
    /// Tells the launcher process of a stop: it kills a supervisor process that does not act on it.
    pub notice: StopNotice,
    /// The job's grace period.
    pub grace: Duration,
}

/// How a notice of preemption reaches the event loop.
#[derive(Default)]
pub struct PreemptControl {
    /// The way to the event loop.
    pub link: PreemptLink,
    /// The time from a notice until SIGTERM.
    pub time: Duration,
}

pub(super) struct ControlService {
    pub(super) status: LiveStatus,
    pub(super) reader: StackReader,
    gpus: GpuReader,
    pub(super) stop: StopSwitch,
    /// None if it could not be made.
    socket: Option<SocketFile>,
    preempt: PreemptControl,
    /// Sends answers back to this service.
    pub(super) answers: Arc<OnceLock<CommandSender<ControlCommand>>>,
    looks: BTreeMap<NodeQuestion, Look>,
    /// To the other nodes of the job, where they have a backend that carries questions.
    to_others: Option<Sender<QuestionMessage>>,
    gatherings: Gatherings,
    limits: AskerLimits,
}

impl Service for ControlService {
    type State = ClientState;
    type Command = ControlCommand;

    fn begin(&mut self, own: &[RawFd]) {
        // A lifeline kills the rest of a rank's process group when its last copy closes, and the threads of a killed process end one after
        // another: this one must not hold any.
        let of_stops = [self.stop.launcher.as_raw_fd(), self.stop.notice.as_raw_fd(), signals::wake_descriptor()];
        let mut kept: Vec<RawFd> = own.iter().copied().chain(of_stops).collect();
        kept.extend(self.socket.iter().map(|socket| socket.as_fd().as_raw_fd()));
        if let Err(error) = current::keep_descriptors(&kept) {
            debug!("the thread of the control socket has no table of descriptors of its own: {error}");
        }
    }

    fn end(&mut self, connections: &mut Connections<ClientState>) {
        // Their numbers mean other files in the other threads' table. An error leaves clients waiting until the process ends.
        let _ = connections.close_all();
        self.socket = None;
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
        // Clients find a socket whose file was removed by a link in /proc.
        if let Some(listener) = self.socket.as_mut().and_then(SocketFile::renew) {
            let _ = connections.listen(listener);
        }
    }

    fn handle_next(&mut self, connections: &mut Connections<ClientState>, id: ConnectionId, now: Duration) -> Handled {
        let Some(connection) = connections.get_mut(id) else { return Handled::Incomplete };
        let received = &mut connection.state.received;
        let Some(end) = received.iter().take(LONGEST_REQUEST).position(|byte| *byte == b'\n') else {
            return if received.len() < LONGEST_REQUEST { Handled::Incomplete } else { Handled::Violation };
        };
        let line: Vec<u8> = received.drain(..=end).collect();
        let answer = match serde_json::from_slice::<RequestLine>(&line) {
            Err(error) => Some(refused(format!("{UNKNOWN_REQUEST} {CONTROL_VERSION}: {error}"))),
            Ok(line) => self.answer(id, line.request, now),
        };
        connection.state.owed += 1;
        if let Some(answer) = answer {
            send(connection, &to_line(&answer));
        }
        connections.set_deadline(id, now + ANSWER_PATIENCE);
        Handled::Request
    }

    fn closed(&mut self, id: ConnectionId, _: ClientState, _: ConnectionEnd, _: Duration) {
        for (number, _) in self.gatherings.take_of(id) {
            self.tell_others(QuestionMessage::Forget { number });
        }
    }

    fn command(&mut self, connections: &mut Connections<ClientState>, command: ControlCommand) -> ControlFlow<()> {
        match command {
            ControlCommand::Connected(to_others) => {
                self.preempt.link.connect(to_others.clone());
                self.to_others = Some(to_others);
            }
            ControlCommand::Looked(question, answer) => self.deliver(connections, question, &answer),
            ControlCommand::Heard(QuestionEvent::Asked { asker, id, text }) => {
                if !self.limits.allow(&asker, clock::now()) {
                    return ControlFlow::Continue(());
                }
                if let Some(QuestionText { question, longest, .. }) = QuestionText::decode(&text) {
                    self.look(question, Destination::Node { asker, id, longest });
                } else if let Some(limit) = GraceLimit::decode(&text)
                    && self.status.request_grace_limit(Some(limit.round), limit.grace())
                {
                    signals::wake();
                } else if let Ok(message) = StopMessage::decode(&text) {
                    self.preempt.link.hear(asker, message);
                }
            }
            ControlCommand::Heard(QuestionEvent::Answered { number, node, text }) => {
                self.gatherings.note(number, Some(&node), |asked| node_answer::decode(&text, asked.longest));
            }
        }
        ControlFlow::Continue(())
    }

    fn before_wait(&mut self, connections: &mut Connections<ClientState>, now: Duration) -> ControlFlow<()> {
        for (number, gathering) in self.gatherings.take_done(now) {
            self.tell_others(QuestionMessage::Forget { number });
            if let Some(connection) = connections.get_mut(gathering.connection) {
                send(connection, &line_of(gathering));
            }
        }
        self.begin_looks(now);
        ControlFlow::Continue(())
    }

    fn next_deadline(&self) -> Option<Duration> {
        let looks = self.looks.iter().filter_map(|(question, look)| look.due(*question));
        looks.chain(self.gatherings.next_deadline()).min()
    }
}

fn send(connection: &mut Connection<ClientState>, line: &[u8]) {
    connection.state.owed = connection.state.owed.saturating_sub(1);
    connection.push(line.to_vec());
}

/// The answers of all nodes. Where they are very long, the stacks are those of the main threads alone.
fn line_of(gathering: Gathering) -> Vec<u8> {
    let only_this_node = gathering.only_this_node.clone();
    let mut nodes = gathering.into_entries();
    let line = to_line(&ControlAnswer::Nodes { nodes: nodes.clone(), only_this_node: only_this_node.clone() });
    if line.len() <= LONGEST_LINE {
        return line;
    }
    let dumps = nodes.iter_mut().filter_map(|entry| entry.answer.as_mut()?.stacks.as_mut());
    dumps.for_each(StackDump::keep_main_threads);
    to_line(&ControlAnswer::Nodes { nodes, only_this_node })
}

fn refused(message: impl Into<String>) -> ControlAnswer {
    ControlAnswer::Error { message: message.into() }
}

impl ControlService {
    /// A service that no client has asked yet.
    pub(super) fn new(
        status: LiveStatus,
        (reader, gpus): (StackReader, GpuReader),
        (stop, preempt): (StopSwitch, PreemptControl),
        (socket, answers): (Option<SocketFile>, Arc<OnceLock<CommandSender<ControlCommand>>>),
    ) -> Self {
        Self {
            status,
            reader,
            gpus,
            stop,
            socket,
            preempt,
            answers,
            looks: BTreeMap::new(),
            to_others: None,
            gatherings: Gatherings::default(),
            limits: AskerLimits::default(),
        }
    }

    /// The answer, unless it takes a while.
    fn answer(&mut self, id: ConnectionId, request: ControlRequest, now: Duration) -> Option<ControlAnswer> {
        match request {
            ControlRequest::Status => Some(ControlAnswer::Status(self.status.get())),
            ControlRequest::Stop { grace_period } => Some(self.stop(grace_period)),
            ControlRequest::Preempt => Some(self.preempt()),
            ControlRequest::Restart { grace_period } => Some(self.restart(grace_period)),
            ControlRequest::Stacks => {
                let status = self.status.get();
                if !status.ranks.iter().any(RankStatus::is_alive) {
                    return Some(refused(format!("no rank runs: the launcher is {}", status.phase.word())));
                }
                let is_heard = self.look(NodeQuestion::Stacks, Destination::Client(id));
                (!is_heard).then(|| refused(TOO_MANY))
            }
            ControlRequest::Nodes { question } => self.ask_nodes(id, question, now).err().map(refused),
        }
    }

    fn stop(&mut self, grace_period: Option<f64>) -> ControlAnswer {
        let grace = match self.check_grace(grace_period) {
            Ok(grace) => grace,
            Err(why) => return refused(why),
        };
        if let Some(grace) = grace {
            self.status.limit_grace(grace);
            self.limit_grace_of_others(grace);
            // The ranks may be stopping already.
            self.status.request_grace_limit(self.status.get().round, grace);
        }
        self.status.request_stop();
        signals::wake();
        self.stop.notice.send(grace == Some(Duration::ZERO));
        // A job that is suspended by Ctrl-Z stops as well. An error means that the launcher process has just ended.
        let _ = pidfd::send_signal(self.stop.launcher.as_fd(), libc::SIGCONT);
        ControlAnswer::Stopping
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

    /// Has the ranks of the other nodes end within this time as well, which the stop of this node's ranks makes them do.
    fn limit_grace_of_others(&mut self, grace: Duration) {
        if let Some(round) = self.status.get().round {
            let (number, text) = (self.gatherings.next_number(), GraceLimit::new(round, grace).encode());
            self.tell_others(QuestionMessage::Tell { number, to: None, text });
        }
    }

    fn preempt(&mut self) -> ControlAnswer {
        let phase = self.status.get().phase;
        if !matches!(phase, LaunchPhase::Running | LaunchPhase::Restarting) {
            return refused(format!("the launcher is {}, so no rank runs that could stop", phase.word()));
        }
        let PreemptControl { link, time } = &self.preempt;
        link.request(Notice { cause: NoticeCause::User, ends: clock::now().saturating_add(*time), kills: None });
        ControlAnswer::Preempting
    }

    fn restart(&mut self, grace_period: Option<f64>) -> ControlAnswer {
        let grace = match self.check_grace(grace_period) {
            Ok(grace) => grace,
            Err(why) => return refused(why),
        };
        match self.status.request_restart(RestartRequest { grace }) {
            Ok(attempt) => {
                grace.into_iter().for_each(|grace| self.limit_grace_of_others(grace));
                // As a rank does that has something to tell.
                signals::wake();
                ControlAnswer::Restarting { attempt }
            }
            Err(why) => refused(why.to_string()),
        }
    }

    /// Asks all nodes of the job, this one too.
    fn ask_nodes(&mut self, id: ConnectionId, question: NodeQuestion, now: Duration) -> Result<(), String> {
        let (status, (mut nodes, mut own)) = (self.status.get(), self.status.nodes());
        let only_this_node = match (nodes.is_empty(), self.to_others.is_some()) {
            (false, true) => None,
            (false, false) => (nodes.len() > 1).then_some(NO_CONNECTION),
            (true, true) => Some("this node has been in no round of the job yet"),
            (true, false) if status.nnodes > 1 => Some(NO_BACKEND),
            (true, false) => None,
        };
        if nodes.is_empty() || only_this_node.is_some() {
            (nodes, own) = (vec![JobNode { host: status.host, ..JobNode::default() }], 0);
        }
        let is_alone = nodes.len() == 1;
        let only_this_node = only_this_node.map(str::to_owned);
        let inquiry = Inquiry { connection: id, question, nodes: &nodes, own, only_this_node };
        let (number, text) = self
            .gatherings
            .begin(inquiry, now)
            .ok_or("too many questions to the nodes of the job are open; try again")?;
        if !is_alone {
            self.tell_others(QuestionMessage::Ask { number, text });
        }
        if !self.look(question, Destination::Gathering(number)) {
            self.gatherings.note(number, None, |_| Err(TOO_MANY.to_owned()));
        }
        Ok(())
    }

    /// What cannot be sent at once is lost.
    fn tell_others(&self, message: QuestionMessage) {
        if let Some(to_others) = &self.to_others {
            let _ = to_others.try_send(message);
        }
    }

    /// Has a thread look at the ranks, for this destination, unless too many wait for that.
    fn look(&mut self, question: NodeQuestion, destination: Destination) -> bool {
        let is_heard = self.looks.entry(question).or_default().await_next(destination);
        self.begin_looks(clock::now());
        is_heard
    }

    /// Begins the looks that are due.
    fn begin_looks(&mut self, now: Duration) {
        let Some(answers) = self.answers.get() else { return };
        for (question, look) in &mut self.looks {
            if look.due(*question).is_none_or(|due| due > now) {
                continue;
            }
            look.begin(now);
            let (question, answers) = (*question, answers.clone());
            // The server may have ended.
            let outcome =
                LookOutcome::new(move |answer| drop(answers.send(ControlCommand::Looked(question, Box::new(answer)))));
            let (status, reader, gpus) = (self.status.get(), self.reader.clone(), self.gpus.clone());
            let begun = thread::spawn(READER_THREAD, move || {
                outcome
                    .tell(node_answer::answer(question, status, (&reader, &gpus)).map_err(|error| error.to_string()));
            });
            if let Err(error) = begun {
                warn!("no thread can look at the ranks: {error}");
            }
        }
    }

    /// Sends an answer of this node to all that wait for it.
    fn deliver(
        &mut self,
        connections: &mut Connections<ClientState>,
        question: NodeQuestion,
        answer: &Result<NodeAnswer, String>,
    ) {
        let waiting = self.looks.entry(question).or_default().end();
        for destination in waiting {
            match destination {
                Destination::Client(id) => {
                    let answer = match answer.clone() {
                        Ok(NodeAnswer { status, stacks, .. }) => {
                            ControlAnswer::Stacks { status, dump: stacks.unwrap_or_default() }
                        }
                        Err(error) => refused(error),
                    };
                    if let Some(connection) = connections.get_mut(id) {
                        send(connection, &to_line(&answer));
                    }
                }
                Destination::Gathering(number) => self.gatherings.note(number, None, |_| answer.clone()),
                Destination::Node { asker, id, longest } => {
                    let text = node_answer::encode(answer.clone(), longest);
                    self.tell_others(QuestionMessage::Answer { asker, id, text });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use std::fs::File;

    /// What a client sees of each node, and why this node alone was asked.
    fn ask(is_connected: bool, nodes: usize) -> (Vec<Option<usize>>, Option<String>) {
        let (status, launcher) = (LiveStatus::default(), File::open("/dev/null").unwrap().into());
        let one = |node: usize| JobNode { id: node.to_string(), host: "h".into(), is_paddle_launcher: false };
        status.set_nodes((0..nodes).map(one).collect(), 1);
        let stop = StopSwitch { launcher, notice: StopNotice::new().unwrap(), grace: Duration::ZERO };
        let mut service =
            ControlService::new(status, Default::default(), (stop, PreemptControl::default()), Default::default());
        let (to_others, asked) = crossbeam_channel::unbounded();
        service.to_others = is_connected.then_some(to_others);
        service.ask_nodes(7, NodeQuestion::Status, Duration::from_secs(1)).unwrap();
        let (_, gathering) = service.gatherings.take_of(7).pop().unwrap();
        let why = gathering.only_this_node.clone();
        let entries = gathering.into_entries();
        assert_eq!(asked.len(), usize::from(entries.len() > 1));
        (entries.iter().map(|entry| entry.node).collect(), why)
    }

    #[test]
    fn nodes_that_cannot_be_asked_are_not_awaited() {
        assert_eq!(ask(true, 3), (vec![Some(0), Some(1), Some(2)], None));
        assert_eq!(ask(false, 3), (vec![None], Some(NO_CONNECTION.to_owned())));
        assert_eq!(ask(true, 0), (vec![None], Some("this node has been in no round of the job yet".to_owned())));
    }
}
