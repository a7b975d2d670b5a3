//! A node's end of its link to the embedded master: one thread, which connects, reconnects, and reports what it receives.

use super::connect::MasterLink;
use super::link_state::{ClientCommand, SharedState};
use super::probe::{ProbeResult, UpgradedLink, identify_other, upgrade};
use crate::net::deadline::{Clock, until};
use crate::net::tcp;
use crate::net::thread;
use crate::net::traffic::Traffic;
use crate::rendezvous::backend::{BackendEvent, RendezvousBackend};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::master::auth::{LinkAuth, LinkSide};
use crate::rendezvous::master::frame::{FrameError, FrameReader, FromMaster, FromNode, SharedBody};
use crate::rendezvous::questions::{MAX_ANSWER, QuestionEvent, QuestionListener, QuestionMessage, QuestionSender};
use crate::sys::clock as system_clock;
use crate::sys::random;
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Shutdown};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The first and the longest pause before another attempt to connect. Each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest lease: it limits how often the node sends pings.
const LEAST_LEASE: Duration = Duration::from_millis(100);
/// How long a thread that is ordered to end may take before it is abandoned (it may be resolving a host name).
const GRACE: Duration = Duration::from_secs(1);
/// Bytes read at once.
const CHUNK: usize = 64 * 1024;

/// Where a node's master is, and what they have to agree on.
#[derive(Clone, Debug)]
pub struct MasterAddress {
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The job's name.
    pub job: String,
    /// The key that both ends have to prove to have, if there is one.
    pub key: Option<String>,
    /// The lease until the master has sent its own. Contact is lost when nothing has arrived for half of it.
    pub lease: Duration,
    /// The clock.
    pub clock: Clock,
    /// Where renewals are noted.
    pub node_lease: Arc<NodeLease>,
}

/// A node's link to a master.
pub struct MasterBackend {
    shared: Arc<SharedState>,
    traffic: Traffic,
    /// Closes when the thread ends.
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// Joins a job as the node `id`, which is unique, with this record. It does not wait: what comes of it is an event.
pub fn join(address: MasterAddress, id: &str, record: &str) -> io::Result<MasterBackend> {
    let shared = Arc::new(SharedState::new(record)?);
    let (guard, ended) = bounded::<()>(0);
    let traffic = Traffic::default();
    let mut client = ClientThread {
        shared: Arc::clone(&shared),
        traffic: traffic.clone(),
        address,
        id: id.to_owned(),
        lost: None,
        has_joined: false,
        lease: None,
        instance: String::new(),
        state_from: None,
        silent_links: Vec::new(),
    };
    let thread = thread::spawn("master-link", move || {
        let _guard = guard;
        client.run();
    })?;
    Ok(MasterBackend { shared, traffic, ended, thread: Some(thread) })
}

impl MasterBackend {
    /// Bytes received and sent.
    pub fn traffic(&self) -> (u64, u64) {
        (self.traffic.received(), self.traffic.sent())
    }

    /// This machine's address towards the master, once there was contact.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.shared.lock().local
    }

    /// Whether the thread has ended in time.
    fn end(&mut self, command: ClientCommand, patience: Duration) -> bool {
        self.shared.order(command);
        let in_time = self.ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected);
        if in_time {
            drop(self.thread.take().map(JoinHandle::join));
        }
        in_time
    }
}

impl RendezvousBackend for MasterBackend {
    fn put(&mut self, record: &str) {
        self.shared.put(record);
    }

    fn take_events(&mut self) -> Vec<BackendEvent> {
        self.shared.take_events()
    }

    fn connect_questions(&mut self, listener: QuestionListener) -> Box<dyn QuestionSender> {
        self.shared.questions.set(listener);
        Box::new(MasterQuestions(Arc::clone(&self.shared)))
    }

    fn close(&mut self, patience: Duration) -> io::Result<()> {
        let in_time = self.end(ClientCommand::Leave, patience);
        let why = "the master could not be notified that this node leaves";
        if in_time { Ok(()) } else { Err(io::Error::new(ErrorKind::TimedOut, why)) }
    }
}

impl AsFd for MasterBackend {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.events_ready.as_fd()
    }
}

impl Drop for MasterBackend {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end(ClientCommand::End, GRACE);
        }
    }
}

/// Sends questions and answers on the link, while there is one.
struct MasterQuestions(Arc<SharedState>);

impl QuestionSender for MasterQuestions {
    fn send(&mut self, message: QuestionMessage) {
        match message {
            QuestionMessage::Ask { number, text } => self.0.send(FromNode::Ask { number, to: None, text }),
            QuestionMessage::Tell { number, to, text } => self.0.send(FromNode::Ask { number, to, text }),
            QuestionMessage::Answer { asker, id, text } => {
                if let Some(number) = id.parse().ok().filter(|_| text.len() <= MAX_ANSWER) {
                    self.0.send(FromNode::Answer { asker, number, text });
                }
            }
            QuestionMessage::Forget { .. } | QuestionMessage::ReceiveOwn => {}
        }
    }
}

struct ClientThread {
    shared: Arc<SharedState>,
    traffic: Traffic,
    address: MasterAddress,
    id: String,
    /// Why there is no contact, if there is none and that has been reported.
    lost: Option<String>,
    has_joined: bool,
    /// The number of this node's lease.
    lease: Option<u16>,
    /// The master that this node is connected to, and the one that has sent it a state.
    instance: String,
    state_from: Option<String>,
    /// Links on which nothing has arrived for too long. They stay open until another link works: to the master a closed link
    /// means that this launcher has ended.
    silent_links: Vec<MasterLink>,
}

/// Why a link has ended.
enum LinkEnd {
    /// This node has left.
    Left,
    /// The link is broken, or could not be made.
    Lost(String),
    /// The master refuses this node. Another attempt is useless, unless this node has joined before.
    Refused(String),
    /// The job that this node took part in is over.
    Over(String),
}

impl From<io::Error> for LinkEnd {
    fn from(failure: io::Error) -> Self {
        match failure.kind() {
            ErrorKind::TimedOut => Self::Lost("it does not answer".to_owned()),
            _ => Self::Lost(failure.to_string()),
        }
    }
}

/// A link whose other end is authenticated.
struct OpenLink {
    link: MasterLink,
    reader: FrameReader,
    auth: LinkAuth,
    /// When this node said hello (`clock::boot`).
    greeted: Duration,
}

impl ClientThread {
    fn run(&mut self) {
        let (mut pause, clock) = (FIRST_PAUSE, self.address.clock);
        while self.shared.command() == ClientCommand::Stay {
            let (had_contact, end) = match self.connect() {
                Ok(link) => {
                    let since = clock();
                    let end = self.serve(link);
                    // After a link that has lasted, the node reconnects at once, because the master does not wait long. A link
                    // that closes again and again is not to keep the master busy.
                    let has_lasted = self.has_joined && clock() - since >= LONGEST_PAUSE;
                    pause = if has_lasted { Duration::ZERO } else { FIRST_PAUSE };
                    (true, end)
                }
                Err(end) => (false, end),
            };
            let master = tcp::host_port(&self.address.host, self.address.port);
            match end {
                LinkEnd::Left => return,
                LinkEnd::Over(why) => return self.shared.push_event(BackendEvent::Superseded { why }),
                LinkEnd::Refused(why) if !self.has_joined => {
                    return self.shared.push_event(BackendEvent::Refused { why });
                }
                LinkEnd::Lost(why) | LinkEnd::Refused(why) => {
                    let why = format!("the master at {master}: {why}");
                    if had_contact || self.lost.as_ref() != Some(&why) {
                        self.shared.push_event(BackendEvent::Lost { why: why.clone() });
                        self.lost = Some(why);
                    }
                }
            }
            // Random, so that not all nodes connect at once.
            self.pause(pause.mul_f64(0.5 + random::rng().f64()));
            pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        }
    }

    /// Lets time pass, until a command arrives.
    fn pause(&self, time: Duration) {
        let end = (self.address.clock)() + time;
        while self.shared.command() == ClientCommand::Stay {
            let left = end.saturating_sub((self.address.clock)());
            if left.is_zero() || self.poll(None, left).is_err() {
                return;
            }
        }
    }

    /// Waits for the socket or a command; whether the socket is ready.
    fn poll(&self, socket: Option<BorrowedFd<'_>>, time: Duration) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(self.shared.wakeup.as_fd(), PollFlags::POLLIN)];
        fds.extend(socket.map(|socket| PollFd::new(socket, PollFlags::POLLIN)));
        let time = PollTimeout::try_from(time + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, time) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if fds[0].any() == Some(true) {
            let _ = self.shared.wakeup.read();
        }
        Ok(fds.get(1).and_then(PollFd::any) == Some(true))
    }

    /// Connects, and joins the job.
    fn connect(&mut self) -> Result<OpenLink, LinkEnd> {
        let MasterAddress { host, port, job, key, lease, clock, .. } = self.address.clone();
        let shared = Arc::clone(&self.shared);
        let end = clock() + (lease / 6).clamp(Duration::from_millis(500), Duration::from_secs(5));
        let mut left = move || match shared.command() {
            ClientCommand::Stay => Ok(end.saturating_sub(clock())),
            ClientCommand::Leave | ClientCommand::End => Err(ErrorKind::Interrupted.into()),
        };
        let name = tcp::host_port(&host, port);
        let link = MasterLink::connect(&host, port, &self.traffic, &mut left)?;
        let UpgradedLink { mut link, nonces, keyed, rest, .. } = match upgrade(link, &name, &mut left) {
            Ok(link) => link,
            Err(failure) if failure.kind() == ErrorKind::InvalidData => {
                return Err(match identify_other(&host, port, &self.traffic, &mut left) {
                    Some(ProbeResult::Paddle) => LinkEnd::Refused("Paddle's own launcher serves there".to_owned()),
                    _ => LinkEnd::Lost(format!("something else listens there ({failure})")),
                });
            }
            Err(failure) => return Err(failure.into()),
        };
        match (&key, keyed) {
            (None, true) => {
                let why = format!("the job at {name} has a secret: set RLAUNCH_JOB_SECRET to it on this node");
                return Err(LinkEnd::Refused(why));
            }
            (Some(_), false) => {
                let why = format!(
                    "the master at {name} has no secret and accepts every node: set RLAUNCH_JOB_SECRET on its node to that of this one"
                );
                return Err(LinkEnd::Refused(why));
            }
            _ => {}
        }
        let mut auth = LinkAuth::new(key.as_deref(), &nonces.0, &nonces.1, LinkSide::Node);
        let (mut reader, mut chunk) = (FrameReader::default(), vec![0; CHUNK]);
        reader.feed(&rest);
        let master_job = loop {
            match reader.next_message(&mut auth) {
                Ok(Some(FromMaster::Hello { job, instance, lease_ms, .. })) => {
                    self.instance = instance;
                    self.address.lease = Duration::from_millis(lease_ms).max(LEAST_LEASE);
                    break job;
                }
                Ok(Some(_)) => return Err(LinkEnd::Lost("its first message is not a greeting".to_owned())),
                Ok(None) => {}
                Err(FrameError::Unauthenticated) => {
                    let why = format!(
                        "the master at {name} has another secret: set RLAUNCH_JOB_SECRET to the same secret on all nodes"
                    );
                    return Err(LinkEnd::Refused(why));
                }
                Err(error) => return Err(LinkEnd::Lost(error.to_string())),
            }
            tcp::wait(link.socket.as_fd(), PollFlags::POLLIN, &mut left)?;
            reader.feed(link.read(&mut chunk)?);
        };
        if master_job != job {
            let why = format!("the master at {name} is that of job {master_job}, and this node is of job {job}");
            return Err(LinkEnd::Refused(why));
        }
        // A new master does not know the rounds that this node has received, and would begin with their numbers again.
        if self.state_from.as_ref().is_some_and(|first| *first != self.instance) {
            return Err(LinkEnd::Over(format!(
                "the master at {name} was restarted: the job that this node took part in is over; start this node again"
            )));
        }
        let record = {
            let mut own = self.shared.lock();
            own.is_sent = true;
            // They are too old.
            own.questions.clear();
            own.local = link.socket.local_addr().ok().map(|address| address.ip());
            own.record.clone()
        };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let hello = FromNode::Hello { version, job, id: self.id.clone(), record };
        let greeted = system_clock::boot();
        link.send(&SharedBody::of(&hello).line(&mut auth), &mut left)?;
        Ok(OpenLink { link, reader, auth, greeted })
    }

    /// Sends records and pings, and receives messages, until the link ends.
    fn serve(&mut self, link: OpenLink) -> LinkEnd {
        let OpenLink { mut link, mut reader, mut auth, greeted } = link;
        let (clock, lease) = (self.address.clock, self.address.lease);
        let mut chunk = vec![0; CHUNK];
        let mut last_received = clock();
        let mut next_ping = last_received;
        // When the messages were sent that the master has not answered. It answers in their order.
        let mut pings = VecDeque::from([greeted]);
        loop {
            let now = clock();
            let mut lines = Vec::new();
            let command = {
                let mut own = self.shared.lock();
                if !own.is_sent {
                    own.is_sent = true;
                    lines.extend(SharedBody::of(&FromNode::Record { record: own.record.clone() }).line(&mut auth));
                }
                // One at a time: pings are not to wait for all of them.
                if let Some(message) = own.questions.pop_front() {
                    lines.extend(SharedBody::of(&message).line(&mut auth));
                    let _ = self.shared.wakeup.write(1);
                }
                own.command
            };
            if now >= next_ping {
                lines.extend(SharedBody::of(&FromNode::Ping).line(&mut auth));
                pings.push_back(system_clock::boot());
                next_ping = now + lease / 10;
            }
            if command == ClientCommand::Leave {
                lines.extend(SharedBody::of(&FromNode::Leave).line(&mut auth));
            }
            if let Err(failure) = link.send(&lines, &mut until(clock, last_received + lease / 2)) {
                if failure.kind() == ErrorKind::TimedOut {
                    self.silent_links.push(link);
                }
                return failure.into();
            }
            if command != ClientCommand::Stay {
                self.close_link(&link);
                return LinkEnd::Left;
            }
            let time = next_ping.min(last_received + lease / 2).saturating_sub(clock());
            match self.poll(Some(link.socket.as_fd()), time) {
                Ok(true) => match link.read(&mut chunk) {
                    Ok(bytes) => {
                        reader.feed(bytes);
                        last_received = clock();
                    }
                    Err(failure) => return failure.into(),
                },
                // Checked after the poll: this process may have been delayed itself.
                Ok(false) if clock() >= last_received + lease / 2 => {
                    self.silent_links.push(link);
                    let seconds = (clock() - last_received).as_secs_f64();
                    return LinkEnd::Lost(format!("it has sent nothing for {seconds:.1} s"));
                }
                Ok(false) => continue,
                Err(failure) => return failure.into(),
            }
            loop {
                match reader.next_message(&mut auth) {
                    Ok(None) => break,
                    Ok(Some(FromMaster::Refused { why })) => return LinkEnd::Refused(why),
                    Ok(Some(message)) => {
                        let answered = matches!(message, FromMaster::Pong { .. }).then(|| pings.pop_front()).flatten();
                        self.handle_message(message, answered);
                    }
                    Err(error) => return LinkEnd::Lost(error.to_string()),
                }
            }
        }
    }

    /// `answered`: when the message was sent (`clock::boot`) that this one answers.
    fn handle_message(&mut self, message: FromMaster, answered: Option<Duration>) {
        self.silent_links.clear();
        self.has_joined = true;
        if self.lost.take().is_some() {
            self.shared.push_event(BackendEvent::Back);
        }
        match message {
            FromMaster::State { state, members } => {
                self.state_from.get_or_insert_with(|| self.instance.clone());
                self.shared.push_event(BackendEvent::State { state, members });
            }
            FromMaster::Pong { lease } => {
                if let Some(sent) = answered {
                    self.address.node_lease.renewed(lease, sent);
                }
                if self.lease.replace(lease) != Some(lease) {
                    self.shared.push_event(BackendEvent::Joined { lease });
                }
            }
            FromMaster::Asked { asker, number, text } => {
                self.shared.questions.report(QuestionEvent::Asked { asker, id: number.to_string(), text });
            }
            FromMaster::Answered { number, node, text } => {
                self.shared.questions.report(QuestionEvent::Answered { number, node, text });
            }
            FromMaster::Hello { .. } | FromMaster::Refused { .. } => {}
        }
    }

    /// Waits a moment until the master has read everything: it closes its end then.
    fn close_link(&self, link: &MasterLink) {
        let _ = link.socket.shutdown(Shutdown::Write);
        let (mut chunk, mut socket) = (vec![0; CHUNK], &link.socket);
        let mut left = until(self.address.clock, (self.address.clock)() + GRACE);
        while tcp::wait(socket.as_fd(), PollFlags::POLLIN, &mut left).is_ok() {
            match socket.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}
