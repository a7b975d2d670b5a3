//! Client connections to a master. They never use a proxy, and never wait longer than their caller allows.

use crate::net::deadline::TimeLeft;
use crate::net::tcp;
use crate::net::traffic::Traffic;
use crate::rendezvous::master::http;
use crate::rendezvous::master::http::{HttpMessage, HttpParser};
use nix::poll::PollFlags;
use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;

/// A connection to a master. It counts the bytes that it sends and receives.
#[derive(Debug)]
pub struct MasterLink {
    pub socket: TcpStream,
    pub traffic: Traffic,
}

impl MasterLink {
    /// Connects.
    pub fn connect(host: &str, port: u16, traffic: &Traffic, left: TimeLeft<'_>) -> io::Result<Self> {
        Ok(Self { socket: tcp::connect(host, port, left)?, traffic: traffic.clone() })
    }

    /// Sends all bytes.
    pub fn send(&mut self, bytes: &[u8], left: TimeLeft<'_>) -> io::Result<()> {
        tcp::write_all(&self.socket, bytes, left)?;
        self.traffic.add_sent(bytes.len());
        Ok(())
    }

    /// Reads once without waiting, and returns the bytes; none if none have arrived.
    pub fn read<'a>(&mut self, chunk: &'a mut [u8]) -> io::Result<&'a [u8]> {
        match self.socket.read(chunk) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(count) => {
                self.traffic.add_received(count);
                Ok(&chunk[..count])
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(&[]),
            Err(error) => Err(error),
        }
    }

    /// Reads the response, and returns it with the bytes that follow it.
    pub fn read_response(&mut self, left: TimeLeft<'_>) -> io::Result<(HttpMessage, Vec<u8>)> {
        let mut parser = HttpParser::of_responses();
        let mut chunk = vec![0; 64 * 1024];
        loop {
            if let Some(message) =
                parser.next_message().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?
            {
                return Ok((message, parser.into_rest()));
            }
            tcp::wait(self.socket.as_fd(), PollFlags::POLLIN, left)?;
            parser.feed(self.read(&mut chunk)?);
        }
    }
}

/// Sends one request on a connection of its own, and returns the response.
pub fn request(
    (host, port): (&str, u16),
    (method, path, body): (&str, &str, &[u8]),
    traffic: &Traffic,
    left: TimeLeft<'_>,
) -> io::Result<HttpMessage> {
    let mut link = MasterLink::connect(host, port, traffic, left)?;
    let host = tcp::host_port(host, port);
    link.send(&http::request(method, path, &host, body, "Connection: close\r\n"), left)?;
    Ok(link.read_response(left)?.0)
}
