//! A child process of ours: who it is, whether it lives, and how it ended. Reaped by its pidfd, each
//! child its own; never `waitpid(-1)`, which would steal the children of a host program.

use super::pidfd;
use crate::model::Exit;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A child, shared by whoever waits for it. Its exit status is collected once and kept.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    name: Name,
    group: bool,
    exit: Mutex<Option<Exit>>,
    peak_memory: AtomicU64,
}

/// What a child is known by.
#[derive(Debug)]
enum Name {
    /// Its pidfd: it is ours to collect.
    Ours(OwnedFd),
    /// Where somebody else, whose child it is, writes its status; and its pidfd, unless it had been collected before
    /// it could be named.
    Others(OwnedFd, Option<OwnedFd>),
}

impl Name {
    fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Name::Ours(pidfd) => Some(pidfd.as_fd()),
            Name::Others(_, pidfd) => pidfd.as_ref().map(OwnedFd::as_fd),
        }
    }
}

impl Child {
    /// A child that was just started. `group`: it leads a process group of its own, and signals go
    /// to all of it.
    pub fn new(pid: i32, pidfd: OwnedFd, group: bool) -> Self {
        Self::named(pid, Name::Ours(pidfd), group)
    }

    fn named(pid: i32, name: Name, group: bool) -> Self {
        Self { pid, name, group, exit: Mutex::new(None), peak_memory: AtomicU64::new(0) }
    }

    /// Takes over a child that this process forked and nobody has reaped.
    pub fn adopt(pid: i32) -> io::Result<Self> {
        Ok(Self::new(pid, pidfd::open(pid)?, false))
    }

    /// Takes over a process whose parent is multiprocessing's fork server, which writes the child's
    /// exit code (8 bytes, minus the signal for a signal) to `status` when it has reaped it.
    pub fn of_fork_server(pid: i32, status: OwnedFd) -> io::Result<Self> {
        let pidfd = match pidfd::open(pid) {
            // What has ended by now may have been collected before: its number may be a stranger's.
            Ok(pidfd) => Some(pidfd).filter(|_| !is_readable(&status)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
            Err(error) => return Err(error),
        };
        Ok(Self::named(pid, Name::Others(status, pidfd), false))
    }

    /// The process id. Valid as a name only until the child has been reaped.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it leads a process group of its own.
    pub fn leads_group(&self) -> bool {
        self.group
    }

    /// Whether it has ended and its status has not been collected, so that its number is still its own.
    pub fn has_ended(&self) -> io::Result<bool> {
        let exit = self.lock();
        Ok(exit.is_none() && self.name.pidfd().is_some_and(|pidfd| pidfd::has_ended(pidfd).unwrap_or(false)))
    }

    /// The number of a descriptor that is readable (poll, epoll) once the child has ended.
    pub fn fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }

    /// Waits for the end, for `timeout` at most (`None`: for ever) or until a signal handler has run.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Exit>> {
        let millis = timeout.map_or(-1, |t| t.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32);
        let mut fd = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd of ours, alive across the call.
        unsafe { libc::poll(&mut fd, 1, millis) };
        self.try_exit()
    }

    /// Sends a signal by the pidfd; where that call is not to be had (ENOSYS, or EPERM of a seccomp filter),
    /// by the number, which is the child's own until it has been collected.
    fn send(&self, signal: i32) -> io::Result<()> {
        let Some(pidfd) = self.name.pidfd() else { return Ok(()) };
        let ours = matches!(self.name, Name::Ours(_));
        match pidfd::send_signal(pidfd, signal) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) && ours => {
                // SAFETY: kill takes two integers.
                if unsafe { libc::kill(self.pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
            }
            sent => sent,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Exit>> {
        self.exit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the child ended; `None` while it lives. The first call after the end ends what is left
    /// of the child's process group (if it leads one) and then collects the status: the group's
    /// number is ours for as long as its leader is a zombie.
    pub fn try_exit(&self) -> io::Result<Option<Exit>> {
        let mut exit = self.lock();
        if exit.is_some() {
            return Ok(*exit);
        }
        let pidfd = match &self.name {
            Name::Ours(pidfd) => pidfd.as_fd(),
            Name::Others(status, pidfd) => {
                *exit = match read_status(status)? {
                    Some(Exit::Lost) => Some(pidfd.as_ref().map_or(Exit::Lost, end_without_server)),
                    other => other,
                };
                return Ok(*exit);
            }
        };
        if self.group {
            match pidfd::has_ended(pidfd) {
                Ok(false) => return Ok(None),
                // An empty group is no error that matters here.
                Ok(true) => drop(kill_group(self.pid, libc::SIGKILL)),
                Err(_) => {}
            }
        }
        *exit = match pidfd::reap(pidfd) {
            Ok(found) => found.map(|collected| {
                self.peak_memory.store(collected.peak_memory, Ordering::Relaxed);
                collected.exit
            }),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => exit_seen_elsewhere(pidfd),
            Err(error) => return Err(error),
        };
        Ok(*exit)
    }

    /// The most memory it had, in bytes; 0 while it lives, or where somebody else collected it.
    pub fn peak_memory(&self) -> u64 {
        self.peak_memory.load(Ordering::Relaxed)
    }

    /// Sends a signal to the child, or to its whole group if it leads one. Does nothing once the
    /// child has been reaped, so a stranger is never hit.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let exit = self.lock();
        if exit.is_some() {
            return Ok(());
        }
        let sent = if self.group { kill_group(self.pid, signal) } else { self.send(signal) };
        match sent {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }

    /// Sends a signal to the child alone, also when it leads a group.
    pub fn signal_leader(&self, signal: i32) -> io::Result<()> {
        let exit = self.lock();
        if exit.is_some() {
            return Ok(());
        }
        match self.send(signal) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }
}

/// The fork server is gone, and with it the status: the child is ended, if it still lives.
fn end_without_server(pidfd: &OwnedFd) -> Exit {
    let _ = pidfd::send_signal(pidfd.as_fd(), libc::SIGKILL);
    let mut fd = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd of ours, alive across the call; SIGKILL takes a moment.
    unsafe { libc::poll(&mut fd, 1, 2000) };
    pidfd::exit_of_reaped(pidfd.as_fd()).filter(|exit| !exit.is_success()).unwrap_or(Exit::Lost)
}

/// The status of a child that somebody else reaped (a `waitpid(-1)` of the host, SIGCHLD ignored).
fn exit_seen_elsewhere(pidfd: BorrowedFd<'_>) -> Option<Exit> {
    let alive = pidfd::send_signal(pidfd, 0).is_ok();
    (!alive).then(|| pidfd::exit_of_reaped(pidfd).unwrap_or(Exit::Lost))
}

/// Whether there is something to read, or never will be.
fn is_readable(status: &OwnedFd) -> bool {
    let mut fd = libc::pollfd { fd: status.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd of ours, alive across the call, which does not wait.
    unsafe { libc::poll(&mut fd, 1, 0) > 0 }
}

/// What the fork server wrote, if it has; `Lost` if it died before it could.
fn read_status(status: &OwnedFd) -> io::Result<Option<Exit>> {
    if !is_readable(status) {
        return Ok(None);
    }
    let mut bytes = [0u8; 8];
    // Shorter than PIPE_BUF, so it comes whole (pipe(7)).
    match nix::unistd::read(status, &mut bytes)? {
        8 => {
            let code = i64::from_le_bytes(bytes) as i32;
            Ok(Some(if code < 0 { Exit::Signal(-code) } else { Exit::Code(code) }))
        }
        _ => Ok(Some(Exit::Lost)),
    }
}

fn kill_group(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two integers.
    if unsafe { libc::kill(-pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.name {
            Name::Ours(fd) | Name::Others(fd, _) => fd.as_fd(),
        }
    }
}
