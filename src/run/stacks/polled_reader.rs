//! A reader process whose answer is an event of the event loop.

use crate::run::stacks::collector::{StackCollector, StackReader, StacksUnavailable};
use crate::run::stacks::look::{StackAnswer, StackRequest};
use crate::sys::io::poll::Poller;
use std::io;
use std::time::Duration;

/// At most one reader process.
pub struct PolledReader<'a> {
    reader: &'a StackReader,
    /// What `poll` reports when an answer arrives.
    token: u64,
    collector: Option<StackCollector>,
}

impl<'a> PolledReader<'a> {
    /// No process yet. `token`: reported by the event loop's epoll set when an answer arrives.
    pub fn new(reader: &'a StackReader, token: u64) -> Self {
        Self { reader, token, collector: None }
    }

    /// Whether a process runs.
    pub fn is_reading(&self) -> bool {
        self.collector.is_some()
    }

    /// When the process that runs is given up (`clock::now`).
    pub fn until(&self) -> Option<Duration> {
        self.collector.as_ref().map(StackCollector::until)
    }

    /// Starts a process.
    pub fn start(&mut self, request: &StackRequest, poll: &Poller) -> Result<(), StacksUnavailable> {
        let collector = self.reader.start(request)?;
        poll.readable(&collector, self.token)?;
        self.collector = Some(collector);
        Ok(())
    }

    /// The answer, once; `None`: it is not there yet, or no process runs.
    pub fn receive(&mut self, poll: &Poller) -> io::Result<Option<Result<StackAnswer, StacksUnavailable>>> {
        let Some(answer) = self.collector.as_mut().and_then(|collector| collector.receive().transpose()) else {
            return Ok(None);
        };
        self.end(poll)?;
        Ok(Some(answer))
    }

    /// Ends the process, if one runs.
    pub fn end(&mut self, poll: &Poller) -> io::Result<()> {
        match self.collector.take() {
            Some(collector) => poll.forget(&collector),
            None => Ok(()),
        }
    }
}
