//! pidfds: naming a process without ever naming a recycled one (pidfd_open(2)).

use crate::model::Exit;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Opens a pidfd (close-on-exec) for a child of ours that nobody has reaped yet.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just handed us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sends a signal to the very process the pidfd stands for. `ESRCH` when it is gone.
pub fn send_signal(fd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo is allowed (pidfd_send_signal(2)); the rest are integers.
    let rc = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the child has ended, without collecting its status: it stays a zombie, so its pid and
/// its process group number cannot be given to a stranger.
pub fn has_ended(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(wait(fd, libc::WNOWAIT)?.is_some())
}

/// Waits until one of them has ended, for so long at most. Also returns when a signal handler ran.
pub fn await_any(fds: &[BorrowedFd<'_>], patience: Duration) {
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    let _ = poll(&mut fds, PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX));
}

/// What is known of a child once its status has been collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collected {
    /// How it ended.
    pub exit: Exit,
    /// The most memory it had, in bytes, or one of the children that it waited for (getrusage(2)).
    pub peak_memory: u64,
}

/// Collects the child's status if it has ended; `None` while it lives. `ECHILD` when somebody else
/// collected it first (or it was never a child of ours).
pub fn reap(fd: BorrowedFd<'_>) -> io::Result<Option<Collected>> {
    wait(fd, 0)
}

fn wait(fd: BorrowedFd<'_>, flags: i32) -> io::Result<Option<Collected>> {
    // SAFETY: siginfo_t is plain data, for which all zeroes is a value.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: the same of rusage.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    loop {
        // The C library's waitid has no rusage, the kernel's does (waitid(2), NOTES).
        // SAFETY: `info` and `usage` are values of ours that outlive the call.
        let rc = unsafe {
            // __WALL: also those that end without SIGCHLD.
            let options = libc::WEXITED | libc::WNOHANG | libc::__WALL | flags;
            libc::syscall(libc::SYS_waitid, libc::P_PIDFD, fd.as_raw_fd(), &mut info, options, &mut usage)
        };
        if rc == 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
    // SAFETY: waitid filled the SIGCHLD members, or left zeroes when nothing has ended (waitid(2)).
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    let exit = match info.si_code {
        libc::CLD_EXITED => Exit::Code(status),
        _ => Exit::Signal(status),
    };
    // In KiB (getrusage(2)).
    let peak_memory = u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024;
    Ok(Some(Collected { exit, peak_memory }))
}

/// Ends and collects a child for which there was no descriptor left. It is ours and unreaped, so its
/// number is nobody else's.
pub fn end_nameless_child(pid: i32) {
    // SAFETY: kill and waitpid on integers; no status is stored.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        while libc::waitpid(pid, std::ptr::null_mut(), 0) < 0 && *libc::__errno_location() == libc::EINTR {}
    }
}

/// `struct pidfd_info` of Linux 6.13, first published version (64 bytes); `exit_code` from 6.15.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroupid: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;
// _IOWR(0xFF, 11, struct pidfd_info) of include/uapi/linux/pidfd.h.
const PIDFD_GET_INFO: libc::c_ulong = (3 << 30) | ((size_of::<PidfdInfo>() as libc::c_ulong) << 16) | (0xFF << 8) | 11;

/// The exit status of a process that somebody else has already collected, from kernels that keep
/// it (Linux 6.15 and later).
pub fn exit_of_reaped(fd: BorrowedFd<'_>) -> Option<Exit> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the ioctl writes at most the 64 bytes its number announces, into `info`.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), PIDFD_GET_INFO as _, &mut info) };
    (rc == 0 && info.mask & PIDFD_INFO_EXIT != 0).then(|| Exit::from_wait_status(info.exit_code))
}
