//! Pipes and pseudo-terminals (pty(7)) for the output of a process: what is written at one end is read unchanged at the other one.

use crate::sys::io::fd;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{posix_openpt, unlockpt};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::termios::{LocalFlags, OutputFlags, SetArg, tcgetattr, tcsetattr};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

/// The end at which output is read.
#[derive(Debug)]
pub struct OutputEnd {
    fd: OwnedFd,
    is_terminal: bool,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputRead {
    /// This many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// Nothing, and no process has the other end open.
    Closed,
}

impl OutputEnd {
    /// Opens a pipe. Returns the end to read from, and the other one. Unlike a file, it cannot be emptied by its path in /proc
    /// (`> /dev/stderr`).
    pub fn open_pipe() -> io::Result<(Self, File)> {
        let (read, write) = fd::pipe(OFlag::empty())?;
        fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok((Self { fd: read, is_terminal: false }, write.into()))
    }

    /// Opens a pseudo-terminal with the window size of the terminal `like`. Returns the end to read from, and the terminal end.
    /// That can only be written to, also by its name: there is no input, so a read would wait forever; and a terminal that is
    /// opened for writing only does not become a controlling terminal (tty_open_proc_set_tty in Linux).
    pub fn open_terminal(like: impl AsFd) -> io::Result<(Self, File)> {
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        unlockpt(&master)?;
        let flags = (OFlag::O_WRONLY | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).bits();
        // SAFETY: TIOCGPTPEER takes an integer. Unlike the path in /dev/pts it works in any mount namespace.
        let end = Errno::result(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
        // SAFETY: the ioctl has just created this descriptor; it has no other owner.
        let end = unsafe { OwnedFd::from_raw_fd(end) };
        // The superuser may read nevertheless; a mount option may have given it another owner.
        let _ = fchmod(&end, Mode::S_IWUSR);
        let mut mode = tcgetattr(&end)?;
        mode.output_flags.remove(OutputFlags::OPOST);
        mode.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(&end, SetArg::TCSANOW, &mode)?;
        // SAFETY: the master has just given its descriptor away.
        let fd = unsafe { OwnedFd::from_raw_fd(master.into_raw_fd()) };
        let opened = Self { fd, is_terminal: true };
        opened.resize(like)?;
        Ok((opened, end.into()))
    }

    /// Gives a terminal the window size of the terminal `like`, if that differs.
    pub fn resize(&self, like: impl AsFd) -> io::Result<()> {
        if !self.is_terminal {
            return Ok(());
        }
        let (wanted, present) = (window_size(like)?, window_size(&self.fd)?);
        if wanted != present {
            // SAFETY: TIOCSWINSZ reads the structure, which outlives the call.
            Errno::result(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCSWINSZ, &raw const wanted) })?;
        }
        Ok(())
    }

    /// Waits until there is something to read, or no process has the other end open. Returns false once `over` is readable.
    pub fn await_output(&self, over: impl AsFd) -> bool {
        let mut fds = [over.as_fd(), self.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                polled => return polled.is_ok() && fds[0].any() != Some(true),
            }
        }
    }

    /// Waits for so long, or until `over` is readable. Returns whether it is.
    pub fn pause(over: impl AsFd, time: Duration) -> bool {
        let mut fds = [PollFd::new(over.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX)).is_ok_and(|ready| ready > 0)
    }

    /// Reads what has been written, without waiting. The kernel first completes the writes to a terminal that have returned
    /// (n_tty_read).
    pub fn read(&self, buffer: &mut [u8]) -> OutputRead {
        match nix::unistd::read(&self.fd, buffer) {
            Err(Errno::EAGAIN | Errno::EINTR) => OutputRead::Nothing,
            // EIO at a terminal.
            Ok(0) | Err(_) => OutputRead::Closed,
            Ok(read) => OutputRead::Bytes(read),
        }
    }

    /// The bytes that have been written and not read.
    pub fn unread(&self) -> usize {
        let mut bytes: libc::c_int = 0;
        // SAFETY: FIONREAD writes an integer, which outlives the call.
        let asked = Errno::result(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) });
        asked.map_or(0, |_| usize::try_from(bytes).unwrap_or(0))
    }
}

impl AsFd for OutputEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The window size of a terminal; 0 where none is set.
pub fn window_size(terminal: impl AsFd) -> io::Result<libc::winsize> {
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: TIOCGWINSZ fills the structure, which is plain data.
    Errno::result(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr()) })?;
    // SAFETY: all zeroes is a valid value too.
    Ok(unsafe { size.assume_init() })
}
