//! The bytes below HTTP: a connection that another thread can hang up, counted, with TLS or without. Proxies that the
//! environment names are not asked: what nodes find each other by is not the web.

use nix::sys::socket::{setsockopt, sockopt};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Stream, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport};

/// Bytes that have gone and come.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
}

/// What one thread talks by. Others may hang it up, or close it for good.
#[derive(Debug)]
pub(super) struct Line {
    closed: Mutex<bool>,
    bell: Condvar,
    socket: Mutex<Weak<TcpStream>>,
    traffic: Arc<Traffic>,
    began: Instant,
    /// How long bytes may take while no stream has begun.
    patience: Duration,
    /// Whether silence is all right.
    pub(super) streams: AtomicBool,
    /// The number of the endpoint that it is tied to.
    pub(super) endpoint: AtomicUsize,
}

impl Line {
    pub(super) fn new(traffic: Arc<Traffic>, patience: Duration, began: Instant) -> Arc<Self> {
        Arc::new(Self {
            closed: Mutex::new(false),
            bell: Condvar::new(),
            socket: Mutex::new(Weak::new()),
            traffic,
            began,
            patience,
            streams: AtomicBool::new(false),
            endpoint: AtomicUsize::new(0),
        })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what it is at.
    pub(super) fn hang_up(&self) {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(socket) = socket {
            // It may have ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// For good.
    pub(super) fn close(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
        self.hang_up();
    }

    /// Waits so long, or until it is closed: whether it is.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.bell.wait_timeout_while(closed, time, |closed| !*closed);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Makes connections.
#[derive(Debug)]
pub(super) struct Wires {
    pub(super) line: Arc<Line>,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl Connector<()> for Wires {
    type Out = Wire;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Wire>, ureq::Error> {
        let limit = details.timeout.not_zero().map_or(self.line.patience, |limit| *limit);
        let until = self.line.now() + limit;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        // The time is for all addresses together.
        let connected = (1..).zip(details.addrs.iter().rev()).collect::<Vec<_>>().into_iter().rev().find_map(
            |(waiting, address): (u32, _)| {
                let share = until.saturating_sub(self.line.now()) / waiting;
                let stream = TcpStream::connect_timeout(address, share.max(Duration::from_millis(1)));
                stream.map_err(|error| last = error).ok()
            },
        );
        let stream = Arc::new(connected.ok_or(last)?);
        stream.set_nodelay(true)?;
        // A peer that went without a word is noticed even where nothing is said for long.
        setsockopt(&stream, sockopt::KeepAlive, &true).map_err(io::Error::from)?;
        setsockopt(&stream, sockopt::TcpKeepIdle, &5).map_err(io::Error::from)?;
        setsockopt(&stream, sockopt::TcpKeepInterval, &2).map_err(io::Error::from)?;
        setsockopt(&stream, sockopt::TcpKeepCount, &3).map_err(io::Error::from)?;
        *self.line.socket.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&stream);
        if self.line.is_closed() {
            return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
        }
        let mut socket = Socket { stream, line: Arc::clone(&self.line), until: Some(until) };
        let way = match &self.tls {
            Some(config) if details.needs_tls() => {
                let host = details.uri.host().unwrap_or_default();
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host).map_err(io::Error::other)?;
                let mut session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
                while session.is_handshaking() {
                    let done = session.complete_io(&mut socket);
                    let heard = |error| why_hung_up(&mut session, &mut socket, error);
                    done.map_err(heard).map_err(|error| told(error, details.timeout))?;
                }
                Way::Tls(Box::new(StreamOwned::new(session, socket)))
            }
            _ => Way::Plain(socket),
        };
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Wire { way, buffers, line: Arc::clone(&self.line) }))
    }
}

/// A socket that counts.
struct Socket {
    stream: Arc<TcpStream>,
    line: Arc<Line>,
    /// When it is to be done, in however many pieces.
    until: Option<Duration>,
}

impl Socket {
    /// How long it may take still.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.map(|until| until.saturating_sub(self.line.now())) {
            Some(Duration::ZERO) => Err(io::Error::from(io::ErrorKind::TimedOut)),
            left => Ok(left),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        let count = (&*self.stream).read(bytes)?;
        self.line.traffic.received.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        let count = (&*self.stream).write(bytes)?;
        self.line.traffic.sent.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Way {
    Plain(Socket),
    Tls(Box<StreamOwned<ClientConnection, Socket>>),
}

/// A connection.
pub(super) struct Wire {
    way: Way,
    buffers: LazyBuffers,
    line: Arc<Line>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("tls", &self.is_tls()).finish_non_exhaustive()
    }
}

impl Wire {
    fn socket(&self) -> &Socket {
        match &self.way {
            Way::Plain(socket) => socket,
            Way::Tls(stream) => &stream.sock,
        }
    }

    fn limit(&mut self, timeout: NextTimeout) {
        let patience = (!self.line.streams.load(Ordering::Relaxed)).then_some(self.line.patience);
        let limit = timeout.not_zero().map(|limit| *limit).or(patience);
        let until = limit.map(|limit| self.line.now() + limit);
        match &mut self.way {
            Way::Plain(socket) => socket.until = until,
            Way::Tls(stream) => stream.sock.until = until,
        }
    }
}

fn told(error: io::Error, timeout: NextTimeout) -> ureq::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ureq::Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}

/// What the server said before it hung up, if it did: with TLS 1.3 it looks at a client's certificate once the client has gone
/// on (RFC 8446, 2).
fn why_hung_up(session: &mut ClientConnection, socket: &mut Socket, error: io::Error) -> io::Error {
    if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
        return error;
    }
    while matches!(session.read_tls(socket), Ok(1..)) {
        if let Err(alert) = session.process_new_packets() {
            return io::Error::new(io::ErrorKind::InvalidData, alert);
        }
    }
    error
}

impl Transport for Wire {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.limit(timeout);
        let output = &self.buffers.output()[..amount];
        let written = match &mut self.way {
            Way::Plain(socket) => socket.write_all(output),
            Way::Tls(stream) => {
                let StreamOwned { conn, sock } = &mut **stream;
                let written = Stream::new(conn, sock).write_all(output);
                written.map_err(|error| why_hung_up(conn, sock, error))
            }
        };
        written.map_err(|error| told(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.limit(timeout);
        let input = self.buffers.input_append_buf();
        let read = match &mut self.way {
            Way::Plain(socket) => socket.read(input),
            Way::Tls(stream) => stream.read(input),
        };
        let amount = read.map_err(|error| told(error, timeout))?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// Whether it can be used for another request: nothing has come that nobody asked for, the end neither.
    fn is_open(&mut self) -> bool {
        let stream = &self.socket().stream;
        let silent = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        stream.set_nonblocking(true).is_ok()
            && stream.peek(&mut [0]).is_err_and(silent)
            && stream.set_nonblocking(false).is_ok()
    }

    fn is_tls(&self) -> bool {
        matches!(self.way, Way::Tls(_))
    }
}
