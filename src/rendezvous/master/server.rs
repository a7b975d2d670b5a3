//! The master's server, as its owner sees it.

use super::hub::Hub;
use super::{Clock, Traffic};
use crate::rendezvous::tie::Decide;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded, unbounded};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tracing::dispatcher::{get_default, with_default};
use tracing::{Dispatch, error};

/// For whom a server serves, and how.
#[derive(Clone)]
pub struct Config {
    /// The job's name.
    pub job: String,
    /// What everybody has to prove to know, if anything.
    pub key: Option<String>,
    /// A node that has said nothing for so long has gone.
    pub lease: Duration,
    /// Connections at most. When there are more, those that are no links go, the oldest first.
    pub connections: usize,
    /// The clock.
    pub clock: Clock,
}

impl Config {
    /// Without a key, and with as many connections as the usual limit of descriptors, 1024, allows beside other files.
    pub fn new(job: &str, lease: Duration, clock: Clock) -> Self {
        Self { job: job.to_owned(), key: None, lease, connections: 768, clock }
    }
}

pub(super) enum Order {
    /// Serve until nobody needs it, or until then.
    Close(Duration),
    Stop,
}

/// A running server. Dropping it ends it at once.
#[derive(Debug)]
pub struct Server {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
    traffic: Traffic,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
    ended: crossbeam_channel::Receiver<()>,
}

/// Serves on these sockets, in a thread that takes no signals, and has `decide` decide.
pub fn serve(listeners: Vec<TcpListener>, config: Config, decide: Box<dyn Decide>) -> io::Result<Server> {
    let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    let (orders, received) = unbounded();
    let (ends, ended) = bounded::<()>(0);
    let (traffic, clock) = (Traffic::default(), config.clock);
    let mut hub = Hub::new(listeners, config, decide, Arc::clone(&bell), received, traffic.clone())?;
    let messages = get_default(Dispatch::clone);
    let run = move || {
        let _ends = ends;
        with_default(&messages, || {
            if let Err(failure) = hub.run() {
                error!("the master cannot go on: {failure}");
            }
        });
    };
    let signals = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = thread::Builder::new().name("master".to_owned()).spawn(run);
    signals.thread_set_mask()?;
    Ok(Server { orders, bell, traffic, clock, thread: Some(thread?), ended })
}

impl Server {
    /// Serves on until the job is over and nobody who had a part in it is here, or nobody is here at all; for `patience` at
    /// most. Then it ends. Whether it ended in time.
    pub fn close(&mut self, patience: Duration) -> bool {
        self.order(Order::Close((self.clock)() + patience));
        // The thread keeps the time; this is for one that cannot.
        let is_over = self.ended.recv_timeout(patience + Duration::from_secs(5));
        let in_time = is_over == Err(RecvTimeoutError::Disconnected);
        self.end();
        in_time
    }

    /// Bytes that have come and gone.
    pub fn traffic(&self) -> (u64, u64) {
        self.traffic.total()
    }

    fn order(&self, order: Order) {
        // Without a thread there is nothing left to order.
        let _ = self.orders.send(order);
        let _ = self.bell.write(1);
    }

    fn end(&mut self) {
        self.order(Order::Stop);
        // It has no way to panic; if it did, there is nobody to tell.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
