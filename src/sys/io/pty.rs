//! Pseudo-terminals (pty(7)) for output: what is written to the terminal end is read unchanged at the other end.

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{PtyMaster, posix_openpt, unlockpt};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::termios::{LocalFlags, OutputFlags, SetArg, tcgetattr, tcsetattr};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The end at which output is read.
#[derive(Debug)]
pub struct Pty(PtyMaster);

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtyRead {
    /// This many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// Nothing, and no process has the terminal end open.
    Closed,
}

/// Opens a pseudo-terminal with the window size of the terminal `like`. Returns the end to read from, and the terminal end.
/// That can only be written to, also by its name: there is no input, so a read would wait forever; and a terminal that is
/// opened for writing only does not become a controlling terminal (tty_open_proc_set_tty in Linux).
pub fn open(like: impl AsFd) -> io::Result<(Pty, File)> {
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
    let pty = Pty(master);
    pty.resize(like)?;
    Ok((pty, end.into()))
}

impl Pty {
    /// Gives it the window size of the terminal `like`, if that differs.
    pub fn resize(&self, like: impl AsFd) -> io::Result<()> {
        let (wanted, present) = (window_size(like)?, window_size(&self.0)?);
        if wanted != present {
            // SAFETY: TIOCSWINSZ reads the structure, which outlives the call.
            Errno::result(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCSWINSZ, &raw const wanted) })?;
        }
        Ok(())
    }

    /// Waits until there is something to read, or no process has the terminal end open. Returns false once `over` is readable.
    pub fn await_output(&self, over: impl AsFd) -> bool {
        let mut fds = [over.as_fd(), self.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                polled => return polled.is_ok() && fds[0].any() != Some(true),
            }
        }
    }

    /// Reads what has been written, without waiting. The kernel first completes the writes that have returned (n_tty_read).
    pub fn read(&self, buffer: &mut [u8]) -> PtyRead {
        match nix::unistd::read(&self.0, buffer) {
            Err(Errno::EAGAIN | Errno::EINTR) => PtyRead::Nothing,
            // EIO
            Ok(0) | Err(_) => PtyRead::Closed,
            Ok(read) => PtyRead::Bytes(read),
        }
    }
}

impl AsFd for Pty {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
