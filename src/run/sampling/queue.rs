//! Samples on their way from the sampler's thread to the event loop, which writes the journal.

use crate::model::Role;
use crate::report::job_status::RankStatus;
use crate::run::control::rank_facts::RankFacts;
use crate::sys::io::fd;
use crate::sys::io::poll::Poller;
use nix::sys::eventfd::{EfdFlags, EventFd};
use serde::Serialize;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Samples that may wait while the event loop waits for a disk.
const MOST_WAITING: usize = 16;

/// What a rank uses.
#[derive(Clone, Debug, Serialize)]
pub struct RankSample {
    role: Role,
    rank: usize,
    local_rank: usize,
    attempt: u32,
    #[serde(flatten)]
    facts: RankFacts,
}

impl RankSample {
    pub(super) fn new(rank: &RankStatus, facts: RankFacts) -> Self {
        Self { role: rank.role, rank: rank.rank, local_rank: rank.local_rank, attempt: rank.attempt, facts }
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Readable when there is a sample.
    arrival: OnceLock<EventFd>,
    waiting: Mutex<VecDeque<Vec<RankSample>>>,
}

/// The queue; each sample is of all ranks that run. Clones share it. It stays empty without a sampler.
#[derive(Clone, Debug, Default)]
pub struct SampleQueue(Arc<Queue>);

impl SampleQueue {
    /// Makes ready for samples. Returns the descriptor that `push` writes to.
    pub(super) fn open(&self) -> io::Result<RawFd> {
        let arrival = fd::eventfd(EfdFlags::EFD_NONBLOCK)?;
        Ok(self.0.arrival.get_or_init(|| arrival).as_raw_fd())
    }

    /// Has the event loop's epoll set report this token when there is a sample.
    pub fn register(&self, poll: &Poller, token: u64) -> io::Result<()> {
        self.0.arrival.get().map_or(Ok(()), |arrival| poll.readable(arrival, token))
    }

    /// Adds a sample; the oldest is dropped if many wait.
    pub(super) fn push(&self, sample: Vec<RankSample>) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= MOST_WAITING {
            waiting.pop_front();
        }
        waiting.push_back(sample);
        if let Some(arrival) = self.0.arrival.get() {
            // The counter is full only if the event loop has not read it for ages.
            let _ = arrival.write(1);
        }
    }

    /// Takes the samples that wait, in order.
    pub fn take(&self) -> VecDeque<Vec<RankSample>> {
        if let Some(arrival) = self.0.arrival.get() {
            // An error means that nothing has arrived.
            let _ = arrival.read();
        }
        std::mem::take(&mut *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
