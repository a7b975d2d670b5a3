//! The resource limits of a rank, which the kernel or Python enforces by a signal or an error (setrlimit(2)).

use crate::model::Exit;
use crate::probe::memory::size;
use crate::sys::process::procfs::stat::ProcStat;
use std::fs::read_to_string;

/// Limits of one process; `None`: unlimited or unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankLimits {
    /// Seconds of CPU time at which it gets SIGXCPU (`ulimit -St`).
    pub soft_cpu: Option<u64>,
    /// Seconds of CPU time at which it gets SIGKILL (`ulimit -Ht`).
    pub hard_cpu: Option<u64>,
    /// Bytes of the largest file that it may write (`ulimit -f`, which counts KiB).
    pub file_size: Option<u64>,
    /// Bytes of its core file (`ulimit -c`).
    pub core: Option<u64>,
    /// Seconds of CPU time that it has used, without its children: what the kernel compares.
    pub cpu_seconds: Option<f64>,
}

impl RankLimits {
    /// Those of a process that has not been reaped.
    pub fn of(pid: i32) -> Self {
        let limits = read_to_string(format!("/proc/{pid}/limits")).map(|text| Self::parse(&text)).unwrap_or_default();
        Self { cpu_seconds: ProcStat::of(pid).map(|stat| stat.cpu_seconds()), ..limits }
    }

    fn parse(text: &str) -> Self {
        let of = |name: &str, column: usize| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().nth(column)?.parse().ok()
        };
        Self {
            soft_cpu: of("Max cpu time", 0),
            hard_cpu: of("Max cpu time", 1),
            file_size: of("Max file size", 0),
            core: of("Max core file size", 0),
            cpu_seconds: None,
        }
    }

    /// The limit by which a process ended. `error`: what it printed of its error, if anything.
    pub fn explain(&self, exit: Exit, error: &str) -> Option<String> {
        let used = self.cpu_seconds.map_or(String::new(), |used| format!("; it used {used:.1} s"));
        match (exit, self.hard_cpu, self.soft_cpu) {
            (Exit::Signal(libc::SIGXCPU), _, Some(limit)) => {
                Some(format!("the kernel ended it at its limit of CPU time (ulimit -t) of {limit} s{used}"))
            }
            // The kernel compares whole ticks of its timer with the limit, and gives the precise time here: on a busy machine 2 s of ticks
            // were less than 1.75 s.
            (Exit::Signal(libc::SIGKILL), Some(limit), _)
                if self.cpu_seconds.is_some_and(|used| used + 0.25 >= limit as f64 * 2.0 / 3.0) =>
            {
                Some(format!("the kernel killed it at its hard limit of CPU time (ulimit -t) of {limit} s{used}"))
            }
            (Exit::Signal(libc::SIGXFSZ), ..) => Some(self.file_limit("the kernel ended it")),
            (Exit::Code(1..), ..) if error.contains("[Errno 27]") || error.contains("File too large") => {
                self.file_size.map(|_| self.file_limit("a write failed"))
            }
            _ => None,
        }
    }

    fn file_limit(&self, what: &str) -> String {
        let limit = self.file_size.map_or(String::new(), |bytes| format!(" of {}", size(bytes)));
        format!("{what}: a file reached the limit of its size (ulimit -f){limit}")
    }

    /// Why a process that a signal ended has left no whole core file, if a limit is the reason and it is not the usual 0.
    /// `memory`: the bytes that it used at most, which its core file has about.
    pub fn explain_missing_core(&self, exit: Exit, memory: Option<u64>) -> Option<String> {
        let dumps =
            matches!(exit, Exit::Signal(libc::SIGSEGV | libc::SIGABRT | libc::SIGBUS | libc::SIGFPE | libc::SIGILL));
        let is_short = |limit: &u64| *limit > 0 && memory.is_none_or(|memory| *limit < memory);
        let limit = self.core.filter(|limit| dumps && is_short(limit))?;
        Some(format!("its core file is at most {} (ulimit -c), and may be cut or missing", size(limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
        Max cpu time              2                    5                    seconds   \n\
        Max file size             4096                 unlimited            bytes     \n\
        Max core file size        unlimited            unlimited            bytes     \n";

    #[test]
    fn the_limit_that_ended_a_process_is_named() {
        let limits = RankLimits::parse(TEXT);
        let known = RankLimits { soft_cpu: Some(2), hard_cpu: Some(5), file_size: Some(4096), ..RankLimits::default() };
        assert_eq!(limits, known);
        let after = |used| RankLimits { cpu_seconds: Some(used), ..limits };
        let named = |exit, used, error: &str| after(used).explain(exit, error).is_some();
        for (exit, used, error, wanted) in [
            (Exit::Signal(libc::SIGXCPU), 2.0, "", true),
            (Exit::Signal(libc::SIGKILL), 5.0, "", true),
            (Exit::Signal(libc::SIGKILL), 3.5, "", true),
            (Exit::Signal(libc::SIGKILL), 3.0, "", false),
            (Exit::Signal(libc::SIGXFSZ), 0.1, "", true),
            (Exit::Signal(libc::SIGTERM), 9.0, "[Errno 27] File too large", false),
            (Exit::Code(1), 0.1, "OSError: [Errno 27] File too large", true),
            (Exit::Code(1), 9.0, "ValueError", false),
        ] {
            assert_eq!(named(exit, used, error), wanted, "{exit} {used} {error}");
        }
        assert_eq!(RankLimits::default().explain(Exit::Code(1), "[Errno 27]"), None);
        assert_eq!(RankLimits::parse("\u{fffd}"), RankLimits::default());
        let limits = RankLimits { core: Some(1 << 20), ..RankLimits::default() };
        let cut = |exit, memory| limits.explain_missing_core(exit, memory).is_some();
        let crash = Exit::Signal(libc::SIGSEGV);
        assert!(
            cut(crash, Some(2 << 20)) && cut(crash, None) && !cut(crash, Some(1 << 19)) && !cut(Exit::Code(1), None)
        );
    }
}
