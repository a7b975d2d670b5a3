//! One fork request to the preload server. `python/rlaunch/_preload/fork_request.py` describes and decodes it.

use super::error::ForkError;
use crate::sys::io::packet;
use crate::sys::process::child::Child;
use crate::sys::process::pidfd;
use crate::sys::process::spawn::{SpawnCommand, SpawnDescriptors, SpawnedProcess};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Requests a process. The reply is to be read by `receive`.
pub(super) fn send(
    server: &Child,
    socket: &OwnedFd,
    command: &SpawnCommand,
    descriptors: &SpawnDescriptors<'_>,
) -> io::Result<()> {
    let (bytes, mut descriptors) = encode(command, descriptors);
    let file = packet::file_of(&bytes)?;
    descriptors.insert(0, file.as_fd());
    // A stopped server could not answer. An error means that it has just ended, which the reply reports.
    let _ = server.signal(libc::SIGCONT);
    packet::send(socket.as_fd(), b"F", &descriptors)
}

/// The requested process, which runs. The outer error: the server does not answer, or has not yet (`TimedOut`).
pub(super) fn receive(socket: &OwnedFd) -> io::Result<Result<SpawnedProcess, ForkError>> {
    let answer = packet::receive(socket.as_fd(), Duration::ZERO)?;
    let answer = String::from_utf8_lossy(&answer);
    let (number, step) = answer.split_once(' ').unwrap_or((&answer, ""));
    match number.parse::<i32>() {
        // A child of this process that has not been reaped: its pid cannot have been reused.
        Ok(pid) if pid > 0 => Ok(Ok(SpawnedProcess { pid, pidfd: pidfd::open(pid)? })),
        Ok(errno) => Ok(Err(ForkError { step: step.to_owned(), errno: -errno })),
        Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The request for a child of this process with the settings of this command, and the descriptors that go with it.
pub fn encode<'fd>(command: &SpawnCommand, given: &SpawnDescriptors<'fd>) -> (Vec<u8>, Vec<BorrowedFd<'fd>>) {
    let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
    let mut put = |name: &str, value: &[u8]| bytes.extend([name.as_bytes(), b"=", value, b"\0"].concat());
    let [stdin, stdout, stderr] = given.stdio;
    let lifeline = given.lifeline.map(|(fd, _)| fd);
    let named =
        [("stdin", stdin), ("stdout", stdout), ("stderr", stderr), ("lifeline", lifeline), ("cgroup", given.cgroup)];
    for (name, fd) in named.into_iter().filter_map(|(name, fd)| Some((name, fd?))) {
        put("fd", name.as_bytes());
        descriptors.push(fd);
    }
    command.argv.iter().for_each(|argument| put("argv", argument.as_bytes()));
    command.envp.iter().for_each(|variable| put("env", variable.as_bytes()));
    command.cwd.iter().for_each(|cwd| put("cwd", cwd.as_bytes()));
    command.nofile.iter().for_each(|limit| put("nofile", limit.to_string().as_bytes()));
    let cpus = command.affinity.iter().flat_map(|mask| mask.cpus().iter().collect::<Vec<_>>());
    cpus.for_each(|cpu| put("cpu", cpu.to_string().as_bytes()));
    put("parent", std::process::id().to_string().as_bytes());
    (bytes, descriptors)
}
