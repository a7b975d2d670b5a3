//! The tie itself: what its node holds. Behind it, a worker that talks, a keeper of the lease, and watches.

use super::Etcd;
use super::client::{Caller, Client};
use super::event::Event;
use super::keeper::Keeper;
use super::wire::Line;
use super::words::Keys;
use super::worker::Worker;
use crate::rendezvous::tie::{Decide, News, Tie};
use crossbeam_channel::{Sender, bounded, unbounded};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tracing::Dispatch;
use tracing::dispatcher::{get_default, with_default};

/// The shortest lease. Etcd looks at leases every half second, and grants none below its election's time.
const SHORTEST: Duration = Duration::from_secs(2);
/// How much longer than its patience closing may take: what is still to be asked then, and to be told of that.
const ASKING: Duration = Duration::from_millis(900);
const TELLING: Duration = Duration::from_millis(100);

/// News that wait, and the bell that rings for them.
pub(super) struct Outbox {
    news: Mutex<VecDeque<News>>,
    bell: EventFd,
}

impl Outbox {
    pub(super) fn tell(&self, news: News) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push_back(news);
        // It is full after 2^64 - 2 news.
        let _ = self.bell.write(1);
    }
}

/// A node's tie by etcd. Dropped without `close`, it leaves like a node that dies: its lease runs out.
pub struct EtcdTie {
    events: Sender<Event>,
    outbox: Arc<Outbox>,
    lines: [Arc<Line>; 2],
    client: Arc<Client>,
}

/// Ties this node, whose id no other has, to the others of the job; `decide` makes who decides, should this node coordinate.
/// Errors: what `config` says cannot be, a file for TLS cannot be read, there is no more room for a thread.
pub fn tie(
    config: &Etcd,
    id: &str,
    record: &str,
    decide: impl Fn() -> Box<dyn Decide> + Send + 'static,
) -> io::Result<EtcdTie> {
    let wrong = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if config.lease < SHORTEST {
        return wrong(format!("etcd: a lease of {:?} is too short: {SHORTEST:?} at least", config.lease));
    }
    if config.job.is_empty() {
        return wrong("etcd: the job has no name".to_owned());
    }
    let client = Client::new(config)?;
    let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let outbox = Arc::new(Outbox { news: Mutex::default(), bell });
    let (events, received) = unbounded();
    let (worker_s, keeper_s) = (Caller::new(&client), Caller::new(&client));
    let lines = [Arc::clone(&worker_s.line), Arc::clone(&keeper_s.line)];
    let jobs = Arc::new(AtomicI64::new(0));
    let keeper = Keeper { caller: keeper_s, time: config.lease, events: events.clone(), jobs: Arc::clone(&jobs) };
    let worker = Worker::new(
        (worker_s, Arc::clone(&lines[1])),
        (Keys::new(&config.prefix, &config.job), id, record),
        config.lease,
        (events.clone(), received),
        (Arc::clone(&outbox), jobs),
        Box::new(decide),
    );
    let tie = EtcdTie { events, outbox, lines, client };
    spawn("etcd-worker", move || worker.run())?;
    spawn("etcd-keeper", move || keeper.run())?;
    Ok(tie)
}

/// A thread that takes no signals.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let signals = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let messages = get_default(Dispatch::clone);
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || with_default(&messages, run));
    signals.thread_set_mask()?;
    spawned.map(drop)
}

impl EtcdTie {
    /// Bytes sent and received, below TLS or its lack, above TCP.
    pub fn traffic(&self) -> (u64, u64) {
        let traffic = &self.client.traffic;
        (traffic.sent.load(Ordering::Relaxed), traffic.received.load(Ordering::Relaxed))
    }
}

impl AsFd for EtcdTie {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outbox.bell.as_fd()
    }
}

impl Tie for EtcdTie {
    fn put(&mut self, record: &str) {
        // Where the worker has ended, the tie is closed.
        let _ = self.events.send(Event::Put(record.to_owned()));
    }

    fn heard(&mut self) -> Vec<News> {
        let mut news = self.outbox.news.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing to read: nothing is new.
        let _ = self.outbox.bell.read();
        news.drain(..).collect()
    }

    fn close(&mut self, patience: Duration) -> io::Result<()> {
        let (done, wait) = bounded(1);
        // What is asked already is not to last longer either.
        self.client.leave_by(self.client.now() + patience + ASKING);
        if self.events.send(Event::Close { patience, done }).is_err() {
            return Ok(());
        }
        let why = "etcd has not answered; this node's record goes when its lease runs out";
        wait.recv_timeout(patience + ASKING + TELLING).map_err(|_| io::Error::new(io::ErrorKind::TimedOut, why))?
    }
}

impl Drop for EtcdTie {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Stop);
        for line in &self.lines {
            line.close();
        }
    }
}
