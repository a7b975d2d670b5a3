//! pidfds: descriptors of processes, which unlike process ids are never reused (pidfd_open(2)).

use crate::model::Exit;
use crate::sys::io::fd::above_stdio;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Opens a pidfd (close-on-exec) for a child of this process that has not been reaped.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor; it has no other owner.
    Ok(above_stdio(unsafe { OwnedFd::from_raw_fd(fd as i32) })?)
}

/// Whether no process has this number, not even a zombie.
pub fn is_unused(pid: i32) -> bool {
    open(pid).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
}

/// Sends a signal to the process of the pidfd. `ESRCH` when it is gone.
pub fn send_signal(fd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo is allowed (pidfd_send_signal(2)); the rest are integers.
    let rc = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the child has ended. Does not reap it: it stays a zombie, so its pid and its process group number are not reused.
pub fn has_ended(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(exit_of_zombie(fd)?.is_some())
}

/// How the child ended, if it has. Does not reap it.
pub fn exit_of_zombie(fd: BorrowedFd<'_>) -> io::Result<Option<Exit>> {
    Ok(wait(fd, libc::WNOWAIT)?.map(|status| status.exit))
}

/// Waits up to `patience` until one of these processes has ended. Also returns when a signal handler has run. Whether one has
/// ended: true also while a debugger that traces it withholds its status (ptrace(2), "Death under ptrace").
pub fn await_any(fds: &[BorrowedFd<'_>], patience: Duration) -> bool {
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    poll(&mut fds, PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX)).is_ok_and(|ready| ready > 0)
}

/// The status of a reaped child.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectedStatus {
    /// How it ended.
    pub exit: Exit,
    /// What it has used.
    pub usage: ResourceUsage,
}

/// What a process that has ended had used, with the children that it waited for (getrusage(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResourceUsage {
    /// Peak memory in bytes of the process or of one of those children, whichever is larger.
    pub peak_memory: u64,
    /// CPU time in seconds, in user and kernel mode.
    pub cpu_seconds: f64,
    /// Page faults that needed a read from a disk.
    pub major_faults: u64,
    /// Bytes read from disks; the page cache is not counted.
    pub disk_read: u64,
    /// Bytes written to disks.
    pub disk_written: u64,
    /// Whether the kernel wrote a core file of it.
    pub dumped_core: bool,
}

impl ResourceUsage {
    fn of(usage: &libc::rusage, dumped_core: bool) -> Self {
        let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self {
            // In KiB.
            peak_memory: count(usage.ru_maxrss) * 1024,
            cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            major_faults: count(usage.ru_majflt),
            // In blocks of 512 bytes.
            disk_read: count(usage.ru_inblock) * 512,
            disk_written: count(usage.ru_oublock) * 512,
            dumped_core,
        }
    }
}

/// Reaps the child if it has ended; `None` while it lives. `ECHILD` when other code has reaped it, or when it is no child of
/// this process.
pub fn reap(fd: BorrowedFd<'_>) -> io::Result<Option<CollectedStatus>> {
    wait(fd, 0)
}

fn wait(fd: BorrowedFd<'_>, flags: i32) -> io::Result<Option<CollectedStatus>> {
    // SAFETY: siginfo_t is plain data, for which all zeroes is a valid value.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: the same of rusage.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    loop {
        // The system call returns the resource usage, the C library's waitid does not (waitid(2), NOTES).
        // SAFETY: `info` and `usage` are local values that outlive the call.
        let rc = unsafe {
            // __WALL: also children that end without SIGCHLD.
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
    // SAFETY: waitid has filled the SIGCHLD members, or left zeroes when no child has ended (waitid(2)).
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    let exit = match info.si_code {
        libc::CLD_EXITED => Exit::Code(status),
        _ => Exit::Signal(status),
    };
    let dumped_core = info.si_code == libc::CLD_DUMPED;
    Ok(Some(CollectedStatus { exit, usage: ResourceUsage::of(&usage, dumped_core) }))
}

/// Kills and reaps a child for which no pidfd could be opened. It has not been reaped, so its pid has not been reused.
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

/// The exit status of a process that other code has reaped. Only Linux 6.15 and later keep it.
pub fn exit_of_reaped(fd: BorrowedFd<'_>) -> Option<Exit> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the ioctl writes at most the 64 bytes that its number encodes, into `info`.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), PIDFD_GET_INFO as _, &mut info) };
    (rc == 0 && info.mask & PIDFD_INFO_EXIT != 0).then(|| Exit::from_wait_status(info.exit_code))
}
