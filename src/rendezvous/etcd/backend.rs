//! The etcd backend as its node uses it. Behind it are a session thread that makes the requests, a lease keep-alive thread, and
//! threads that watch.

use super::config::EtcdConfig;
use super::event::{EventQueue, SessionEvent};
use super::gateway::client::{EtcdCaller, EtcdClient};
use super::gateway::codec::JobKeys;
use super::gateway::wire::WireHandle;
use super::lease_keepalive::LeaseKeepAlive;
use super::questions::EtcdQuestions;
use super::session::{self, SessionTimes};
use super::session_thread::SessionThread;
use crate::net::thread;
use crate::protocol::CoordinatorLogic;
use crate::rendezvous::backend::{BackendEvent, RendezvousBackend};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::questions::{QuestionListener, QuestionSender};
use crossbeam_channel::{Sender, bounded, unbounded};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

/// The shortest lease. Etcd checks leases every half second, and grants none shorter than its election timeout.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);
/// How much longer than its patience `close` may take: for requests that are open, and for reporting the result.
const REQUESTS: Duration = Duration::from_millis(900);
const REPORT: Duration = Duration::from_millis(100);

/// A node's connection with its job at etcd. If it is dropped without `close`, the node's record stays until its lease expires.
pub struct EtcdBackend {
    to_session: Sender<SessionEvent>,
    events: Arc<EventQueue>,
    wires: Vec<Arc<WireHandle>>,
    client: Arc<EtcdClient>,
    /// For questions: the job's keys and this node's id, its lease, its heartbeat timeout.
    node: (JobKeys, String),
    lease: Arc<AtomicI64>,
    heartbeat: Duration,
}

/// Joins a job as the node `id`, which is unique. `make_coordinator` is called if this node becomes the leader. Renewals are noted
/// in `lease`. Errors: an invalid
/// `config`, a TLS file that cannot be read, no resources for a thread.
pub fn join(
    config: &EtcdConfig,
    id: &str,
    record: &str,
    lease: Arc<NodeLease>,
    make_coordinator: impl Fn() -> Box<dyn CoordinatorLogic> + Send + 'static,
) -> io::Result<EtcdBackend> {
    let invalid = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if config.lease < SHORTEST_LEASE {
        return invalid(format!("etcd: a lease of {:?} is too short (minimum {SHORTEST_LEASE:?})", config.lease));
    }
    if config.job.is_empty() {
        return invalid("etcd: the job has no name".to_owned());
    }
    let client = EtcdClient::new(config)?;
    let events = Arc::new(EventQueue::new()?);
    let (to_session, received) = unbounded();
    let (session_caller, keep_alive_caller) = (EtcdCaller::new(&client), EtcdCaller::new(&client));
    let wires = vec![Arc::clone(&session_caller.wire), Arc::clone(&keep_alive_caller.wire)];
    let (job_lease, own_lease) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let keys = JobKeys::new(&config.prefix, &config.job);
    let times = SessionTimes::of(config);
    let keep_alive = LeaseKeepAlive {
        caller: keep_alive_caller,
        heartbeat: times.heartbeat,
        ttl: times.ttl,
        node_lease: lease,
        to_session: to_session.clone(),
        job_lease: Arc::clone(&job_lease),
        own_lease: Arc::clone(&own_lease),
    };
    let session = SessionThread::new(
        (session_caller, Arc::clone(&wires[1])),
        (keys.clone(), id, record),
        times,
        (to_session.clone(), received),
        (Arc::clone(&events), job_lease),
        Box::new(make_coordinator),
    );
    let node = (keys, id.to_owned());
    let backend = EtcdBackend { to_session, events, wires, client, node, lease: own_lease, heartbeat: times.heartbeat };
    thread::spawn("etcd-session", move || session.run())?;
    thread::spawn("etcd-lease", move || keep_alive.run())?;
    Ok(backend)
}

/// Leaves a job for its node of this id and lease, whose processes have ended: the other nodes need not wait until the lease has lapsed.
/// Takes as long as an endpoint may take to answer.
pub fn leave_for(config: &EtcdConfig, id: &str, lease: i64) -> io::Result<()> {
    let client = EtcdClient::new(config)?;
    client.leave_by(client.now() + config.timeout);
    let caller = EtcdCaller::new(&client);
    let keys = JobKeys::new(&config.prefix, &config.job);
    session::leave(&caller, &keys, id, lease).map_err(io::Error::other)
}

impl EtcdBackend {
    /// Bytes sent and received, between TCP and TLS.
    pub fn traffic(&self) -> (u64, u64) {
        (self.client.traffic.sent(), self.client.traffic.received())
    }
}

impl AsFd for EtcdBackend {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (*self.events).as_fd()
    }
}

impl RendezvousBackend for EtcdBackend {
    fn put(&mut self, record: &str) {
        // An error says that the session has ended.
        let _ = self.to_session.send(SessionEvent::Put(record.to_owned()));
    }

    fn take_events(&mut self) -> Vec<BackendEvent> {
        self.events.take()
    }

    fn connect_questions(&mut self, listener: QuestionListener) -> Box<dyn QuestionSender> {
        self.events.questions.set(listener);
        let caller = EtcdCaller::new(&self.client);
        self.wires.push(Arc::clone(&caller.wire));
        let (keys, own_id) = self.node.clone();
        Box::new(EtcdQuestions {
            caller,
            keys,
            own_id,
            lease: Arc::clone(&self.lease),
            patience: self.heartbeat,
            listener: self.events.questions.clone(),
            open: BTreeMap::new(),
            own: None,
        })
    }

    fn close(&mut self, patience: Duration) -> io::Result<()> {
        let (done, wait) = bounded(1);
        // Requests that are open already are not to last longer either.
        self.client.leave_by(self.client.now() + patience + REQUESTS);
        if self.to_session.send(SessionEvent::Close { patience, done }).is_err() {
            return Ok(());
        }
        let why = "etcd has not answered; this node's record stays until its lease expires";
        wait.recv_timeout(patience + REQUESTS + REPORT).map_err(|_| io::Error::new(io::ErrorKind::TimedOut, why))?
    }
}

impl Drop for EtcdBackend {
    fn drop(&mut self) {
        let _ = self.to_session.send(SessionEvent::Stop);
        for wire in &self.wires {
            wire.close();
        }
    }
}
