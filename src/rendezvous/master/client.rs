//! A node's tie to the embedded master: one thread, which keeps the link up and says what it hears.

use super::dial::{self, Line};
use super::frame::{Body, FromMaster, FromNode, Lines};
use super::probe::{Found, Link, upgrade, what_else};
use super::seal::{Seal, Side};
use super::{Clock, Traffic};
use crate::rendezvous::tie::{News, Tie};
use crossbeam_channel::{Receiver, bounded};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The first pause before another try, and the longest; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Nobody is pinged more often than a lease of this asks for.
const LEAST_LEASE: Duration = Duration::from_millis(100);
/// How long a thread that is told to end may take until nobody waits for it (it may be asking for a name).
const GRACE: Duration = Duration::from_secs(1);
/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

/// Which master.
#[derive(Clone, Debug)]
pub struct Join {
    /// Where it is.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The job.
    pub job: String,
    /// What both sides have to prove to know, if anything.
    pub key: Option<String>,
    /// What the server's lease is taken to be until it has said so: half of it without a sign, and contact is lost.
    pub lease: Duration,
    /// The clock.
    pub clock: Clock,
}

/// A node's tie to a master.
pub struct MasterTie {
    shared: Arc<Shared>,
    traffic: Traffic,
    ended: Receiver<()>,
    thread: Option<thread::JoinHandle<()>>,
}

struct Shared {
    now: Mutex<Now>,
    /// Something is to be done.
    wake: EventFd,
    /// Something has been heard.
    bell: EventFd,
}

#[derive(Default)]
struct Now {
    record: String,
    /// Whether the master has been told this record.
    told: bool,
    heard: VecDeque<News>,
    order: Order,
    local: Option<IpAddr>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Stay,
    /// Say good-bye, and end.
    Leave,
    End,
}

/// Joins a job as the node `id`, which nobody else may be, with this record. It does not wait: what becomes of it is heard.
pub fn join(config: Join, id: &str, record: &str) -> io::Result<MasterTie> {
    let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
    let now = Mutex::new(Now { record: record.to_owned(), ..Now::default() });
    let shared = Arc::new(Shared { now, wake: event()?, bell: event()? });
    let (ends, ended) = bounded::<()>(0);
    let traffic = Traffic::default();
    let mut node = Node {
        shared: Arc::clone(&shared),
        traffic: traffic.clone(),
        config,
        id: id.to_owned(),
        lost: None,
        has_joined: false,
        instance: String::new(),
        told_by: None,
        old: Vec::new(),
    };
    let run = move || {
        let _ends = ends;
        node.run();
    };
    let signals = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = thread::Builder::new().name("tie".to_owned()).spawn(run);
    signals.thread_set_mask()?;
    Ok(MasterTie { shared, traffic, ended, thread: Some(thread?) })
}

impl MasterTie {
    /// Bytes that were read and sent.
    pub fn traffic(&self) -> (u64, u64) {
        self.traffic.total()
    }

    /// This machine's address towards the master, once there was contact.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.shared.lock().local
    }

    /// Whether it did in time.
    fn end(&mut self, order: Order, patience: Duration) -> bool {
        self.shared.order(order);
        // Nothing is ever sent by this channel: it closes.
        if self.ended.recv_timeout(patience) == Err(crossbeam_channel::RecvTimeoutError::Disconnected) {
            drop(self.thread.take().map(thread::JoinHandle::join));
            return true;
        }
        false
    }
}

impl Tie for MasterTie {
    fn put(&mut self, record: &str) {
        let mut now = self.shared.lock();
        if now.record != record {
            (now.record, now.told) = (record.to_owned(), false);
            let _ = self.shared.wake.write(1);
        }
    }

    fn heard(&mut self) -> Vec<News> {
        let mut now = self.shared.lock();
        let _ = self.shared.bell.read();
        now.heard.drain(..).collect()
    }

    fn close(&mut self, patience: Duration) -> io::Result<()> {
        let in_time = self.end(Order::Leave, patience);
        if in_time { Ok(()) } else { Err(io::Error::new(ErrorKind::TimedOut, "the master was not told")) }
    }
}

impl AsFd for MasterTie {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

impl Drop for MasterTie {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end(Order::End, GRACE);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, order: Order) {
        self.lock().order = order;
        let _ = self.wake.write(1);
    }

    fn tell(&self, news: News) {
        let mut now = self.lock();
        // A state stands for all before it; members are told once.
        if matches!((now.heard.back(), &news), (Some(News::State { members: None, .. }), News::State { .. })) {
            now.heard.pop_back();
        }
        now.heard.push_back(news);
        let _ = self.bell.write(1);
    }
}

struct Node {
    shared: Arc<Shared>,
    traffic: Traffic,
    config: Join,
    id: String,
    /// Why there is no contact, if there is none and it has been told.
    lost: Option<String>,
    has_joined: bool,
    /// Which master it is that this node talks to, and which one has told it a state.
    instance: String,
    told_by: Option<String>,
    /// Links that have become silent. They stay open until there is another in their place: that one closes would mean that
    /// this launcher has ended.
    old: Vec<Line>,
}

/// How a link has ended.
enum Ended {
    /// By order.
    Left,
    /// It was broken, or could not be made.
    Lost(String),
    /// Trying again is of no use, if this node has no part in the job yet.
    Refused(String),
    /// The job that this node had a part in is over.
    Over(String),
}

impl From<io::Error> for Ended {
    fn from(failure: io::Error) -> Self {
        match failure.kind() {
            ErrorKind::TimedOut => Self::Lost("it does not answer".to_owned()),
            _ => Self::Lost(failure.to_string()),
        }
    }
}

impl Node {
    fn run(&mut self) {
        let (mut pause, clock) = (FIRST_PAUSE, self.config.clock);
        while self.shared.lock().order == Order::Stay {
            let (had_contact, ended) = match self.connect() {
                Ok(link) => {
                    let since = clock();
                    let ended = self.serve(link);
                    // At once where something has broken that held: the master does not wait long. Who is hung up on again
                    // and again is not to keep it busy.
                    let held = self.has_joined && clock() - since >= LONGEST_PAUSE;
                    pause = if held { Duration::ZERO } else { FIRST_PAUSE };
                    (true, ended)
                }
                Err(ended) => (false, ended),
            };
            let master = dial::name(&self.config.host, self.config.port);
            match ended {
                Ended::Left => return,
                Ended::Over(why) => return self.shared.tell(News::Refused { why }),
                Ended::Refused(why) if !self.has_joined => return self.shared.tell(News::Refused { why }),
                Ended::Lost(why) | Ended::Refused(why) => {
                    let why = format!("the master at {master}: {why}");
                    if had_contact || self.lost.as_ref() != Some(&why) {
                        self.shared.tell(News::Lost { why: why.clone() });
                        self.lost = Some(why);
                    }
                }
            }
            // Not all nodes at once.
            self.wait(pause.mul_f64(0.5 + fastrand::f64()));
            pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        }
    }

    fn wait(&self, time: Duration) {
        let end = (self.config.clock)() + time;
        while self.shared.lock().order == Order::Stay {
            let left = end.saturating_sub((self.config.clock)());
            if left.is_zero() || self.poll(None, left).is_err() {
                return;
            }
        }
    }

    /// Waits for the socket or an order; whether the socket is ready.
    fn poll(&self, socket: Option<BorrowedFd<'_>>, time: Duration) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN)];
        fds.extend(socket.map(|socket| PollFd::new(socket, PollFlags::POLLIN)));
        let time = PollTimeout::try_from(time + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, time) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if fds[0].any() == Some(true) {
            let _ = self.shared.wake.read();
        }
        Ok(fds.get(1).and_then(PollFd::any) == Some(true))
    }

    /// A link whose other end has proved itself.
    fn connect(&mut self) -> Result<(Line, Lines, Seal), Ended> {
        let Join { host, port, job, key, lease, clock } = self.config.clone();
        let shared = Arc::clone(&self.shared);
        let end = clock() + (lease / 6).clamp(Duration::from_millis(500), Duration::from_secs(5));
        let mut left = move || match shared.lock().order {
            Order::Stay => Ok(end.saturating_sub(clock())),
            _ => Err(ErrorKind::Interrupted.into()),
        };
        let name = dial::name(&host, port);
        let line = Line::connect(&host, port, &self.traffic, &mut left)?;
        let Link { mut line, nonces, keyed, rest } = match upgrade(line, &name, &mut left) {
            Ok(link) => link,
            Err(failure) if failure.kind() == ErrorKind::InvalidData => {
                return Err(match what_else(&host, port, &self.traffic, &mut left) {
                    Some(Found::Paddle) => Ended::Refused("Paddle's own launcher serves there".to_owned()),
                    _ => Ended::Lost(format!("something else listens there ({failure})")),
                });
            }
            Err(failure) => return Err(failure.into()),
        };
        match (&key, keyed) {
            (None, true) => {
                return Err(Ended::Refused(format!("the job at {name} has a key: give this node its --job_key")));
            }
            (Some(_), false) => {
                let why =
                    format!("the master at {name} has no key and lets everybody in: start it with the same --job_key");
                return Err(Ended::Refused(why));
            }
            _ => {}
        }
        let mut seal = Seal::new(key.as_deref(), &nonces.0, &nonces.1, Side::Node);
        let (mut lines, mut chunk) = (Lines::default(), vec![0; CHUNK]);
        lines.feed(&rest);
        let theirs = loop {
            match lines.next_said(&mut seal) {
                Ok(Some(FromMaster::Hello { job, instance, lease_ms, .. })) => {
                    self.instance = instance;
                    self.config.lease = Duration::from_millis(lease_ms).max(LEAST_LEASE);
                    break job;
                }
                Ok(Some(_)) => return Err(Ended::Lost("it speaks another language".to_owned())),
                Ok(None) => {}
                Err(super::frame::Broken::Unproved) => {
                    let why = format!("the master at {name} has another key: give all nodes the same --job_key");
                    return Err(Ended::Refused(why));
                }
                Err(broken) => return Err(Ended::Lost(format!("it speaks another language ({broken:?})"))),
            }
            crate::rendezvous::torch_store::client::wait(line.socket.as_fd(), PollFlags::POLLIN, &mut left)?;
            lines.feed(line.read(&mut chunk)?);
        };
        if theirs != job {
            let why = format!("the master at {name} is that of job {theirs}, and this node is of job {job}");
            return Err(Ended::Refused(why));
        }
        // It knows nothing of the rounds that this node was told of, and would begin with their numbers again.
        if self.told_by.as_ref().is_some_and(|first| *first != self.instance) {
            return Err(Ended::Over(format!(
                "the master at {name} was started anew: the job that this node had a part in is over; start this node again"
            )));
        }
        let record = {
            let mut now = self.shared.lock();
            now.told = true;
            now.local = line.socket.local_addr().ok().map(|address| address.ip());
            now.record.clone()
        };
        let hello = FromNode::Hello { version: env!("CARGO_PKG_VERSION").to_owned(), job, id: self.id.clone(), record };
        line.send(&Body::of(&hello).line(&mut seal), &mut left)?;
        Ok((line, lines, seal))
    }

    /// Keeps a link up.
    fn serve(&mut self, (mut line, mut lines, mut seal): (Line, Lines, Seal)) -> Ended {
        let (clock, lease) = (self.config.clock, self.config.lease);
        let mut chunk = vec![0; CHUNK];
        let mut heard = clock();
        // The first at once: its answer means that this node is let in.
        let mut ping = heard;
        loop {
            let now = clock();
            let mut said = Vec::new();
            let order = {
                let mut own = self.shared.lock();
                if !own.told {
                    own.told = true;
                    said.extend(Body::of(&FromNode::Record { record: own.record.clone() }).line(&mut seal));
                }
                own.order
            };
            if now >= ping {
                said.extend(Body::of(&FromNode::Ping).line(&mut seal));
                ping = now + lease / 10;
            }
            if order == Order::Leave {
                said.extend(Body::of(&FromNode::Leave).line(&mut seal));
            }
            if let Err(failure) = line.send(&said, &mut dial::until(clock, heard + lease / 2)) {
                if failure.kind() == ErrorKind::TimedOut {
                    self.old.push(line);
                }
                return failure.into();
            }
            if order != Order::Stay {
                self.hang_up(&line);
                return Ended::Left;
            }
            let time = ping.min(heard + lease / 2).saturating_sub(clock());
            match self.poll(Some(line.socket.as_fd()), time) {
                Ok(true) => match line.read(&mut chunk) {
                    Ok(bytes) => {
                        lines.feed(bytes);
                        heard = clock();
                    }
                    Err(failure) => return failure.into(),
                },
                // Not before it was looked for: this process may have had no time itself.
                Ok(false) if clock() >= heard + lease / 2 => {
                    self.old.push(line);
                    return Ended::Lost(format!(
                        "nothing was heard of it for {:.1} s",
                        (clock() - heard).as_secs_f64()
                    ));
                }
                Ok(false) => continue,
                Err(failure) => return failure.into(),
            }
            loop {
                match lines.next_said(&mut seal) {
                    Ok(None) => break,
                    Ok(Some(FromMaster::Refused { why })) => return Ended::Refused(why),
                    Ok(Some(said)) => self.hear(said),
                    Err(broken) => return Ended::Lost(format!("it breaks the rules ({broken:?})")),
                }
            }
        }
    }

    fn hear(&mut self, said: FromMaster) {
        self.old.clear();
        self.has_joined = true;
        if self.lost.take().is_some() {
            self.shared.tell(News::Back);
        }
        if let FromMaster::State { state, members } = said {
            self.told_by.get_or_insert_with(|| self.instance.clone());
            self.shared.tell(News::State { state, members });
        }
    }

    /// Waits, not long, until the other end has read everything: it hangs up then.
    fn hang_up(&self, line: &Line) {
        let _ = line.socket.shutdown(std::net::Shutdown::Write);
        let end = (self.config.clock)() + GRACE;
        let (mut chunk, mut socket) = (vec![0; CHUNK], &line.socket);
        let mut left = dial::until(self.config.clock, end);
        while crate::rendezvous::torch_store::client::wait(socket.as_fd(), PollFlags::POLLIN, &mut left).is_ok() {
            match io::Read::read(&mut socket, &mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}
