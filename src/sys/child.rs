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
    pidfd: OwnedFd,
    group: bool,
    /// Where somebody else, whose child it is, writes its status.
    status: Option<OwnedFd>,
    exit: Mutex<Option<Exit>>,
    peak_memory: AtomicU64,
}

impl Child {
    /// A child that was just started. `group`: it leads a process group of its own, and signals go
    /// to all of it.
    pub fn new(pid: i32, pidfd: OwnedFd, group: bool) -> Self {
        Self { pid, pidfd, group, status: None, exit: Mutex::new(None), peak_memory: AtomicU64::new(0) }
    }

    /// Takes over a child that this process forked and nobody has reaped.
    pub fn adopt(pid: i32) -> io::Result<Self> {
        Ok(Self::new(pid, pidfd::open(pid)?, false))
    }

    /// Takes over a process whose parent is multiprocessing's fork server, which writes the child's
    /// exit code (8 bytes, minus the signal for a signal) to `status` when it has reaped it.
    pub fn of_fork_server(pid: i32, status: OwnedFd) -> io::Result<Self> {
        Ok(Self { status: Some(status), ..Self::new(pid, pidfd::open(pid)?, false) })
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
        Ok(exit.is_none() && pidfd::has_ended(self.pidfd.as_fd()).unwrap_or(false))
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
        match pidfd::send_signal(self.pidfd.as_fd(), signal) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) && self.status.is_none() => {
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
        if let Some(status) = &self.status {
            *exit = match read_status(status)? {
                Some(Exit::Lost) => Some(self.end_without_server()),
                other => other,
            };
            return Ok(*exit);
        }
        if self.group {
            match pidfd::has_ended(self.pidfd.as_fd()) {
                Ok(false) => return Ok(None),
                // An empty group is no error that matters here.
                Ok(true) => drop(kill_group(self.pid, libc::SIGKILL)),
                Err(_) => {}
            }
        }
        *exit = match pidfd::reap(self.pidfd.as_fd()) {
            Ok(found) => found.map(|collected| {
                self.peak_memory.store(collected.peak_memory, Ordering::Relaxed);
                collected.exit
            }),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => self.exit_seen_elsewhere()?,
            Err(error) => return Err(error),
        };
        Ok(*exit)
    }

    /// The fork server is gone, and with it the status: the child is ended, if it still lives.
    fn end_without_server(&self) -> Exit {
        let _ = pidfd::send_signal(self.pidfd.as_fd(), libc::SIGKILL);
        let mut fd = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd of ours, alive across the call; SIGKILL takes a moment.
        unsafe { libc::poll(&mut fd, 1, 2000) };
        pidfd::exit_of_reaped(self.pidfd.as_fd()).filter(|exit| !exit.is_success()).unwrap_or(Exit::Lost)
    }

    /// The status of a child that somebody else reaped (a `waitpid(-1)` of the host, SIGCHLD ignored).
    fn exit_seen_elsewhere(&self) -> io::Result<Option<Exit>> {
        let alive = pidfd::send_signal(self.pidfd.as_fd(), 0).is_ok();
        if alive {
            return Ok(None);
        }
        Ok(Some(pidfd::exit_of_reaped(self.pidfd.as_fd()).unwrap_or(Exit::Lost)))
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

/// What the fork server wrote, if it has; `Lost` if it died before it could.
fn read_status(status: &OwnedFd) -> io::Result<Option<Exit>> {
    let mut fd = libc::pollfd { fd: status.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd of ours, alive across the call, which does not wait.
    if unsafe { libc::poll(&mut fd, 1, 0) } <= 0 {
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
        self.status.as_ref().unwrap_or(&self.pidfd).as_fd()
    }
}
