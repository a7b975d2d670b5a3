//! How a process handles signals: `/proc/PID/status`. Unlike `environ`, it is read without the memory lock of the process
//! (proc_pid_status in fs/proc/array.c), so a process that the kernel holds in mmap(2) delays no reader.

/// Fields of `/proc/PID/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcStatus {
    /// Its name, shortened by the kernel to 15 bytes.
    pub name: String,
    /// Its process group, in the PID namespace of /proc; `None`: the kernel does not show it.
    pub group: Option<i32>,
    caught: u64,
    ignored: u64,
    blocked: u64,
}

impl ProcStatus {
    /// The fields for a process; `None` when it is gone, or may not be read.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&super::read(pid, "status").ok()?))
    }

    /// The fields in the text of that file; `None` if it does not show how signals are handled.
    pub fn parse(text: &str) -> Option<Self> {
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let mask = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
        let group = field("NSpgid").and_then(|numbers| numbers.split_whitespace().next()?.parse().ok());
        let name = field("Name").unwrap_or_default().to_owned();
        Some(Self { name, group, caught: mask("SigCgt")?, ignored: mask("SigIgn")?, blocked: mask("SigBlk")? })
    }

    /// Whether it has a handler for a signal.
    pub fn catches(&self, signal: i32) -> bool {
        self.caught & bit(signal) != 0
    }

    /// Whether its main thread blocks a signal, as programs do that wait for it by sigwait(3) or signalfd(2).
    pub fn blocks(&self, signal: i32) -> bool {
        self.blocked & bit(signal) != 0
    }

    /// Whether it ignores a signal.
    pub fn ignores(&self, signal: i32) -> bool {
        self.ignored & bit(signal) != 0
    }
}

/// The bit of a signal in these masks (proc_pid_status(5)); 0: there is no such signal.
fn bit(signal: i32) -> u64 {
    u32::try_from(signal - 1).ok().and_then(|shift| 1u64.checked_shl(shift)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_bits() {
        let text = "Name:\tpt_main (thread)\nNSpgid:\t12\t3\nSigBlk:\t0000000000000200\nSigIgn:\t0000000001001000\nSigCgt:\t8000000000004002\n";
        let status = ProcStatus::parse(text).unwrap_or_default();
        assert_eq!((status.name.as_str(), status.group), ("pt_main (thread)", Some(12)));
        assert_eq!([2, 15, 64].map(|signal| status.catches(signal)), [true; 3]);
        assert_eq!([0, -1, 1, 13, 16, 65, i32::MIN + 1].map(|signal| status.catches(signal)), [false; 7]);
        assert_eq!([10, 9, 11].map(|signal| status.blocks(signal)), [true, false, false]);
        assert_eq!([13, 25, 15].map(|signal| status.ignores(signal)), [true, true, false]);
        assert_eq!(ProcStatus::parse("Name:\tx\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn this_process_is_read() {
        let pid = std::process::id() as i32;
        // Rust's runtime ignores SIGPIPE and catches SIGSEGV.
        let seen = ProcStatus::of(pid).map(|status| (status.ignores(libc::SIGPIPE), status.catches(libc::SIGSEGV)));
        assert_eq!(seen, Some((true, true)));
        // SAFETY: getpgrp has no arguments and no errors.
        assert_eq!(ProcStatus::of(pid).and_then(|status| status.group), Some(unsafe { libc::getpgrp() }));
        assert_eq!(ProcStatus::of(-1), None);
    }
}
