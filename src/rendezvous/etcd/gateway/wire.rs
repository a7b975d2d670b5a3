//! The transport below HTTP: a connection that another thread can close, with or without TLS. It counts bytes, and ignores proxies
//! that the environment names.

use super::tls::TlsFiles;
use crate::net::tcp;
use crate::net::traffic::Traffic;
use crate::sys::clock;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Stream, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport};

/// The connection of one thread. Other threads can make it reconnect, or close it for good.
#[derive(Debug)]
pub struct WireHandle {
    closed: Mutex<bool>,
    closed_changed: Condvar,
    socket: Mutex<Weak<TcpStream>>,
    traffic: Traffic,
    /// How long bytes may take while no stream is open.
    patience: Duration,
    /// Whether a stream is open: silence is no error.
    pub streams: AtomicBool,
    /// The index of the endpoint that the stream comes from.
    pub endpoint: AtomicUsize,
}

impl WireHandle {
    pub fn new(traffic: Traffic, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            closed: Mutex::new(false),
            closed_changed: Condvar::new(),
            socket: Mutex::new(Weak::new()),
            traffic,
            patience,
            streams: AtomicBool::new(false),
            endpoint: AtomicUsize::new(0),
        })
    }

    fn now(&self) -> Duration {
        clock::now()
    }

    pub fn is_closed(&self) -> bool {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the open request or stream.
    pub fn disconnect(&self) {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(socket) = socket {
            // It may have ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Closes it for good.
    pub fn close(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.closed_changed.notify_all();
        self.disconnect();
    }

    /// Waits for this time, or until it is closed. Whether it is closed.
    pub fn pause(&self, time: Duration) -> bool {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.closed_changed.wait_timeout_while(closed, time, |closed| !*closed);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Connects, for ureq.
#[derive(Debug)]
pub struct WireConnector {
    pub wire: Arc<WireHandle>,
    pub tls: Option<Arc<TlsFiles>>,
}

impl Connector<()> for WireConnector {
    type Out = Wire;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Wire>, ureq::Error> {
        let limit = details.timeout.not_zero().map_or(self.wire.patience, |limit| *limit);
        let until = self.wire.now() + limit;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        // All addresses share the time.
        let connected = (1..).zip(details.addrs.iter().rev()).collect::<Vec<_>>().into_iter().rev().find_map(
            |(waiting, address): (u32, _)| {
                let share = until.saturating_sub(self.wire.now()) / waiting;
                let stream = TcpStream::connect_timeout(address, share.max(Duration::from_millis(1)));
                stream.map_err(|error| last = error).ok()
            },
        );
        let stream = Arc::new(connected.ok_or(last)?);
        stream.set_nodelay(true)?;
        // The loss of the other machine is noticed, also on a silent stream.
        tcp::set_keepalive(&stream, 5, 2, 3)?;
        *self.wire.socket.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&stream);
        if self.wire.is_closed() {
            return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
        }
        let mut socket = CountedSocket { stream, wire: Arc::clone(&self.wire), until: Some(until) };
        let way = match &self.tls {
            Some(files) if details.needs_tls() => {
                let host = details.uri.host().unwrap_or_default();
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host).map_err(io::Error::other)?;
                let mut session = ClientConnection::new(files.latest(), name).map_err(io::Error::other)?;
                while session.is_handshaking() {
                    let done = session.complete_io(&mut socket);
                    let add_alert = |error| find_alert(&mut session, &mut socket, error);
                    done.map_err(add_alert).map_err(|error| to_ureq_error(error, details.timeout))?;
                }
                WireStream::Tls(Box::new(StreamOwned::new(session, socket)))
            }
            _ => WireStream::Plain(socket),
        };
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Wire { way, buffers, wire: Arc::clone(&self.wire) }))
    }
}

/// A socket that counts bytes.
struct CountedSocket {
    stream: Arc<TcpStream>,
    wire: Arc<WireHandle>,
    /// The deadline of all reads and writes of one step.
    until: Option<Duration>,
}

impl CountedSocket {
    /// The time that is left.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.map(|until| until.saturating_sub(self.wire.now())) {
            Some(Duration::ZERO) => Err(io::Error::from(io::ErrorKind::TimedOut)),
            left => Ok(left),
        }
    }
}

impl Read for CountedSocket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        let count = (&*self.stream).read(bytes)?;
        self.wire.traffic.add_received(count);
        Ok(count)
    }
}

impl Write for CountedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        let count = (&*self.stream).write(bytes)?;
        self.wire.traffic.add_sent(count);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum WireStream {
    Plain(CountedSocket),
    Tls(Box<StreamOwned<ClientConnection, CountedSocket>>),
}

/// A connection.
pub struct Wire {
    way: WireStream,
    buffers: LazyBuffers,
    wire: Arc<WireHandle>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("tls", &self.is_tls()).finish_non_exhaustive()
    }
}

impl Wire {
    fn socket(&self) -> &CountedSocket {
        match &self.way {
            WireStream::Plain(socket) => socket,
            WireStream::Tls(stream) => &stream.sock,
        }
    }

    fn limit(&mut self, timeout: NextTimeout) {
        let patience = (!self.wire.streams.load(Ordering::Relaxed)).then_some(self.wire.patience);
        let limit = timeout.not_zero().map(|limit| *limit).or(patience);
        let until = limit.map(|limit| self.wire.now() + limit);
        match &mut self.way {
            WireStream::Plain(socket) => socket.until = until,
            WireStream::Tls(stream) => stream.sock.until = until,
        }
    }
}

fn to_ureq_error(error: io::Error, timeout: NextTimeout) -> ureq::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ureq::Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}

/// The TLS alert that the server sent before it closed the connection, if there is one: with TLS 1.3 it checks a client's
/// certificate after the handshake of the client (RFC 8446, 2).
fn find_alert(session: &mut ClientConnection, socket: &mut CountedSocket, error: io::Error) -> io::Error {
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
            WireStream::Plain(socket) => socket.write_all(output),
            WireStream::Tls(stream) => {
                let StreamOwned { conn, sock } = &mut **stream;
                let written = Stream::new(conn, sock).write_all(output);
                written.map_err(|error| find_alert(conn, sock, error))
            }
        };
        written.map_err(|error| to_ureq_error(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.limit(timeout);
        let input = self.buffers.input_append_buf();
        let read = match &mut self.way {
            WireStream::Plain(socket) => socket.read(input),
            WireStream::Tls(stream) => stream.read(input),
        };
        let amount = read.map_err(|error| to_ureq_error(error, timeout))?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// Whether it can be used for another request: no unexpected bytes have arrived, and it is not closed.
    fn is_open(&mut self) -> bool {
        let stream = &self.socket().stream;
        let silent = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        stream.set_nonblocking(true).is_ok()
            && stream.peek(&mut [0]).is_err_and(silent)
            && stream.set_nonblocking(false).is_ok()
    }

    fn is_tls(&self) -> bool {
        matches!(self.way, WireStream::Tls(_))
    }
}
