//! How the master's clients reach it: never without asking how long, and never by a proxy.

use super::Traffic;
use super::http::{self, Broken, Message, Parser};
use crate::rendezvous::torch_store::client::{Client, Left, wait};
use nix::poll::PollFlags;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

/// A connection to a master, and what has been sent and read by it.
#[derive(Debug)]
pub struct Line {
    pub socket: TcpStream,
    pub traffic: Traffic,
}

/// How long is left until a time.
pub fn until(clock: super::Clock, end: Duration) -> impl FnMut() -> io::Result<Duration> {
    move || Ok(end.saturating_sub(clock()))
}

/// The shorter of two times.
pub fn at_most<'a>(
    clock: super::Clock,
    limit: Duration,
    left: Left<'a>,
) -> impl FnMut() -> io::Result<Duration> + use<'a> {
    let end = clock() + limit;
    move || Ok(left()?.min(end.saturating_sub(clock())))
}

/// An address for people, and for HTTP.
pub fn name(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl Line {
    /// Connects.
    pub fn connect(host: &str, port: u16, traffic: &Traffic, left: Left<'_>) -> io::Result<Self> {
        Ok(Self { socket: Client::try_connect(host, port, left)?, traffic: traffic.clone() })
    }

    /// Sends all of it.
    pub fn send(&mut self, mut bytes: &[u8], left: Left<'_>) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(count) => {
                    self.traffic.went(count);
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(self.socket.as_fd(), PollFlags::POLLOUT, left)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What has come, once; nothing if nothing has. It does not wait.
    pub fn read<'a>(&mut self, chunk: &'a mut [u8]) -> io::Result<&'a [u8]> {
        match self.socket.read(chunk) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "it has hung up")),
            Ok(count) => {
                self.traffic.came(count);
                Ok(&chunk[..count])
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(&[]),
            Err(error) => Err(error),
        }
    }

    /// The answer to what was sent, and what has come behind it.
    pub fn answer(&mut self, left: Left<'_>) -> io::Result<(Message, Vec<u8>)> {
        let mut parser = Parser::of_answers();
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let broken = |broken: Broken| io::Error::new(ErrorKind::InvalidData, format!("no answer: {broken:?}"));
            if let Some(message) = parser.next_message().map_err(broken)? {
                return Ok((message, parser.rest()));
            }
            wait(self.socket.as_fd(), PollFlags::POLLIN, left)?;
            parser.feed(self.read(&mut chunk)?);
        }
    }
}

/// One request, by a connection of its own.
pub fn ask(
    (host, port): (&str, u16),
    (method, path, body, more): (&str, &str, &[u8], &str),
    traffic: &Traffic,
    left: Left<'_>,
) -> io::Result<Message> {
    let mut line = Line::connect(host, port, traffic, left)?;
    let more = format!("Connection: close\r\n{more}");
    line.send(&http::request(method, path, &name(host, port), body, &more), left)?;
    Ok(line.answer(left)?.0)
}
