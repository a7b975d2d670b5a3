//! The CPUs that a thread may run on (sched_setaffinity(2)).

use crate::model::CpuSet;
use std::io;

type Word = libc::c_ulong;
const BITS: usize = Word::BITS as usize;
/// Room for all CPUs that a `CpuSet` can hold: with less than the kernel's own, sched_getaffinity fails.
const WORDS: usize = (u16::MAX as usize + 1) / BITS;

/// The CPUs that the calling thread may run on and that are online.
pub fn own() -> io::Result<CpuSet> {
    let mut words = [0 as Word; WORDS];
    // SAFETY: the kernel writes at most as many bytes as the array has. 0 is the calling thread.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&words), words.as_mut_ptr()) };
    if bytes < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((0..=u16::MAX).filter(|cpu| words[usize::from(*cpu) / BITS] & bit(*cpu) != 0).collect())
}

fn bit(cpu: u16) -> Word {
    1 << (usize::from(cpu) % BITS)
}

/// A set of CPUs as the kernel wants it, made before a child is there: the child only points to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask(Vec<Word>);

impl Mask {
    /// Of these.
    pub fn of(cpus: &CpuSet) -> Self {
        let words = cpus.iter().next_back().map_or(1, |last| usize::from(last) / BITS + 1);
        let mut mask = vec![0; words];
        for cpu in cpus.iter() {
            mask[usize::from(cpu) / BITS] |= bit(cpu);
        }
        Self(mask)
    }

    /// Which they are.
    pub fn cpus(&self) -> CpuSet {
        let is_in = |cpu: &u16| self.0.get(usize::from(*cpu) / BITS).is_some_and(|word| word & bit(*cpu) != 0);
        (0..=u16::MAX).filter(is_in).collect()
    }

    /// Lets the calling thread run on these only; those that are not online are passed over. 0, or the errno: EINVAL
    /// if none is left.
    /// Async-signal-safe.
    pub(super) fn apply_raw(&self) -> i32 {
        // SAFETY: the kernel reads as many bytes as there are. 0 is the calling thread.
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
    fn a_thread_may_run_where_it_is_let() {
        let before = own().unwrap();
        let one: CpuSet = before.iter().next_back().into_iter().collect();
        assert_eq!(Mask::of(&one).apply_raw(), 0);
        assert_eq!(own().unwrap(), one);
        assert_eq!(Mask::of(&one).cpus(), one);
        assert_eq!(Mask::of(&CpuSet::default()).apply_raw(), libc::EINVAL);
        assert_eq!(Mask::of(&[u16::MAX].into_iter().collect()).apply_raw(), libc::EINVAL);
        assert_eq!(own().unwrap(), one, "what fails changes nothing");
        // More words than the kernel has are no error.
        assert_eq!(Mask::of(&before.iter().chain([u16::MAX]).collect()).apply_raw(), 0);
        assert_eq!(own().unwrap(), before);
    }
}
