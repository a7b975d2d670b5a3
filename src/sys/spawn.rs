//! The one place where processes are created: clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD), then
//! set-up in the child, then execve. The cost does not grow with the memory of the parent, which a
//! fork's does. Between clone and exec nothing allocates, locks or logs: the child shares our memory
//! and may only make async-signal-safe calls (signal-safety(7)).

use super::affinity::Mask;
use super::lifeline::{self, Scope};
use super::{clone3, pidfd, signals};
use std::ffi::{CString, NulError};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// A process to be started. Paths and strings are ready before the clone; the child only reads.
#[derive(Debug)]
pub struct Start {
    /// The program: a path (no search in PATH is made).
    pub program: CString,
    /// Its arguments, argv[0] included.
    pub argv: Vec<CString>,
    /// Its whole environment, `NAME=value`.
    pub envp: Vec<CString>,
    /// What becomes descriptor 0, 1 and 2; `None` keeps ours.
    pub stdio: [Option<RawFd>; 3],
    /// Descriptors that the program inherits under their own numbers. All others close at exec.
    pub keep: Vec<RawFd>,
    /// Which process group it is in.
    pub group: Group,
    /// The folder of a cgroup of version 2 that it starts in, as far as that may be; `None` for ours.
    pub cgroup: Option<RawFd>,
    /// Where it starts; `None` for where we are.
    pub cwd: Option<CString>,
    /// Nobody's child: it neither dies with us nor is our child, but init's (or a subreaper's).
    pub detached: bool,
    /// A read end of a lifeline, armed for the given scope and kept open.
    pub lifeline: Option<(RawFd, Scope)>,
    /// The signal mask that the program starts with.
    pub mask: libc::sigset_t,
    /// The soft limit of open descriptors that the program starts with; `None` keeps ours.
    pub nofile: Option<u64>,
    /// The CPUs that the program may run on; `None` keeps ours.
    pub affinity: Option<Mask>,
    /// Whether SIGPIPE and SIGXFSZ, which Python ignores, get their default action back, as
    /// `subprocess` does for its children.
    pub default_sigpipe: bool,
}

/// A process group for a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Ours.
    Inherited,
    /// A new one, which it leads, in our session: a terminal's Ctrl-C does not reach it.
    Own,
    /// A new one, which it leads, in a session of its own.
    Session,
}

/// A started process.
#[derive(Debug)]
pub struct Started {
    /// Its process id (of a detached one: its late parent's).
    pub pid: i32,
    /// Its pidfd, close-on-exec.
    pub pidfd: OwnedFd,
}

/// What went wrong on the way to the first instruction of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    /// The step, in words: `clone`, `execve`, ...
    pub step: &'static str,
    /// The errno.
    pub errno: i32,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, nix::errno::Errno::from_raw(self.errno).desc())
    }
}

impl std::error::Error for StartError {}

const STEPS: [&str; 12] = [
    "clone",
    "setsid",
    "prctl(PR_SET_PDEATHSIG)",
    "dup2",
    "lifeline",
    "close_range",
    "fcntl(F_SETFD)",
    "setrlimit",
    "execve",
    "setpgid",
    "chdir",
    "affinity",
];

/// Everything the child needs, and the two words in which it reports back.
struct Shared<'a> {
    start: &'a Start,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    parent: libc::pid_t,
    /// The top of a second stack, for a detached process.
    second: *mut libc::c_void,
    step: usize,
    errno: i32,
}

const STACK: usize = 64 * 1024;

/// A C string list as execve wants it.
fn pointers(list: &[CString]) -> Vec<*const libc::c_char> {
    list.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// Turns text into C strings.
pub fn c_strings<I: IntoIterator<Item = Vec<u8>>>(items: I) -> Result<Vec<CString>, NulError> {
    items.into_iter().map(CString::new).collect()
}

/// The signal mask of the calling thread.
pub fn current_mask() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; pthread_sigmask with a null set only reads into `mask`.
    unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &mut mask);
        mask
    }
}

/// The signal mask of the calling thread, and these signals.
pub fn current_mask_and(signals: &[i32]) -> libc::sigset_t {
    let mut mask = current_mask();
    for signal in signals {
        // SAFETY: the set is ours; a number that is no signal is an error that changes nothing.
        unsafe { libc::sigaddset(&mut mask, *signal) };
    }
    mask
}

/// Starts the process. The child is killed by the kernel when the *calling thread* ends
/// (PR_SET_PDEATHSIG), so call this from a thread that lives as long as the child should.
pub fn start(start: &Start) -> Result<Started, StartError> {
    let argv = pointers(&start.argv);
    let envp = pointers(&start.envp);
    let mut shared = Shared {
        start,
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        parent: std::process::id() as libc::pid_t,
        second: ptr::null_mut(),
        step: 0,
        errno: 0,
    };
    let mut stack = vec![0u128; STACK / 16];
    let mut second = vec![0u128; if start.detached { STACK / 16 } else { 0 }];
    // SAFETY: one past the last element of `second` is what its stack begins at, 16-byte aligned.
    shared.second = unsafe { second.as_mut_ptr().add(second.len()) }.cast();
    // The child between us and a detached process is collected at once, and makes no SIGCHLD.
    let signal = if start.detached { 0 } else { libc::SIGCHLD };
    let mut named: RawFd = -1;
    let held = signals::hold();
    // SAFETY: CLONE_VFORK keeps this thread still until the child has called execve or _exit, so
    // `shared`, `stack`, `argv` and `envp` outlive the child's use of them and nobody else touches
    // them. All signals wait meanwhile, so that no handler of ours runs in the child on memory it
    // shares with us. The stack pointer is the top of `stack`, 16-byte aligned.
    let pid = unsafe {
        let arg = ptr::from_mut(&mut shared).cast();
        let started = start.cgroup.and_then(|cgroup| clone3::start_in(cgroup, &mut stack, child_main, arg, signal));
        let pid = match started {
            Some((pid, pidfd)) => {
                named = pidfd;
                pid
            }
            // A cgroup is more than has to be: what stands in the way of any start is met again here.
            None => libc::clone(
                child_main,
                stack.as_mut_ptr().add(stack.len()).cast(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | signal,
                arg,
                &mut named as *mut RawFd,
            ),
        };
        if pid < 0 {
            return Err(StartError { step: STEPS[0], errno: errno() });
        }
        pid
    };
    drop(held);
    // SAFETY: the kernel stored a fresh descriptor that nobody else owns (clone(2), CLONE_PIDFD).
    let child = unsafe { OwnedFd::from_raw_fd(named) };
    // The child wrote through a raw pointer; read it back the same way.
    // SAFETY: `shared` is alive and the child is past its last write (CLONE_VFORK).
    let (step, errno) = unsafe {
        let seen = &raw const shared;
        ((&raw const (*seen).step).read_volatile(), (&raw const (*seen).errno).read_volatile())
    };
    if errno != 0 || start.detached {
        // It is past _exit already; collect it.
        while let Ok(None) = pidfd::reap(child.as_fd()) {
            std::thread::yield_now();
        }
    }
    if errno != 0 {
        return Err(StartError { step: STEPS[step], errno });
    }
    Ok(Started { pid, pidfd: child })
}

/// Forks the launcher itself, without an exec: for a process that is wholly ours and has one thread. The
/// child is the leader of a session of its own, out of the terminal's and the parent's reach, and gets
/// a pidfd of its parent.
pub fn fork_launcher() -> io::Result<Forked> {
    let parent = pidfd::open(std::process::id() as libc::pid_t)?;
    // SAFETY: there is no other thread whose locks the child could miss; setsid takes nothing.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: as above. It cannot fail: the child leads no process group yet (setsid(2)).
            unsafe { libc::setsid() };
            Ok(Forked::Child { parent })
        }
        // Ours, and not collected yet: the number is its own.
        _ => Ok(Forked::Parent(Started { pid, pidfd: pidfd::open(pid)? })),
    }
}

/// On which side of `fork_launcher` this is.
#[derive(Debug)]
pub enum Forked {
    /// The process that was there before.
    Parent(Started),
    /// The new one.
    Child {
        /// A pidfd of the process that was there before.
        parent: OwnedFd,
    },
}

/// The child's side. Runs on its own small stack, in our memory.
extern "C" fn child_main(arg: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `arg` is the `Shared` of `start`, which waits for us.
    let shared = unsafe { &mut *arg.cast::<Shared<'_>>() };
    if shared.start.detached {
        // SAFETY: as in `start`: CLONE_VFORK keeps this process still, which keeps the one before it still,
        // until the third has called execve or _exit; `second` is a stack of its own.
        unsafe {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            if libc::clone(last_main, shared.second, flags, arg) < 0 {
                (shared.step, shared.errno) = (0, errno());
            }
            libc::_exit(0)
        }
    }
    last_main(arg)
}

/// The side of the process that calls execve.
extern "C" fn last_main(arg: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `arg` is the `Shared` of `start`, which waits for us.
    let shared = unsafe { &mut *arg.cast::<Shared<'_>>() };
    let (step, errno) = set_up_and_exec(shared);
    shared.step = step;
    shared.errno = errno;
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(127) }
}

fn errno() -> i32 {
    // SAFETY: the C library's errno of this thread is always readable.
    unsafe { *libc::__errno_location() }
}

/// Returns only on failure: the step's index in STEPS and the errno.
fn set_up_and_exec(shared: &Shared<'_>) -> (usize, i32) {
    let start = shared.start;
    // SAFETY: async-signal-safe calls only, on integers and on memory that `start` keeps alive.
    unsafe {
        // Handlers of the parent must never run here: the default action instead (exec would do the
        // same, but the mask opens before it). What is ignored stays ignored, as under nohup.
        for signal in 1..=64 {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, ptr::null(), &mut action) != 0 {
                continue;
            }
            let handler = action.sa_sigaction;
            let python_ignores = signal == libc::SIGPIPE || signal == libc::SIGXFSZ;
            let reset =
                handler != libc::SIG_DFL && (handler != libc::SIG_IGN || (python_ignores && start.default_sigpipe));
            if reset {
                action = std::mem::zeroed();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &action, ptr::null_mut());
            }
        }
        let (step, failed) = settle_in(start, shared.parent);
        if failed != 0 {
            return (step, failed);
        }
        // As far as it goes: Linux before 5.11 lacks the flag, and old seccomp filters answer EPERM. Rust and
        // Python open close-on-exec anyway.
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        let lifeline = start.lifeline.map(|(fd, _)| fd);
        for &fd in start.keep.iter().chain(lifeline.iter()) {
            if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                return (6, errno());
            }
        }
        libc::sigprocmask(libc::SIG_SETMASK, &start.mask, ptr::null_mut());
        libc::execve(start.program.as_ptr(), shared.argv, shared.envp);
        (8, errno())
    }
}

/// For a process that was forked and runs no other program: takes the place that `start` gives a child. Its signals,
/// program and descriptors to keep are not looked at. `parent`: whose death it is to share.
pub fn settle(start: &Start, parent: i32) -> Result<(), StartError> {
    match settle_in(start, parent) {
        (_, 0) => Ok(()),
        (step, errno) => Err(StartError { step: STEPS[step], errno }),
    }
}

/// Where it is, whom it dies with, what it may use: the step's index in STEPS and the errno, or 0. Only
/// async-signal-safe calls: it runs between clone and exec.
fn settle_in(start: &Start, parent: libc::pid_t) -> (usize, i32) {
    // SAFETY: async-signal-safe calls only, on integers and on memory that `start` keeps alive.
    unsafe {
        if start.group == Group::Session && libc::setsid() < 0 {
            return (1, errno());
        }
        if start.group == Group::Own && libc::setpgid(0, 0) < 0 {
            return (9, errno());
        }
        if let Some(cwd) = &start.cwd
            && libc::chdir(cwd.as_ptr()) < 0
        {
            return (10, errno());
        }
        if !start.detached {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return (2, errno());
            }
            // The parent may have died before the line above; then nobody would ever tell us.
            if libc::getppid() != parent {
                libc::_exit(127);
            }
        }
        for (target, source) in start.stdio.iter().enumerate() {
            if let Some(fd) = *source {
                let rc = if fd == target as RawFd {
                    libc::fcntl(fd, libc::F_SETFD, 0)
                } else {
                    libc::dup2(fd, target as RawFd)
                };
                if rc < 0 {
                    return (3, errno());
                }
            }
        }
        if let Some((fd, scope)) = start.lifeline {
            let errno = lifeline::arm_raw(fd, scope);
            if errno != 0 {
                return (4, errno);
            }
        }
        if let Some(soft) = start.nofile {
            let mut limit: libc::rlimit = std::mem::zeroed();
            if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
                return (7, errno());
            }
            limit.rlim_cur = soft.min(limit.rlim_max);
            if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
                return (7, errno());
            }
        }
        if let Some(mask) = &start.affinity {
            let errno = mask.apply_raw();
            if errno != 0 {
                return (11, errno);
            }
        }
        (0, 0)
    }
}
