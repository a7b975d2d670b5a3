//! clone3(2), for which the C library has no function: a new process that is in a cgroup from its first
//! instruction on. Writing its number into cgroup.procs would do the same later, and has the kernel wait
//! for a grace period of RCU, which takes 10 ms and more.

use super::{pidfd, signals};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// What the new process runs, as for clone(2). It must not return.
pub type Main = extern "C" fn(*mut libc::c_void) -> libc::c_int;

/// CLONE_INTO_CGROUP (Linux 5.7) of include/uapi/linux/sched.h.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Starts a process as clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD) does, in the cgroup whose folder `cgroup`
/// is an open descriptor of. `signal`: what its parent is sent at its end, or 0. Returns its id, and a
/// descriptor that nobody owns yet; `None` if it was not started, for any reason: no such call (before Linux
/// 5.3), a seccomp filter that refuses it, a cgroup that takes no process or may not be written to.
///
/// # Safety
///
/// `main` runs on `stack`, in this process's memory, while this thread stands still: it may make
/// async-signal-safe calls only, has to end in `execve` or `_exit`, and `arg` has to be what it takes.
pub unsafe fn start_in(
    cgroup: RawFd,
    stack: &mut [u128],
    main: Main,
    arg: *mut libc::c_void,
    signal: i32,
) -> Option<(libc::pid_t, RawFd)> {
    let mut pidfd: RawFd = -1;
    // SAFETY: clone_args is plain data, for which all zeroes is a value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD) as u64 | CLONE_INTO_CGROUP;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = u64::try_from(signal).ok()?;
    args.stack = stack.as_mut_ptr() as u64;
    args.stack_size = size_of_val(stack) as u64;
    args.cgroup = u64::try_from(cgroup).ok()?;
    // SAFETY: `args`, and `pidfd`, to which it points, outlive the call; the rest the caller vouches for. The
    // size of `stack` is a multiple of 16, so its top is aligned.
    let pid = unsafe { call(&mut args, main, arg) };
    // The kernel may have stored a number before it failed, and closed it again: nothing is to be done about it.
    Some((libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?, pidfd))
}

/// Whether a process that is started in the cgroup, whose folder this is, gets as far as its first instruction.
/// Costs a tenth of a millisecond.
pub fn takes_processes(cgroup: RawFd) -> bool {
    let mut stack = [0u128; 1024];
    let held = signals::hold();
    // SAFETY: `first` calls nothing but _exit. Its stack outlives it: CLONE_VFORK. No handler of ours runs in it:
    // all signals wait meanwhile.
    let started = unsafe { start_in(cgroup, &mut stack, first, std::ptr::null_mut(), 0) };
    drop(held);
    let Some((_, pidfd)) = started else { return false };
    // SAFETY: the kernel has just made this descriptor, and nobody else owns it.
    let child = unsafe { OwnedFd::from_raw_fd(pidfd) };
    loop {
        // It is past _exit, or killed: there is but a moment to wait.
        match pidfd::reap(child.as_fd()) {
            Ok(None) => std::thread::yield_now(),
            ended => return ended.is_ok_and(|ended| ended.is_some_and(|child| child.exit.is_success())),
        }
    }
}

extern "C" fn first(_: *mut libc::c_void) -> libc::c_int {
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(0) }
}

/// The call. The child finds itself on an empty stack, where a return would lead nowhere: so it calls `main`
/// before it does anything that a compiler has made. Returns the child's id, or less than 0.
#[cfg(target_arch = "x86_64")]
unsafe fn call(args: &mut libc::clone_args, main: Main, arg: *mut libc::c_void) -> i64 {
    let mut result = libc::SYS_clone3;
    // SAFETY: the parent leaves with its registers and its stack as they were, except for those named here
    // (syscall(2): rcx and r11 are lost). The child shares no stack with it, and never leaves the block.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            // The outermost frame, for those who walk the stack.
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
unsafe fn call(args: &mut libc::clone_args, main: Main, arg: *mut libc::c_void) -> i64 {
    let result: i64;
    // SAFETY: as above; here the kernel changes nothing but x0 (syscall(2)).
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

/// Elsewhere nobody is started in a cgroup.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn call(_: &mut libc::clone_args, _: Main, _: *mut libc::c_void) -> i64 {
    -i64::from(libc::ENOSYS)
}
