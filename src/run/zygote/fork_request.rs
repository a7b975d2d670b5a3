//! One fork request to the preload server (protocol: docs/architecture/preload.md).

use super::error::ForkError;
use crate::sys::io::packet;
use crate::sys::process::child::Child;
use crate::sys::process::lifeline::KillScope;
use crate::sys::process::pidfd;
use crate::sys::process::spawn::{ProcessGroup, SpawnCommand, SpawnedProcess};
use serde_json::{Map, Value, json};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A fork takes milliseconds. A server that needs longer than this has been stopped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests a process and waits until it runs. The outer error: the server does not answer.
pub(super) fn fork(
    server: &Child,
    socket: &OwnedFd,
    command: &SpawnCommand,
) -> io::Result<Result<SpawnedProcess, ForkError>> {
    let (text, mut descriptors) = request(command);
    let file = packet::file_of(&text)?;
    descriptors.insert(0, file.as_raw_fd());
    // A stopped server could not answer. An error means that it has just ended, which the next call reports.
    let _ = server.signal(libc::SIGCONT);
    packet::send(socket.as_fd(), b"F", &descriptors)?;
    let answer = packet::receive(socket.as_fd(), PATIENCE)?;
    let answer = String::from_utf8_lossy(&answer);
    let (number, step) = answer.split_once(' ').unwrap_or((&answer, ""));
    match number.parse::<i32>() {
        // A child of this process that has not been reaped: its pid cannot have been reused.
        Ok(pid) if pid > 0 => Ok(Ok(SpawnedProcess { pid, pidfd: pidfd::open(pid)? })),
        Ok(errno) => Ok(Err(ForkError { step: step.to_owned(), errno: -errno })),
        Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A request and its descriptors. Bytes are written as characters of Latin-1.
fn request(command: &SpawnCommand) -> (Vec<u8>, Vec<RawFd>) {
    let latin = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
    let texts = |list: &[CString]| list.iter().map(|text| latin(text.as_bytes())).collect::<Vec<_>>();
    let [stdin, stdout, stderr] = command.stdio;
    let lifeline = command.lifeline.map(|(fd, _)| fd);
    let named =
        [("stdin", stdin), ("stdout", stdout), ("stderr", stderr), ("lifeline", lifeline), ("cgroup", command.cgroup)];
    let (mut fds, mut descriptors) = (Map::new(), Vec::new());
    for (name, fd) in named.into_iter().filter_map(|(name, fd)| Some((name, fd?))) {
        descriptors.push(fd);
        fds.insert(name.to_owned(), Value::from(descriptors.len()));
    }
    let scope = match command.lifeline {
        Some((_, KillScope::Process)) => "process",
        _ => "group",
    };
    let request = json!({
        "argv": texts(&command.argv),
        "env": texts(&command.envp),
        "cwd": command.cwd.as_ref().map(|cwd| latin(cwd.as_bytes())),
        "fds": fds,
        "session": command.group == ProcessGroup::Session,
        "scope": scope,
        "nofile": command.nofile,
        "cpus": command.affinity.as_ref().map(|mask| mask.cpus().iter().collect::<Vec<u16>>()),
        "default_sigpipe": command.default_sigpipe,
        "orphan": true,
        "parent": std::process::id(),
        "payload": null,
    });
    (request.to_string().into_bytes(), descriptors)
}
