//! A look at the ranks' stacks on a thread of its own, which wakes the event loop at the end. Not on the event loop: the start of the
//! reader process waits where the interpreter is on a disk that hangs, as that of a job that stands still may be.

use crate::net::thread;
use crate::run::stacks::READER_THREAD;
use crate::run::stacks::collector::{StackCollector, StackReader, StacksUnavailable};
use crate::run::stacks::look::{StackAnswer, StackRequest};
use crate::sys::clock;
use crate::sys::process::current;
use crate::sys::signals;
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use std::time::Duration;
use tracing::debug;

type Answer = Result<StackAnswer, StacksUnavailable>;

/// How much longer than the reader process the thread may take.
const MARGIN: Duration = Duration::from_secs(5);

/// At most one look at a time.
pub struct PolledReader<'a> {
    reader: &'a StackReader,
    look: Option<Look>,
}

struct Look {
    answer: Receiver<Answer>,
    /// When its answer is no longer waited for (`clock::now`); `None`: it is not any more.
    until: Option<Duration>,
}

impl<'a> PolledReader<'a> {
    /// No look yet.
    pub fn new(reader: &'a StackReader) -> Self {
        Self { reader, look: None }
    }

    /// Until when an answer is waited for (`clock::now`), if one is.
    pub fn until(&self) -> Option<Duration> {
        self.look.as_ref().and_then(|look| look.until)
    }

    /// Begins a look, unless an earlier one that is no longer waited for is not over.
    pub fn start(&mut self, request: StackRequest) -> Result<(), StacksUnavailable> {
        if self.look.as_ref().is_some_and(|look| matches!(look.answer.try_recv(), Err(TryRecvError::Empty))) {
            return Err(StacksUnavailable::Busy);
        }
        let until = clock::now() + self.reader.patience(&request) + MARGIN;
        let (sender, answer) = bounded(1);
        let reader = self.reader.clone();
        // It ends when the reader process answers, has used up its patience and is killed, or the disk answers.
        drop(thread::spawn(READER_THREAD, move || {
            // No copies of lifelines: the ranks of a launcher that is killed would live until this thread ends.
            if let Err(error) = current::keep_descriptors(&[signals::wake_descriptor()]) {
                debug!("the thread that looks at stacks has no table of descriptors of its own: {error}");
            }
            let _ = sender.send(reader.start(&request).and_then(StackCollector::wait));
            signals::wake();
        })?);
        self.look = Some(Look { answer, until: Some(until) });
        Ok(())
    }

    /// The answer, once; `None`: it is not there yet, or none is waited for.
    pub fn receive(&mut self) -> Option<Answer> {
        let look = self.look.as_mut()?;
        let until = look.until?;
        let answer = match look.answer.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Disconnected) => Err(StacksUnavailable::Failed),
            Err(TryRecvError::Empty) if clock::now() >= until => {
                look.until = None;
                return Some(Err(StacksUnavailable::Busy));
            }
            Err(TryRecvError::Empty) => return None,
        };
        // The next look may begin before the thread of this one has ended.
        self.look = None;
        Some(answer)
    }

    /// Waits for no answer any more.
    pub fn give_up(&mut self) {
        if let Some(look) = &mut self.look {
            look.until = None;
        }
    }
}
