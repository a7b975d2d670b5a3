//! A child process: its id, its state and its exit status. Each child is reaped by its own pidfd, never by `waitpid(-1)`, which
//! would take the children of a host program.

use crate::model::Exit;
use crate::sys::process::current::Creator;
use crate::sys::process::pidfd;
use crate::sys::process::pidfd::ResourceUsage;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A child, which several threads may wait for. It is reaped once, and its exit status is kept. In a process that was forked
/// from its parent, it is neither signalled nor reaped.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    parent: Creator,
    handle: ChildHandle,
    group: bool,
    exit: Mutex<Option<Exit>>,
    usage: Mutex<Option<ResourceUsage>>,
}

/// The descriptors of a child.
#[derive(Debug)]
enum ChildHandle {
    /// A child of this process: its pidfd.
    Own(OwnedFd),
    /// A child of the fork server: the pipe to which the server writes its status, and its pidfd, unless it was reaped before
    /// the pidfd could be opened.
    OfServer(OwnedFd, Option<OwnedFd>),
}

impl ChildHandle {
    fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            ChildHandle::Own(pidfd) => Some(pidfd.as_fd()),
            ChildHandle::OfServer(_, pidfd) => pidfd.as_ref().map(OwnedFd::as_fd),
        }
    }
}

impl Child {
    /// A child that was just started. `group`: whether it leads a process group; then signals go to the whole group.
    pub fn new(pid: i32, pidfd: OwnedFd, group: bool) -> Self {
        Self::with_handle(pid, ChildHandle::Own(pidfd), group)
    }

    fn with_handle(pid: i32, handle: ChildHandle, group: bool) -> Self {
        let parent = Creator::this_process();
        Self { pid, parent, handle, group, exit: Mutex::new(None), usage: Mutex::new(None) }
    }

    /// A child that this process forked and has not reaped.
    pub fn adopt(pid: i32) -> io::Result<Self> {
        Ok(Self::new(pid, pidfd::open(pid)?, false))
    }

    /// A child of multiprocessing's fork server. The server writes the exit code to `status` after it has reaped the child (8
    /// bytes; for a signal, its negative number).
    pub fn of_fork_server(pid: i32, status: OwnedFd) -> io::Result<Self> {
        let pidfd = match pidfd::open(pid) {
            // A child that has ended may have been reaped before the pidfd was opened, and its pid reused.
            Ok(pidfd) => Some(pidfd).filter(|_| !is_readable(&status)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
            Err(error) => return Err(error),
        };
        Ok(Self::with_handle(pid, ChildHandle::OfServer(status, pidfd), false))
    }

    /// The process id, which may be reused once the child has been reaped.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The process that started it.
    pub fn parent(&self) -> Creator {
        self.parent
    }

    /// Whether it leads a process group of its own.
    pub fn leads_group(&self) -> bool {
        self.group
    }

    /// How it ended, if it has ended and has not been reaped, so that its pid is not reused.
    pub fn exit_of_zombie(&self) -> Option<Exit> {
        let exit = self.lock();
        let pidfd = self.handle.pidfd().filter(|_| exit.is_none())?;
        pidfd::exit_of_zombie(pidfd).unwrap_or(None)
    }

    /// Whether it has ended and has not been reaped.
    pub fn has_ended(&self) -> io::Result<bool> {
        Ok(self.exit_of_zombie().is_some())
    }

    /// The number of a descriptor that becomes readable (poll, epoll) when the child has ended.
    pub fn fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }

    /// Waits for its end, for up to `timeout` (`None`: no limit), or until a signal handler has run.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Exit>> {
        let millis = timeout.map_or(-1, |t| t.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32);
        let mut fd = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one local pollfd, which outlives the call.
        unsafe { libc::poll(&mut fd, 1, millis) };
        self.try_exit()
    }

    /// Sends a signal by the pidfd. Without that system call (ENOSYS, or EPERM of a seccomp filter), by the pid, which is not
    /// reused before the child has been reaped.
    fn send(&self, signal: i32) -> io::Result<()> {
        let Some(pidfd) = self.handle.pidfd() else { return Ok(()) };
        let ours = matches!(self.handle, ChildHandle::Own(_));
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

    /// The exit status; `None` while the child lives. The first call after its end kills the rest of its process group (if it
    /// leads one) and then reaps it: the number of the group is not reused while its leader is a zombie.
    pub fn try_exit(&self) -> io::Result<Option<Exit>> {
        if !self.parent.is_this_process() {
            // Another thread of the parent may have held the lock during the fork.
            return Ok(self.exit.try_lock().ok().and_then(|exit| *exit));
        }
        let mut exit = self.lock();
        if exit.is_some() {
            return Ok(*exit);
        }
        let pidfd = match &self.handle {
            ChildHandle::Own(pidfd) => pidfd.as_fd(),
            ChildHandle::OfServer(status, pidfd) => {
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
                // An error means that the group is empty.
                Ok(true) => drop(kill_group(self.pid, libc::SIGKILL)),
                Err(_) => {}
            }
        }
        *exit = match pidfd::reap(pidfd) {
            Ok(found) => found.map(|collected| {
                *self.usage.lock().unwrap_or_else(PoisonError::into_inner) = Some(collected.usage);
                collected.exit
            }),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => exit_seen_elsewhere(pidfd),
            Err(error) => return Err(error),
        };
        Ok(*exit)
    }

    /// What it has used; `None` while it lives, or if other code reaped it.
    pub fn usage(&self) -> Option<ResourceUsage> {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal to the child, or to its process group if it leads one. Does nothing once the child has been reaped,
    /// because its pid may have been reused.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        if !self.parent.is_this_process() {
            return Ok(());
        }
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

    /// Sends a signal to the child alone, even if it leads a group.
    pub fn signal_leader(&self, signal: i32) -> io::Result<()> {
        if !self.parent.is_this_process() {
            return Ok(());
        }
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

/// Kills a child whose fork server is gone, and with it the exit status.
fn end_without_server(pidfd: &OwnedFd) -> Exit {
    let _ = pidfd::send_signal(pidfd.as_fd(), libc::SIGKILL);
    let mut fd = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one local pollfd, which outlives the call.
    unsafe { libc::poll(&mut fd, 1, 2000) };
    pidfd::exit_of_reaped(pidfd.as_fd()).filter(|exit| !exit.is_success()).unwrap_or(Exit::Lost)
}

/// The status of a child that other code reaped (`waitpid(-1)` in the host program, SIGCHLD ignored).
fn exit_seen_elsewhere(pidfd: BorrowedFd<'_>) -> Option<Exit> {
    let alive = pidfd::send_signal(pidfd, 0).is_ok();
    (!alive).then(|| pidfd::exit_of_reaped(pidfd).unwrap_or(Exit::Lost))
}

/// Whether there is something to read, or the writer is gone.
fn is_readable(status: &OwnedFd) -> bool {
    let mut fd = libc::pollfd { fd: status.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one local pollfd, which outlives the call.
    unsafe { libc::poll(&mut fd, 1, 0) > 0 }
}

/// The status that the fork server wrote; `None` before it has written, `Lost` if it ended first.
fn read_status(status: &OwnedFd) -> io::Result<Option<Exit>> {
    if !is_readable(status) {
        return Ok(None);
    }
    let mut bytes = [0u8; 8];
    // A write of less than PIPE_BUF bytes is atomic (pipe(7)).
    match nix::unistd::read(status, &mut bytes)? {
        8 => {
            let code = i64::from_le_bytes(bytes) as i32;
            Ok(Some(if code < 0 { Exit::Signal(-code) } else { Exit::Code(code) }))
        }
        _ => Ok(Some(Exit::Lost)),
    }
}

/// Kills children by their numbers. Each must be a child that no other thread reaps: it keeps its number until then.
pub fn kill_unreaped(pids: impl IntoIterator<Item = i32>) {
    for pid in pids.into_iter().filter(|pid| *pid > 1) {
        // SAFETY: kill takes two integers. It fails only if the child has been reaped.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

fn kill_group(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two integers.
    if unsafe { libc::kill(-pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.handle {
            ChildHandle::Own(fd) | ChildHandle::OfServer(fd, _) => fd.as_fd(),
        }
    }
}
