//! A running server: the thread of an event loop.

use super::event_loop::{CommandSender, EventLoop, LoopCommand};
use super::service::Service;
use crate::net::thread;
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use std::fmt;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::error;

/// A running server. Dropping it stops it.
pub struct ServerThread<S: Service> {
    sender: CommandSender<S::Command>,
    /// It returns the event loop, unless that failed.
    thread: Option<JoinHandle<Option<EventLoop<S>>>>,
    /// Closes when the thread ends.
    ended: Receiver<()>,
}

impl<S: Service> fmt::Debug for ServerThread<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerThread").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl<S: Service> ServerThread<S> {
    /// Serves in a thread of this name, which takes no signals.
    pub fn start(name: &'static str, mut event_loop: EventLoop<S>) -> io::Result<Self> {
        let sender = event_loop.sender();
        let (guard, ended) = bounded::<()>(0);
        let thread = thread::spawn(name, move || {
            let _guard = guard;
            event_loop.begin();
            match event_loop.run() {
                Ok(()) => {
                    event_loop.end();
                    Some(event_loop)
                }
                // The event loop is dropped, and with it commands that wait: their senders do not wait for ever.
                Err(failure) => {
                    error!("the {name} server has stopped: {failure}");
                    None
                }
            }
        })?;
        Ok(Self { sender, thread: Some(thread), ended })
    }

    /// Has the service carry out a command. Errors: the thread has ended.
    pub fn send(&self, command: S::Command) -> io::Result<()> {
        self.sender.send(command)
    }

    /// Waits until the thread ends by itself, for `timeout` at most. Whether it has ended.
    pub fn wait_end(&self, timeout: Duration) -> bool {
        self.ended.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }

    /// Stops the thread, and returns the event loop with its connections. `None`: it has failed, or was stopped before.
    pub fn stop(&mut self) -> Option<EventLoop<S>> {
        let thread = self.thread.take()?;
        // A thread that has ended by itself takes no command.
        let _ = self.sender.send_to_loop(LoopCommand::Stop);
        thread.join().ok().flatten()
    }
}

impl<S: Service> Drop for ServerThread<S> {
    fn drop(&mut self) {
        self.stop();
    }
}
