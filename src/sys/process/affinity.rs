//! CPU affinity: the CPUs that a thread may run on (sched_setaffinity(2)).

use crate::model::CpuSet;
use crate::sys::denied_calls::is_denial;
use std::{fs, io};

type MaskWord = libc::c_ulong;
const BITS: usize = MaskWord::BITS as usize;
/// Room for all CPUs of a `CpuSet`. sched_getaffinity fails with less room than the kernel's own mask needs.
const WORDS: usize = (u16::MAX as usize + 1) / BITS;

/// The online CPUs that the calling thread may run on.
pub fn own() -> io::Result<CpuSet> {
    let mut words = [0 as MaskWord; WORDS];
    // SAFETY: the kernel writes at most the size of the array. 0 is the calling thread.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&words), words.as_mut_ptr()) };
    if bytes < 0 {
        let error = io::Error::last_os_error();
        let listed = error.raw_os_error().filter(|errno| is_denial(*errno)).and_then(|_| listed_cpus());
        return listed.ok_or(error);
    }
    Ok((0..=u16::MAX).filter(|cpu| words[usize::from(*cpu) / BITS] & bit(*cpu) != 0).collect())
}

/// The same from /proc, for a sandbox that denies the system call.
fn listed_cpus() -> Option<CpuSet> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    CpuSet::parse(list.trim())
}

fn bit(cpu: u16) -> MaskWord {
    1 << (usize::from(cpu) % BITS)
}

/// A set of CPUs in the format of the kernel, built before the clone so that the child only reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuMask(Vec<MaskWord>);

impl CpuMask {
    /// The mask of these CPUs.
    pub fn of(cpus: &CpuSet) -> Self {
        let words = cpus.iter().next_back().map_or(1, |last| usize::from(last) / BITS + 1);
        let mut mask = vec![0; words];
        for cpu in cpus.iter() {
            mask[usize::from(cpu) / BITS] |= bit(cpu);
        }
        Self(mask)
    }

    /// The CPUs of the mask.
    pub fn cpus(&self) -> CpuSet {
        let is_in = |cpu: &u16| self.0.get(usize::from(*cpu) / BITS).is_some_and(|word| word & bit(*cpu) != 0);
        (0..=u16::MAX).filter(is_in).collect()
    }

    /// Restricts the calling thread to these CPUs; offline CPUs are ignored. Returns 0 or an errno: EINVAL if no online CPU
    /// is left. Async-signal-safe.
    pub(crate) fn apply_raw(&self) -> i32 {
        // SAFETY: the kernel reads the size of the slice. 0 is the calling thread.
        let rc =
            unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(self.0.as_slice()), self.0.as_ptr()) };
        // SAFETY: the C library's errno of this thread is always readable.
        if rc < 0 { unsafe { *libc::__errno_location() } } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_on_the_cpus_of_its_mask() {
        let before = own().unwrap();
        assert_eq!(listed_cpus(), Some(before.clone()));
        let one: CpuSet = before.iter().next_back().into_iter().collect();
        assert_eq!(CpuMask::of(&one).apply_raw(), 0);
        assert_eq!(own().unwrap(), one);
        assert_eq!(CpuMask::of(&one).cpus(), one);
        assert_eq!(CpuMask::of(&CpuSet::default()).apply_raw(), libc::EINVAL);
        assert_eq!(CpuMask::of(&[u16::MAX].into_iter().collect()).apply_raw(), libc::EINVAL);
        assert_eq!(own().unwrap(), one, "what fails changes nothing");
        // More words than the kernel has are no error.
        assert_eq!(CpuMask::of(&before.iter().chain([u16::MAX]).collect()).apply_raw(), 0);
        assert_eq!(own().unwrap(), before);
    }
}
