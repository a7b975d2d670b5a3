//! The event loop of a server: one thread, one epoll set. A slow, silent or half-open client delays no other.

use super::acceptor::{Accepted, Acceptor};
use super::connection::{Connection, ConnectionState};
use super::connections::{ConnectionId, Connections, FIRST_CONNECTION, ServerLimits};
use super::service::{Handled, Service};
use super::socket::Listener;
use crate::net::deadline::Clock;
use crate::net::traffic::Traffic;
use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

const WAKEUP: u64 = 0;
const FIRST_LISTENER: u64 = 1;

/// Connections accepted before others have their turn.
const ACCEPTED_AT_ONCE: usize = 64;
/// Bytes read at once.
const READ_AT_ONCE: usize = 64 * 1024;
/// Events taken at once.
const EVENTS_AT_ONCE: usize = 256;

/// What other threads send to an event loop.
pub(super) enum LoopCommand<C> {
    Service(C),
    Stop,
}

/// Sends commands to an event loop, whose thread has to run.
pub struct CommandSender<C> {
    commands: Sender<LoopCommand<C>>,
    wakeup: Arc<EventFd>,
}

impl<C> Clone for CommandSender<C> {
    fn clone(&self) -> Self {
        Self { commands: self.commands.clone(), wakeup: Arc::clone(&self.wakeup) }
    }
}

impl<C> CommandSender<C> {
    /// Has the service carry out a command. Errors: the event loop has ended.
    pub fn send(&self, command: C) -> io::Result<()> {
        self.send_to_loop(LoopCommand::Service(command))
    }

    pub(super) fn send_to_loop(&self, command: LoopCommand<C>) -> io::Result<()> {
        self.commands.send(command).map_err(|_| io::Error::other("the server's thread has ended"))?;
        self.wakeup.write(1)?;
        Ok(())
    }
}

/// A server without its thread.
pub struct EventLoop<S: Service> {
    service: S,
    connections: Connections<S::State>,
    clock: Clock,
    /// The time in which this process did not run (`Service::longest_turn`).
    stood_still: Duration,
    /// When the present turn began.
    turn_began: Option<Duration>,
    sender: CommandSender<S::Command>,
    commands: Receiver<LoopCommand<S::Command>>,
    buffer: Vec<u8>,
}

impl<S: Service> EventLoop<S> {
    /// Serves on these sockets.
    pub fn new(
        listeners: Vec<impl Into<Listener>>,
        limits: ServerLimits,
        clock: Clock,
        service: S,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let wakeup = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        epoll.add(&*wakeup, EpollEvent::new(EpollFlags::EPOLLIN, WAKEUP))?;
        let listeners = listeners.into_iter().map(Into::into).collect();
        let acceptor = Acceptor::new(listeners, FIRST_LISTENER, &epoll)?;
        let (sender, commands) = unbounded();
        Ok(Self {
            service,
            connections: Connections::new(epoll, acceptor, limits),
            clock,
            stood_still: Duration::ZERO,
            turn_began: None,
            sender: CommandSender { commands: sender, wakeup },
            commands,
            buffer: vec![0; READ_AT_ONCE],
        })
    }

    /// Bytes sent and received.
    pub fn traffic(&self) -> Traffic {
        self.connections.traffic.clone()
    }

    /// Sends commands to the service, also from threads of its own.
    pub fn sender(&self) -> CommandSender<S::Command> {
        self.sender.clone()
    }

    /// Tells the service that its thread begins.
    pub(super) fn begin(&mut self) {
        let own = [self.connections.epoll.0.as_raw_fd(), self.sender.wakeup.as_fd().as_raw_fd()];
        let own: Vec<RawFd> = own.into_iter().chain(self.connections.acceptor.descriptors()).collect();
        self.service.begin(&own);
    }

    /// Tells the service that its thread ends.
    pub(super) fn end(&mut self) {
        self.service.end(&mut self.connections);
    }

    /// Serves until it is stopped or the service ends it. It can be run again.
    pub(super) fn run(&mut self) -> io::Result<()> {
        loop {
            let now = self.begin_turn();
            let end = self.service.before_wait(&mut self.connections, now);
            self.flush();
            if end.is_break() {
                return Ok(());
            }
            let mut events = [EpollEvent::empty(); EVENTS_AT_ONCE];
            let count = match self.connections.epoll.wait(&mut events, self.timeout()) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.begin_turn();
            for event in &events[..count] {
                match event.data() {
                    WAKEUP => {
                        if self.run_commands().is_break() {
                            return Ok(());
                        }
                    }
                    id @ FIRST_CONNECTION.. => self.turn(id, event.events()),
                    listener => self.accept(listener),
                }
            }
            let now = self.begin_turn();
            if self.connections.acceptor.paused_until().is_some_and(|until| now >= until) {
                self.connections.acceptor.resume(&self.connections.epoll);
            }
            if now >= self.connections.next_deadline {
                self.close_overdue(now);
            }
        }
    }

    /// The time without that in which this process did not run.
    fn now(&self) -> Duration {
        (self.clock)().saturating_sub(self.stood_still)
    }

    /// Begins a turn, before something is found to be overdue. Returns the time.
    fn begin_turn(&mut self) -> Duration {
        let mut now = self.now();
        let longest = self.service.longest_turn();
        if let (Some(longest), Some(began)) = (longest, self.turn_began)
            && now > began + 2 * longest
        {
            self.stood_still += now - (began + longest);
            now = began + longest;
        }
        self.turn_began = longest.map(|_| now);
        now
    }

    fn timeout(&self) -> EpollTimeout {
        let turn_ends = self.turn_began.zip(self.service.longest_turn()).map(|(began, longest)| began + longest);
        let own = [self.connections.acceptor.paused_until(), Some(self.connections.next_deadline), turn_ends];
        match own.into_iter().chain([self.service.next_deadline()]).flatten().min() {
            None | Some(Duration::MAX) => EpollTimeout::NONE,
            // Rounded up: a wait that ends too early would be followed by another.
            Some(time) => {
                let wait = time.saturating_sub(self.now()) + Duration::from_micros(999);
                EpollTimeout::try_from(wait.as_millis().min(60_000) as i32).unwrap_or(EpollTimeout::ZERO)
            }
        }
    }

    fn run_commands(&mut self) -> ControlFlow<()> {
        let _ = self.sender.wakeup.read();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                LoopCommand::Service(command) => self.service.command(&mut self.connections, command)?,
                LoopCommand::Stop => return ControlFlow::Break(()),
            }
        }
        ControlFlow::Continue(())
    }

    fn accept(&mut self, listener: u64) {
        for _ in 0..ACCEPTED_AT_ONCE {
            if !self.connections.has_room() {
                return self.pause_accepting();
            }
            let socket = match self.connections.acceptor.accept(listener) {
                Accepted::Socket(socket) => socket,
                Accepted::Nothing => return,
                Accepted::Aborted => continue,
                Accepted::Exhausted => return self.pause_accepting(),
            };
            if self.connections.is_full() {
                self.connections.evict();
                self.notify_closed();
            }
            let prepared = socket.prepare();
            let state = prepared.and_then(|()| self.service.accept(&socket));
            let Ok(id) = state.and_then(|state| self.connections.add(socket, state)) else { continue };
            let now = self.now();
            self.service.opened(&mut self.connections, id, now);
            // The first request has mostly arrived with the connection.
            self.turn(id, EpollFlags::EPOLLIN);
        }
    }

    fn pause_accepting(&mut self) {
        self.service.full(self.connections.by_id.len());
        self.connections.acceptor.pause(&self.connections.epoll, self.now());
    }

    /// A connection's turn: bytes have arrived, or can be sent.
    fn turn(&mut self, id: ConnectionId, events: EpollFlags) {
        let Some(connection) = self.connections.by_id.get_mut(&id) else { return };
        if events.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            connection.outbox.break_off();
        } else if events.contains(EpollFlags::EPOLLOUT) {
            self.connections.traffic.add_sent(connection.write());
        }
        let mut has_ended = false;
        if !connection.is_deferred {
            match connection.read(&mut self.buffer) {
                Some(count) => self.connections.traffic.add_received(count),
                None => has_ended = true,
            }
        }
        // Requests that have arrived are handled, also if no more will.
        let is_sound = self.handle(id);
        self.connections.flush(id);
        let waits = self.connections.by_id.get(&id).is_some_and(Connection::awaits_answer);
        if !is_sound || has_ended && !waits {
            self.connections.close(id);
        }
        self.flush();
    }

    /// Handles the requests that have arrived on a connection. Whether the connection stays open.
    fn handle(&mut self, id: ConnectionId) -> bool {
        loop {
            let Some(connection) = self.connections.by_id.get_mut(&id) else { return false };
            connection.is_deferred = !connection.state.may_handle(connection.outbox.backlog());
            if connection.is_deferred || connection.is_closing {
                return true;
            }
            let now = self.now();
            match self.service.handle_next(&mut self.connections, id, now) {
                Handled::Request => {}
                Handled::Incomplete => return true,
                Handled::Violation => return false,
            }
        }
    }

    /// Sends what was pushed, and tells the service which connections were closed.
    fn flush(&mut self) {
        while let Some(id) = self.connections.touched.pop_first() {
            self.connections.flush(id);
        }
        self.notify_closed();
    }

    fn notify_closed(&mut self) {
        for (id, connection) in std::mem::take(&mut self.connections.closed) {
            let end = connection.end();
            let now = self.now();
            self.service.closed(id, connection.state, end, now);
        }
    }

    fn close_overdue(&mut self, now: Duration) {
        for id in self.connections.overdue(now) {
            // If this thread was delayed itself, what has arrived meanwhile is read first.
            self.turn(id, EpollFlags::EPOLLIN);
            if self.connections.by_id.get(&id).is_some_and(|connection| now >= connection.deadline) {
                self.service.timed_out(&mut self.connections, id, now);
                self.connections.close(id);
                self.notify_closed();
            }
        }
        self.connections.find_next_deadline();
    }
}
