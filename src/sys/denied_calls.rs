//! System calls that a sandbox denies (seccomp(2), systemd's `SystemCallFilter=`). Each is called once with arguments that the kernel
//! refuses with another error, in a child process: a filter may kill the process instead of returning an error.

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fmt;
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// A system call that is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeniedCall {
    /// Its name.
    pub name: &'static str,
    /// Whether no job can start without it.
    pub is_needed: bool,
    /// The error that it returns; `None`: it kills the process.
    pub errno: Option<Errno>,
}

impl fmt::Display for DeniedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            Some(errno) => write!(f, "{}(2) ({errno:?})", self.name),
            None => write!(f, "{}(2) (SIGSYS)", self.name),
        }
    }
}

/// Whether a sandbox may return this error for a call that it denies.
pub fn is_denial(errno: i32) -> bool {
    matches!(errno, libc::EPERM | libc::EACCES | libc::ENOSYS)
}

struct Call {
    name: &'static str,
    is_needed: bool,
    /// Makes the call. Only async-signal-safe calls: it runs in a child of a process that may have threads.
    probe: fn() -> libc::c_long,
}

const CLONE: &str = "clone";

/// `NAME, whether no job starts without it => the call`.
macro_rules! calls {
    ($($name:ident, $is_needed:literal => $call:expr;)*) => {
        &[$(Call {
            name: stringify!($name),
            is_needed: $is_needed,
            // SAFETY: each call has integers and null pointers only, which the kernel refuses. setsid concerns the child alone.
            probe: || unsafe { $call }.into(),
        }),*]
    };
}

/// The calls that are probed. A launcher also makes those without which no Python starts (mmap, openat, ...).
const CALLS: &[Call] = calls! {
    // CLONE_SIGHAND needs CLONE_VM (clone(2), EINVAL).
    clone, true => {let flags = libc::CLONE_SIGHAND | libc::CLONE_PIDFD;
        libc::syscall(libc::SYS_clone, flags, 0, ptr::null::<i32>(), 0, 0)};
    clone3, true => libc::syscall(libc::SYS_clone3, ptr::null::<libc::clone_args>(), 0);
    pidfd_open, true => libc::syscall(libc::SYS_pidfd_open, -1, 0);
    waitid, true => libc::syscall(libc::SYS_waitid, libc::P_ALL, 0, ptr::null::<u8>(), 0, ptr::null::<u8>());
    setpgid, true => libc::setpgid(0, -1);
    setsid, true => libc::setsid();
    prctl, true => libc::prctl(libc::PR_SET_PDEATHSIG, 4096);
    pipe2, true => libc::pipe2(ptr::null_mut(), -1);
    dup2, true => libc::dup2(-1, 1023);
    eventfd2, true => libc::eventfd(0, -1);
    epoll_create1, true => libc::epoll_create1(-1);
    epoll_ctl, true => libc::epoll_ctl(-1, 0, -1, ptr::null_mut());
    epoll_wait, true => libc::epoll_wait(-1, ptr::null_mut(), 0, 0);
    poll, true => libc::poll(ptr::null_mut(), libc::nfds_t::MAX, 0);
    ftruncate, true => libc::ftruncate(-1, 0);
    mkdir, true => libc::mkdir(ptr::null(), 0);
    rename, true => libc::rename(ptr::null(), ptr::null());
    unlink, true => libc::unlink(ptr::null());
    socket, true => libc::socket(-1, 0, 0);
    setsockopt, true => libc::setsockopt(-1, 0, 0, ptr::null(), 0);
    bind, true => libc::bind(-1, ptr::null(), 0);
    listen, true => libc::listen(-1, 0);
    accept4, true => libc::accept4(-1, ptr::null_mut(), ptr::null_mut(), 0);
    connect, true => libc::connect(-1, ptr::null(), 0);
    getsockname, true => libc::getsockname(-1, ptr::null_mut(), ptr::null_mut());
    memfd_create, false => libc::syscall(libc::SYS_memfd_create, ptr::null::<u8>(), u32::MAX);
    pidfd_send_signal, false => {
        libc::syscall(libc::SYS_pidfd_send_signal, -1, 0, ptr::null::<u8>(), u32::MAX)
    };
    inotify_init1, false => libc::inotify_init1(-1);
    timerfd_create, false => libc::timerfd_create(-1, 0);
    sched_getaffinity, false => libc::syscall(libc::SYS_sched_getaffinity, 0, 0, ptr::null::<u8>());
    close_range, false => libc::syscall(libc::SYS_close_range, 1, 0, u32::MAX);
    ptrace, false => libc::syscall(libc::SYS_ptrace, libc::PTRACE_CONT, 0, 0, 0);
    process_vm_readv, false => {
        libc::syscall(libc::SYS_process_vm_readv, 0, ptr::null::<u8>(), 0, ptr::null::<u8>(), 0, 1)
    };
};

/// Results of the child process.
struct Probes {
    /// The number of calls that have been begun.
    begun: AtomicI32,
    /// The errno of each call; 0: none.
    errnos: [AtomicI32; CALLS.len()],
}

/// The calls of rlaunch that are denied to this process. Takes a millisecond, more in a process with much memory (fork(2)).
pub fn denied_calls() -> Vec<DeniedCall> {
    let length = NonZeroUsize::new(size_of::<Probes>()).unwrap_or(NonZeroUsize::MIN);
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses, filled with zeroes, which are valid atomics.
    let Ok(memory) = (unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_SHARED) }) else {
        return Vec::new();
    };
    // SAFETY: the mapping is page-aligned, large enough, and is unmapped below, after the last access.
    let probes = unsafe { memory.cast::<Probes>().as_ref() };
    let mut denied = Vec::new();
    loop {
        let before = probes.begun.load(Ordering::SeqCst);
        if let Err(errno) = run_child(probes) {
            denied.push(DeniedCall { name: CLONE, is_needed: true, errno: Some(errno) });
            break;
        }
        let begun = probes.begun.load(Ordering::SeqCst);
        // It counts one more when it has made all calls.
        if begun as usize > CALLS.len() || begun == before {
            break;
        }
        // It was killed by the call that it had begun; the next child goes on after that.
        let call = &CALLS[begun as usize - 1];
        denied.push(DeniedCall { name: call.name, is_needed: call.is_needed, errno: None });
    }
    denied.extend(CALLS.iter().zip(&probes.errnos).filter_map(|(call, errno)| {
        let errno = errno.load(Ordering::SeqCst);
        // The C library starts threads without clone3 where it is not implemented.
        let is_done_without = call.name == "clone3" && errno == libc::ENOSYS;
        (is_denial(errno) && !is_done_without).then(|| DeniedCall {
            name: call.name,
            is_needed: call.is_needed,
            errno: Some(Errno::from_raw(errno)),
        })
    }));
    // SAFETY: the mapping of above, to which no reference is used any more.
    let _ = unsafe { munmap(memory, length.get()) };
    denied
}

/// Runs the calls after those that have been begun, in a child, to its end.
fn run_child(probes: &Probes) -> Result<(), Errno> {
    let mut stack = [0u128; 4096];
    // Without CLONE_VM the child has a copy of this process's memory. No signal is sent at its end. CLONE_VFORK suspends this
    // thread until then, so no wait is needed but to reap it.
    // SAFETY: `make_calls` makes async-signal-safe calls only, and ends in _exit. The stack and `probes` outlive the child.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(make_calls, top, libc::CLONE_VFORK, ptr::from_ref(probes).cast_mut().cast())
    };
    Errno::result(pid)?;
    // SAFETY: waitpid with a null status takes integers; the child is this function's own.
    while unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) } < 0 && Errno::last() == Errno::EINTR {}
    Ok(())
}

extern "C" fn make_calls(probes: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the memory of `denied_calls`, which the parent keeps mapped while this process runs.
    let probes = unsafe { &*probes.cast::<Probes>() };
    // A call that kills the process would leave a core file.
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is a local value, and concerns this process alone.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    let first = probes.begun.load(Ordering::SeqCst) as usize;
    for (index, call) in CALLS.iter().enumerate().skip(first) {
        probes.begun.store(index as i32 + 1, Ordering::SeqCst);
        Errno::clear();
        let result = (call.probe)();
        let errno = if result < 0 { Errno::last_raw() } else { 0 };
        probes.errnos[index].store(errno, Ordering::SeqCst);
    }
    probes.begun.store(CALLS.len() as i32 + 1, Ordering::SeqCst);
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_sandbox_no_call_is_denied() {
        assert_eq!(denied_calls(), []);
    }

    #[test]
    fn a_denied_call_is_named_with_its_error() {
        let call = DeniedCall { name: "pidfd_open", is_needed: true, errno: Some(Errno::EPERM) };
        assert_eq!(call.to_string(), "pidfd_open(2) (EPERM)");
        assert_eq!(DeniedCall { errno: None, ..call }.to_string(), "pidfd_open(2) (SIGSYS)");
    }
}
