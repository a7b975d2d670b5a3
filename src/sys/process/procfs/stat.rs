//! The state of one process: `/proc/PID/stat`.

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcStat {
    /// Its name, shortened by the kernel to 15 bytes.
    pub name: String,
    /// `R`, `S`, `D`, `T`, `Z`, ...
    pub state: char,
    /// Its parent's process id.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// Whether it is exiting: it runs no more code of its own and becomes a zombie.
    pub exiting: bool,
    /// CPU time of all its threads, in clock ticks.
    pub cpu_ticks: u64,
    /// CPU time of the children that it has waited for, and of theirs, in clock ticks.
    pub waited_ticks: u64,
    /// Its start time in clock ticks since boot.
    pub started: u64,
}

/// PF_EXITING of include/linux/sched.h, a bit of the ninth field.
const PF_EXITING: u64 = 4;

impl ProcStat {
    /// The fields for a process; `None` when it is gone.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&super::read_short(pid, "stat").ok()?)
    }

    /// The fields in a line of that file.
    pub fn parse(line: &[u8]) -> Option<Self> {
        // The name may contain any byte, also `)` and blanks (proc_pid_stat(5)): it ends at the last `)`.
        let open = line.iter().position(|b| *b == b'(')?;
        let close = line.iter().rposition(|b| *b == b')')?;
        let name = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        let flags: u64 = fields.nth(2)?.parse().ok()?;
        let mut later = |skipped: usize| fields.nth(skipped).and_then(|field| field.parse::<u64>().ok());
        let cpu_ticks = later(4).unwrap_or(0).saturating_add(later(0).unwrap_or(0));
        let waited_ticks = later(0).unwrap_or(0).saturating_add(later(0).unwrap_or(0));
        let started = later(4).unwrap_or(u64::MAX);
        Some(Self {
            name,
            state,
            parent,
            group,
            session,
            exiting: flags & PF_EXITING != 0,
            cpu_ticks,
            waited_ticks,
            started,
        })
    }

    /// CPU time of all its threads, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        self.cpu_ticks as f64 / ticks_per_second() as f64
    }

    /// The same with the children that it has waited for.
    pub fn cpu_seconds_with_waited(&self) -> f64 {
        self.cpu_ticks.saturating_add(self.waited_ticks) as f64 / ticks_per_second() as f64
    }

    /// Whether it is a zombie or gone.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether it still runs code: neither exiting nor a zombie.
    pub fn is_alive(&self) -> bool {
        !self.exiting && !self.is_gone()
    }
}

/// Clock ticks of /proc a second (sysconf(3), _SC_CLK_TCK).
pub fn ticks_per_second() -> u64 {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    ticks.and_then(|ticks| u64::try_from(ticks).ok()).filter(|ticks| *ticks > 0).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_parentheses() {
        let stat = ProcStat::parse(b"12 (a) (S b) R 1 2 3 0 -1 4194304 9 0 0 0 1 2 3 4 20 0 1 0 77 8")
            .unwrap_or_else(|| unreachable!());
        assert_eq!((stat.name.as_str(), stat.state, stat.parent, stat.session), ("a) (S b", 'R', 1, 3));
        assert_eq!((stat.cpu_ticks, stat.waited_ticks, stat.started), (3, 7, 77));
        assert_eq!(
            [ProcStat::parse(b""), ProcStat::parse(b"1 ) ("), ProcStat::parse(b"1 (x) R 1")],
            [None, None, None]
        );
        let ticks = ticks_per_second() as f64;
        assert_eq!((stat.cpu_seconds(), stat.cpu_seconds_with_waited()), (3.0 / ticks, 10.0 / ticks));
        // SAFETY: sysconf on an integer.
        assert_eq!(ticks as i64, unsafe { libc::sysconf(libc::_SC_CLK_TCK) });
        assert!(stat.is_alive());
        let exiting = ProcStat::parse(b"12 (a) D 1 2 3 0 -1 4194564 9");
        assert!(exiting.is_some_and(|stat| !stat.is_alive()), "PF_EXITING");
    }
}
