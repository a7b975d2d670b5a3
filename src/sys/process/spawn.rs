//! Process creation, only here: clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD), set-up in the child, execve. Unlike that of fork,
//! its cost does not grow with the memory of the parent. Between clone and exec nothing allocates, locks or logs: the child
//! shares the memory of this process and may only make async-signal-safe calls (signal-safety(7)).

use crate::sys::clock;
use crate::sys::io::fd::duplicate;
use crate::sys::process::affinity::CpuMask;
use crate::sys::process::lifeline;
use crate::sys::process::lifeline::KillScope;
use crate::sys::process::{clone3, pidfd};
use crate::sys::signals;
use std::ffi::{CString, NulError};
use std::fmt;
use std::fs::{self, DirEntry};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// A process to be started. Paths and strings are complete before the clone; the child only reads them.
#[derive(Debug)]
pub struct SpawnCommand {
    /// The path of the program; PATH is not searched.
    pub program: CString,
    /// Its arguments, including argv[0].
    pub argv: Vec<CString>,
    /// Its complete environment, `NAME=value`.
    pub envp: Vec<CString>,
    /// Its process group.
    pub group: ProcessGroup,
    /// Its working directory; `None` inherits.
    pub cwd: Option<CString>,
    /// Whether it is detached: not a child of this process but of init (or a subreaper), and not killed with this process.
    pub detached: bool,
    /// The signal mask that the program starts with.
    pub mask: libc::sigset_t,
    /// The soft limit of open descriptors that the program starts with; `None` inherits.
    pub nofile: Option<u64>,
    /// The CPUs that the program may run on; `None` inherits.
    pub affinity: Option<CpuMask>,
    /// Whether SIGPIPE and SIGXFSZ, which Python ignores, get their default action back, as Python's `subprocess` does.
    pub default_sigpipe: bool,
}

impl SpawnCommand {
    /// A child of this process in a session of its own, with no signal blocked. `argv`: with argv[0]; `environ`: `NAME=value`.
    pub fn new(program: impl Into<Vec<u8>>, argv: Vec<Vec<u8>>, environ: Vec<Vec<u8>>) -> Result<Self, NulError> {
        Ok(Self {
            program: CString::new(program)?,
            argv: c_strings(argv)?,
            envp: c_strings(environ)?,
            group: ProcessGroup::Session,
            cwd: None,
            detached: false,
            mask: empty_mask(),
            nofile: None,
            affinity: None,
            default_sigpipe: true,
        })
    }
}

/// The descriptors that go with a command. They are open until the process runs.
#[derive(Clone, Debug, Default)]
pub struct SpawnDescriptors<'fd> {
    /// Those that become 0, 1 and 2; `None` inherits.
    pub stdio: [Option<BorrowedFd<'fd>>; 3],
    /// Those that the program inherits, each with the number that it has there. All others close at exec.
    pub keep: Vec<(BorrowedFd<'fd>, RawFd)>,
    /// The folder of a cgroup v2 to start in, if possible; `None` inherits.
    pub cgroup: Option<BorrowedFd<'fd>>,
    /// A read end of a lifeline, which is armed for this scope and stays open, under its own number unless `keep` has another.
    pub lifeline: Option<(BorrowedFd<'fd>, KillScope)>,
}

/// The process group of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessGroup {
    /// That of this process.
    Inherited,
    /// A new one in the same session; Ctrl-C in the terminal does not reach it.
    Own,
    /// A new one in a new session.
    Session,
}

/// A started process.
#[derive(Debug)]
pub struct SpawnedProcess {
    /// Its process id. For a detached process: that of its intermediate parent, which has ended.
    pub pid: i32,
    /// Its pidfd, close-on-exec.
    pub pidfd: OwnedFd,
}

/// The step of a process start that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpawnStepError {
    /// The name of the step: `clone`, `execve`, ...
    pub step: &'static str,
    /// The errno.
    pub errno: i32,
}

impl fmt::Display for SpawnStepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, nix::errno::Errno::from_raw(self.errno).desc())
    }
}

impl std::error::Error for SpawnStepError {}

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

/// Everything the child needs, and the two fields in which it reports a failure.
struct ChildSetup<'a> {
    start: &'a SpawnCommand,
    descriptors: &'a SpawnDescriptors<'a>,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    parent: libc::pid_t,
    /// The top of a second stack, for a detached process.
    second: *mut libc::c_void,
    step: usize,
    errno: i32,
}

const STACK: usize = 64 * 1024;

/// A null-terminated list of C strings, as execve expects it.
fn pointers(list: &[CString]) -> Vec<*const libc::c_char> {
    list.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// Converts byte strings to C strings.
pub fn c_strings(items: impl IntoIterator<Item = Vec<u8>>) -> Result<Vec<CString>, NulError> {
    items.into_iter().map(CString::new).collect()
}

/// The signal mask of a login shell, which blocks nothing.
pub fn empty_mask() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; sigemptyset only writes to it.
    unsafe {
        let mut mask = std::mem::zeroed();
        libc::sigemptyset(&mut mask);
        mask
    }
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

/// The signal mask of the calling thread with these signals added.
pub fn current_mask_and(signals: &[i32]) -> libc::sigset_t {
    let mut mask = current_mask();
    for signal in signals {
        // SAFETY: the set is local; an invalid signal number is an error without effect.
        unsafe { libc::sigaddset(&mut mask, *signal) };
    }
    mask
}

/// Starts the process. The child is killed by the kernel when the *calling thread* ends
/// (PR_SET_PDEATHSIG), so call this from a thread that lives as long as the child should.
pub fn start(start: &SpawnCommand, descriptors: &SpawnDescriptors<'_>) -> Result<SpawnedProcess, SpawnStepError> {
    let argv = pointers(&start.argv);
    let envp = pointers(&start.envp);
    let mut shared = ChildSetup {
        start,
        descriptors,
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        parent: std::process::id() as libc::pid_t,
        second: ptr::null_mut(),
        step: 0,
        errno: 0,
    };
    let mut stack = vec![0u128; STACK / 16];
    let mut second = vec![0u128; if start.detached { STACK / 16 } else { 0 }];
    // SAFETY: a stack begins one past the last element of `second`, 16-byte aligned.
    shared.second = unsafe { second.as_mut_ptr().add(second.len()) }.cast();
    // The intermediate parent of a detached process is reaped at once and sends no SIGCHLD.
    let signal = if start.detached { 0 } else { libc::SIGCHLD };
    let blocked = signals::block_all();
    // SAFETY: CLONE_VFORK suspends this thread until the child has called execve or _exit, so `shared`, `stack`, `argv` and
    // `envp` outlive the child's use of them, and no other code accesses them. All signals are blocked, so no signal handler
    // runs in the child, whose memory is that of this process. The stack pointer is the top of `stack`, 16-byte aligned.
    let (pid, child) = unsafe {
        let arg = ptr::from_mut(&mut shared).cast();
        let started =
            descriptors.cgroup.and_then(|cgroup| clone3::start_in(cgroup, &mut stack, child_main, arg, signal));
        match started {
            Some(started) => started,
            // A start in the cgroup is optional. If there is an error that affects every start, it occurs again here.
            None => {
                let mut pidfd: RawFd = -1;
                let top = stack.as_mut_ptr().add(stack.len()).cast();
                let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | signal;
                let pid = libc::clone(child_main, top, flags, arg, &raw mut pidfd);
                if pid < 0 {
                    return Err(SpawnStepError { step: STEPS[0], errno: errno() });
                }
                // The kernel stored a new descriptor without another owner (clone(2), CLONE_PIDFD).
                (pid, OwnedFd::from_raw_fd(pidfd))
            }
        }
    };
    drop(blocked);
    // The child wrote through a raw pointer, which the compiler does not see: read the fields through one too.
    // SAFETY: `shared` is alive, and the child writes no more (CLONE_VFORK).
    let (step, errno) = unsafe {
        let seen = &raw const shared;
        ((&raw const (*seen).step).read_volatile(), (&raw const (*seen).errno).read_volatile())
    };
    if errno != 0 || start.detached {
        // The child has called _exit: reap it.
        while let Ok(None) = pidfd::reap(child.as_fd()) {
            std::thread::yield_now();
        }
    }
    if errno != 0 {
        return Err(SpawnStepError { step: STEPS[step], errno });
    }
    let pidfd = if child.as_raw_fd() > 2 { child } else { duplicate(&child).unwrap_or(child) };
    Ok(SpawnedProcess { pid, pidfd })
}

/// How long a thread that has been joined may still be listed.
pub const THREAD_EXIT: Duration = Duration::from_millis(100);

/// The names of this process's other threads (`?` for one that cannot be read), after those that have been joined are gone. Empty
/// where /proc cannot be read.
pub fn other_threads() -> Vec<String> {
    let deadline = clock::now() + THREAD_EXIT;
    loop {
        let threads = list_other_threads();
        if threads.is_empty() || clock::now() >= deadline {
            return threads;
        }
        std::thread::yield_now();
    }
}

fn list_other_threads() -> Vec<String> {
    // Its number in the PID namespace of /proc, which may be another one.
    let main = fs::read_link("/proc/self").unwrap_or_default();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter(|task| task.file_name() != main.as_os_str()).map(|task| thread_name(&task)).collect()
}

fn thread_name(task: &DirEntry) -> String {
    fs::read_to_string(task.path().join("comm")).map_or_else(|_| "?".into(), |name| name.trim().to_owned())
}

/// Forks the launcher without an exec. Only for the launcher's own process. The child leads a new session, so signals of the
/// terminal do not reach it, and gets a pidfd of its parent. The caller warns of `other_threads`.
pub fn fork_launcher() -> io::Result<ForkSide> {
    let parent = pidfd::open(std::process::id() as libc::pid_t)?;
    // SAFETY: the child goes on in the copy of this process. rlaunch has started no thread, but a library may have: `other_threads`
    // lists its threads only where /proc can be read. The child then may wait forever for a lock that such a thread holds, but for the locks of the C
    // library, which takes them around a fork (fork(3)). It accesses nothing else of these threads.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: setsid takes no argument. It cannot fail, because the child leads no process group yet (setsid(2)).
            unsafe { libc::setsid() };
            Ok(ForkSide::Child { parent })
        }
        _ => {
            // Makes room for the child's pidfd.
            drop(parent);
            // The child has not been reaped, so its pid has not been reused.
            let pidfd = pidfd::open(pid).inspect_err(|_| pidfd::end_nameless_child(pid))?;
            Ok(ForkSide::Parent(SpawnedProcess { pid, pidfd }))
        }
    }
}

/// The side of `fork_launcher` on which this process is.
#[derive(Debug)]
pub enum ForkSide {
    /// The process that forked.
    Parent(SpawnedProcess),
    /// The new process.
    Child {
        /// A pidfd of the process that forked.
        parent: OwnedFd,
    },
}

/// Runs in the child, on a small stack in the memory of this process.
extern "C" fn child_main(arg: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `arg` is the `ChildSetup` of `start`, which is suspended until the child has called execve or _exit.
    let shared = unsafe { &mut *arg.cast::<ChildSetup<'_>>() };
    if shared.start.detached {
        // SAFETY: as in `start`. CLONE_VFORK suspends this process, and thereby the one that started it, until the third has
        // called execve or _exit; `second` is a separate stack.
        unsafe {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            if libc::clone(exec_main, shared.second, flags, arg) < 0 {
                (shared.step, shared.errno) = (0, errno());
            }
            libc::_exit(0)
        }
    }
    exec_main(arg)
}

/// Runs in the process that calls execve.
extern "C" fn exec_main(arg: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `arg` is the `ChildSetup` of `start`, which is suspended until the child has called execve or _exit.
    let shared = unsafe { &mut *arg.cast::<ChildSetup<'_>>() };
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

/// Returns only on failure: the index of the step in `STEPS` and the errno.
fn set_up_and_exec(shared: &ChildSetup<'_>) -> (usize, i32) {
    let (start, descriptors) = (shared.start, shared.descriptors);
    // SAFETY: async-signal-safe calls only, on integers and on memory that `start` keeps alive.
    unsafe {
        // Resets handlers to the default action, so that no handler of the parent runs here: the mask is restored before exec,
        // which would reset them too late. Ignored signals stay ignored, as under nohup.
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
        let (step, failed) = apply_settings_raw(start, descriptors, shared.parent);
        if failed != 0 {
            return (step, failed);
        }
        // May fail: Linux before 5.11 lacks the flag, and old seccomp filters return EPERM. Rust and Python open descriptors
        // close-on-exec anyway.
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        let keep = descriptors.keep.iter().map(|(fd, number)| (fd.as_raw_fd(), *number));
        let lifeline = descriptors.lifeline.map(|(fd, _)| fd);
        let lifeline = lifeline.map(|fd| fd.as_raw_fd()).filter(|fd| !keep.clone().any(|(kept, _)| kept == *fd));
        for (fd, number) in keep.chain(lifeline.map(|fd| (fd, fd))) {
            let is_redirected = matches!(number, 0..=2) && descriptors.stdio[number as usize].is_some();
            if is_redirected {
                continue;
            }
            let rc = if fd == number { libc::fcntl(fd, libc::F_SETFD, 0) } else { libc::dup2(fd, number) };
            if rc < 0 {
                return (6, errno());
            }
        }
        // A program without a stdin, stdout or stderr would write its messages into the next files that it opens.
        for fd in 0..3 {
            let flags = libc::fcntl(fd, libc::F_GETFD);
            if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
                if null >= 0 && null != fd {
                    libc::dup2(null, fd);
                    libc::close(null);
                }
            }
        }
        libc::sigprocmask(libc::SIG_SETMASK, &start.mask, ptr::null_mut());
        libc::execve(start.program.as_ptr(), shared.argv, shared.envp);
        (8, errno())
    }
}

/// Applies the settings of a command to this process, which was forked and calls no exec: group, working directory, stdio,
/// lifeline, limits and affinity. Ignores its program, signal settings and `keep`. `parent`: the process to die with.
pub fn apply_settings(
    start: &SpawnCommand,
    descriptors: &SpawnDescriptors<'_>,
    parent: i32,
) -> Result<(), SpawnStepError> {
    match apply_settings_raw(start, descriptors, parent) {
        (_, 0) => Ok(()),
        (step, errno) => Err(SpawnStepError { step: STEPS[step], errno }),
    }
}

/// Applies group, working directory, parent-death signal, stdio, lifeline, limits and affinity. Returns the index of the step
/// in `STEPS` and the errno, or 0. Makes only async-signal-safe calls, because it runs between clone and exec.
fn apply_settings_raw(start: &SpawnCommand, descriptors: &SpawnDescriptors<'_>, parent: libc::pid_t) -> (usize, i32) {
    // SAFETY: async-signal-safe calls only, on integers and on memory that `start` keeps alive.
    unsafe {
        if start.group == ProcessGroup::Session && libc::setsid() < 0 {
            return (1, errno());
        }
        if start.group == ProcessGroup::Own && libc::setpgid(0, 0) < 0 {
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
            // If the parent died before the line above, no signal is ever sent.
            if libc::getppid() != parent {
                libc::_exit(127);
            }
            // Yama lets only ancestors trace a process, and those it names, with their descendants: the process that reads its stacks
            // is a child of the parent (Documentation/admin-guide/LSM/Yama.rst). EINVAL without Yama.
            libc::prctl(libc::PR_SET_PTRACER, parent as libc::c_ulong, 0, 0, 0);
        }
        for (target, source) in descriptors.stdio.iter().enumerate() {
            if let Some(fd) = source.map(|fd| fd.as_raw_fd()) {
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
        if let Some((fd, scope)) = descriptors.lifeline {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_has_a_name() {
        let (over, wait) = std::sync::mpsc::channel::<()>();
        let exporter = std::thread::Builder::new().name("exporter".into()).spawn(move || wait.recv());
        assert!(exporter.is_ok());
        let threads = other_threads();
        drop(over);
        assert!(threads.iter().any(|name| name == "exporter"), "{threads:?}");
    }
}
