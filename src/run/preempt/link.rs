//! What reaches the event loop about preemption from other threads: notices of a user, a file or a time, and messages of other nodes;
//! and the way back to those.

use super::message::StopMessage;
use crate::rendezvous::questions::QuestionMessage;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::sys::signals;
use crossbeam_channel::Sender;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Messages that may wait for the event loop. More are lost, and sent again.
const MOST_WAITING: usize = 256;
/// The numbers of messages begin here, far above those of questions.
const FIRST_NUMBER: u64 = 1 << 32;

/// Why the ranks are to stop soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeCause {
    /// SIGTERM to this launcher.
    Signal,
    /// `rlaunch preempt`.
    User,
    /// The file of `--preempt_file` is there.
    File,
    /// The time of the scheduler's job is nearly over.
    TimeLimit,
    /// `rlaunch stop`.
    Stop,
    /// A notice to the launcher of another node.
    OtherNode,
}

impl NoticeCause {
    /// The word for it in `events.jsonl`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Signal => "signal",
            Self::User => "user",
            Self::File => "file",
            Self::TimeLimit => "time_limit",
            Self::Stop => "stop",
            Self::OtherNode => "other_node",
        }
    }
}

/// A notice that the ranks are to stop soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Why.
    pub cause: NoticeCause,
    /// When ranks that have not ended by then get SIGTERM (`clock::now`).
    pub ends: Duration,
    /// When those that still run get SIGKILL; `None`: the job's grace period later.
    pub kills: Option<Duration>,
}

#[derive(Debug, Default)]
struct Shared {
    /// A notice that the event loop has not seen.
    requested: Mutex<Option<Notice>>,
    /// The notice that holds, through all rounds.
    standing: Mutex<Option<Notice>>,
    /// A user stops the job, here or on another node: it is not preempted.
    is_users_stop: AtomicBool,
    messages: Mutex<Vec<(String, StopMessage)>>,
    /// What this node tells nodes that have not heard of the decision, once its own ranks have ended.
    last_message: Mutex<Option<StopMessage>>,
    /// To the other nodes, where they can be reached.
    others: OnceLock<Sender<QuestionMessage>>,
    /// This node receives what others send to it alone.
    receives_own: AtomicBool,
    sent: AtomicU64,
}

/// The connection of the event loop with the threads that hear of preemption. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct PreemptLink(Arc<Shared>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PreemptLink {
    /// The ranks are to stop soon: wakes the event loop.
    pub fn request(&self, notice: Notice) {
        lock(&self.0.requested).get_or_insert(notice);
        signals::wake();
    }

    /// Takes what `request` has noted.
    pub fn take_request(&self) -> Option<Notice> {
        lock(&self.0.requested).take()
    }

    /// The notice that holds.
    pub fn notice(&self) -> Option<Notice> {
        *lock(&self.0.standing)
    }

    /// This notice holds from now on.
    pub fn set_notice(&self, notice: Notice) {
        *lock(&self.0.standing) = Some(notice);
    }

    /// A user stops the job (`rlaunch stop`): whatever else there was a notice of, it is not preempted. Returns whether that is new.
    pub fn note_users_stop(&self) -> bool {
        !self.0.is_users_stop.swap(true, Ordering::SeqCst)
    }

    /// The outcome of a job whose ranks have stopped at a step, or that has ended otherwise: a user's stop is no preemption.
    pub fn final_outcome(&self, outcome: JobOutcome) -> JobOutcome {
        match outcome {
            JobOutcome::Preempted(_) if self.is_users_stop() => JobOutcome::Stopped(libc::SIGTERM),
            outcome => outcome,
        }
    }

    /// Whether a user has stopped the job, here or on another node.
    pub fn is_users_stop(&self) -> bool {
        self.0.is_users_stop.load(Ordering::SeqCst)
    }

    /// The ranks of this node have ended, and no event loop hears of messages until the next round.
    pub fn conclude(&self, last_message: StopMessage) {
        *lock(&self.0.last_message) = Some(last_message);
    }

    /// Another node has sent a message: wakes the event loop.
    pub fn hear(&self, node: String, message: StopMessage) {
        if let Some(last) = lock(&self.0.last_message).filter(|last| last.is_news_to(&message)) {
            return self.send(&last, None);
        }
        let mut messages = lock(&self.0.messages);
        if messages.len() < MOST_WAITING {
            messages.push((node, message));
            signals::wake();
        }
    }

    /// Takes the messages of other nodes, each with the id of its node.
    pub fn take_messages(&self) -> Vec<(String, StopMessage)> {
        std::mem::take(&mut *lock(&self.0.messages))
    }

    /// Messages to other nodes go here. The first call counts.
    pub fn connect(&self, others: Sender<QuestionMessage>) {
        let _ = self.0.others.set(others);
        // The event loop may want to receive them.
        signals::wake();
    }

    /// This node receives what others send to it alone, from now on. To be called in each turn of the event loop: before `connect`,
    /// and while too many messages wait, it does nothing.
    pub fn receive_own(&self) {
        if !self.0.receives_own.load(Ordering::Relaxed)
            && let Some(others) = self.0.others.get()
            && others.try_send(QuestionMessage::ReceiveOwn).is_ok()
        {
            self.0.receives_own.store(true, Ordering::Relaxed);
        }
    }

    /// Whether other nodes can be reached.
    pub fn is_connected(&self) -> bool {
        self.0.others.get().is_some()
    }

    /// Sends a message to the node with this id, or to all other nodes. What cannot be sent at once is lost.
    pub fn send(&self, message: &StopMessage, to: Option<String>) {
        if let Some(others) = self.0.others.get() {
            let number = FIRST_NUMBER + self.0.sent.fetch_add(1, Ordering::Relaxed);
            let _ = others.try_send(QuestionMessage::Tell { number, to, text: message.encode() });
        }
    }
}
