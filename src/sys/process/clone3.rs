//! clone3(2), for which the C library has no function: starts a process that is in a cgroup from its first instruction on. To
//! write its pid to cgroup.procs later would take 10 ms and more, because the kernel then waits for an RCU grace period.

use crate::sys::process::pidfd;
use crate::sys::signals;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The function that the new process runs, as for clone(2). It must not return.
pub type ChildMain = extern "C" fn(*mut libc::c_void) -> libc::c_int;

/// CLONE_INTO_CGROUP (Linux 5.7) of include/uapi/linux/sched.h.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Starts a process as clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD) does, in a cgroup. `cgroup`: a descriptor of the cgroup's
/// folder; `signal`: the signal that its parent receives at its end, or 0. Returns its pid and its pidfd. `None` if it was not
/// started, for any reason: no such system call (before Linux 5.3), a seccomp filter, a cgroup that accepts no process or may
/// not be written.
///
/// # Safety
///
/// `main` runs on `stack` in this process's memory while this thread is suspended. It may only make async-signal-safe calls
/// and has to end in `execve` or `_exit`. `arg` has to be a valid argument for it.
pub unsafe fn start_in(
    cgroup: BorrowedFd<'_>,
    stack: &mut [u128],
    main: ChildMain,
    arg: *mut libc::c_void,
    signal: i32,
) -> Option<(libc::pid_t, OwnedFd)> {
    let mut pidfd: RawFd = -1;
    // SAFETY: clone_args is plain data, for which all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD) as u64 | CLONE_INTO_CGROUP;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = u64::try_from(signal).ok()?;
    args.stack = stack.as_mut_ptr() as u64;
    args.stack_size = size_of_val(stack) as u64;
    args.cgroup = u64::try_from(cgroup.as_raw_fd()).ok()?;
    // SAFETY: `args` and `pidfd`, to which it points, outlive the call; the caller guarantees the rest. The size of `stack`
    // is a multiple of 16, so its top is aligned.
    let pid = unsafe { call(&mut args, main, arg) };
    // A pidfd that the kernel stored before a failure has been closed by the kernel.
    let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
    // SAFETY: the kernel has just created this descriptor; it has no other owner.
    Some((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Whether a process that is started in this cgroup reaches its first instruction. Takes 0.1 ms. `cgroup`: a descriptor of
/// the cgroup's folder.
pub fn takes_processes(cgroup: BorrowedFd<'_>) -> bool {
    let mut stack = [0u128; 1024];
    let blocked = signals::block_all();
    // SAFETY: `exit_at_once` only calls _exit. CLONE_VFORK suspends this thread, so the stack outlives the child. All signals
    // are blocked, so no signal handler runs in the child.
    let started = unsafe { start_in(cgroup, &mut stack, exit_at_once, std::ptr::null_mut(), 0) };
    drop(blocked);
    let Some((_, child)) = started else { return false };
    loop {
        // The child has called _exit or was killed, so its end is a moment away.
        match pidfd::reap(child.as_fd()) {
            Ok(None) => std::thread::yield_now(),
            ended => return ended.is_ok_and(|ended| ended.is_some_and(|child| child.exit.is_success())),
        }
    }
}

extern "C" fn exit_at_once(_: *mut libc::c_void) -> libc::c_int {
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(0) }
}

/// The system call. The child starts on an empty stack, from which compiled code could not return, so the assembly calls `main`
/// directly. Returns the child's pid, or less than 0.
#[cfg(target_arch = "x86_64")]
unsafe fn call(args: &mut libc::clone_args, main: ChildMain, arg: *mut libc::c_void) -> i64 {
    let mut result = libc::SYS_clone3;
    // SAFETY: the parent leaves the block with its registers and its stack unchanged, except for the registers named here
    // (syscall(2): rcx and r11 are clobbered). The child has another stack and never leaves the block.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            // Marks the outermost frame for stack unwinders.
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") result,
            in("rdi") args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") main,
            in("r13") arg,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// The same on 64-bit ARM.
#[cfg(target_arch = "aarch64")]
unsafe fn call(args: &mut libc::clone_args, main: ChildMain, arg: *mut libc::c_void) -> i64 {
    let result: i64;
    // SAFETY: as on x86-64; here the kernel changes only x0 (syscall(2)).
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, x21",
            "blr x20",
            "brk 1",
            "2:",
            inlateout("x0") args => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x8") libc::SYS_clone3,
            in("x20") main,
            in("x21") arg,
        );
    }
    result
}

/// On other architectures no process is started in a cgroup.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn call(_: &mut libc::clone_args, _: ChildMain, _: *mut libc::c_void) -> i64 {
    -i64::from(libc::ENOSYS)
}
