//! The process tree below this process, read from /proc. Only for the launcher's own processes: in a host program, other
//! code may own these children.

use crate::sys::clock;
use crate::sys::process::procfs::reader::{LockedFile, LockedFileReader, Readings};
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::{mark, pidfd, procfs};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Makes this process a subreaper: descendants whose parent dies become its children instead of init's (prctl(2),
/// PR_SET_CHILD_SUBREAPER). Children do not inherit the setting.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: prctl on integers.
    let rc = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The children of a process, including zombies; empty when it is gone. May miss a child that is forked meanwhile
/// (proc_pid_task(5)), so a complete list needs repeated calls.
pub fn children(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let Ok(tasks) = procfs::list(pid, "task") else { return found };
    for task in tasks.flatten() {
        match std::fs::read_to_string(task.path().join("children")) {
            Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(|p| p.parse::<i32>().ok())),
            // A kernel without CONFIG_PROC_CHILDREN, or a thread that has just ended.
            Err(_) if !task.path().exists() => {}
            Err(_) => return Snapshot::take().children(pid).to_vec(),
        }
    }
    found
}

/// Whether a process is another one or, by its present parents, a descendant of it.
pub fn descends_from(pid: i32, ancestor: i32) -> bool {
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|pid| *pid > 0) {
        if pid == ancestor {
            return true;
        }
        next = ProcStat::of(pid).map(|stat| stat.parent);
    }
    false
}

/// The kernel function in which a process sleeps, if the kernel shows it.
pub fn wait_channel(pid: i32) -> Option<String> {
    let text = String::from_utf8(procfs::read(pid, "wchan").ok()?).ok()?;
    (!text.is_empty() && text != "0").then_some(text)
}

/// The value of a variable in an environment as /proc shows it: that which the process was started with.
pub fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut vars = environment.split(|b| *b == 0);
    vars.find_map(|var| var.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// A helper process that ends by itself once its clients have, after it has removed what they shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanupHelper {
    /// multiprocessing's (and loky's) resource tracker, which unlinks shared memory, and its fork server: both end at
    /// once.
    Multiprocessing,
    /// `torch_shm_manager`, which unlinks the memory of torch's sharing strategy `file_system`: 2 s after its last
    /// client has ended (SHUTDOWN_TIMEOUT in torch/lib/libshm/manager.cpp).
    TorchShmManager,
}

/// `torch_shm_manager` as the kernel shortens it.
const TORCH_SHM_MANAGER: &str = "torch_shm_manag";

impl CleanupHelper {
    /// Which of them a process with this state and command line is.
    pub fn of(reader: &LockedFileReader, stat: &ProcStat, words: &[u8]) -> Option<Self> {
        if Self::is_torch_shm_manager(stat) {
            return Some(Self::TorchShmManager);
        }
        let has = |words: &[u8], part: &[u8]| words.windows(part.len()).any(|window| window == part);
        // Processes that the fork server has forked have its command line too.
        let is_fork_server = |words: &[u8]| has(words, b"forkserver import main");
        let helps = has(words, b"resource_tracker import main")
            || is_fork_server(words) && !is_fork_server(&command_line(reader, stat.parent));
        helps.then_some(Self::Multiprocessing)
    }

    /// Whether a process is `torch_shm_manager`.
    pub fn is_torch_shm_manager(stat: &ProcStat) -> bool {
        stat.name == TORCH_SHM_MANAGER
    }
}

/// The arguments of a process, each with a NUL after it; empty when it is gone and, for a moment, during execve, after its
/// parent has resumed.
pub fn command_line(reader: &LockedFileReader, pid: i32) -> Vec<u8> {
    reader.read(pid, LockedFile::CommandLine).unwrap_or_default()
}

/// Processes that have created shared memory for torch whose name is still there.
pub fn torch_memory_creators() -> BTreeSet<i32> {
    let creator = |name: &OsStr| name.to_str()?.strip_prefix("torch_")?.split('_').next()?.parse().ok();
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    files.filter_map(|file| creator(&file.file_name())).collect()
}

/// Whether a process is creating shared memory for torch: it has opened the file and not yet removed its name
/// (MapAllocator.cpp of aten/src/ATen). If it is killed in between, the file stays.
pub fn is_creating_torch_memory(pid: i32) -> bool {
    let Ok(open) = procfs::list(pid, "fd") else { return false };
    let start = format!("/dev/shm/torch_{pid}_");
    open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|path| {
        let path = path.as_os_str().as_bytes();
        path.starts_with(start.as_bytes()) && !path.ends_with(b" (deleted)")
    })
}

/// Where the keys of a job's processes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPlaces {
    /// In the environment: every rank was started by execve.
    Environment,
    /// Also in marks in the memory, because ranks may have been forked.
    EnvironmentAndMemory,
}

impl KeyPlaces {
    /// `forked`: whether ranks may have been forked without an execve.
    pub fn of(forked: bool) -> Self {
        if forked { Self::EnvironmentAndMemory } else { Self::Environment }
    }
}

/// The keys of processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundKeys {
    /// For each process that can be read. May be empty.
    pub keys: BTreeMap<i32, Vec<Vec<u8>>>,
    /// Processes without an environment: for a moment during execve, or always.
    pub bare: BTreeSet<i32>,
    /// Processes that show no key and were not read in time.
    pub late: BTreeSet<i32>,
}

/// The values of a variable `name` and of marks in the memory of these processes.
pub fn keys(
    reader: &LockedFileReader,
    pids: impl IntoIterator<Item = i32>,
    name: &str,
    places: KeyPlaces,
) -> FoundKeys {
    let pids: Vec<i32> = pids.into_iter().collect();
    let mut marks = Readings::default();
    if places == KeyPlaces::EnvironmentAndMemory {
        // Before the environments: a marked fork that calls execve in between loses the mark and gets the variable.
        marks = mark::in_memory(reader, pids.iter().copied());
    }
    let environments = reader.read_each(pids, LockedFile::Environment);
    if places == KeyPlaces::Environment {
        let overwritten = environments.found.iter().filter(|(_, block)| is_overwritten(block));
        marks = mark::in_memory(reader, overwritten.map(|(pid, _)| *pid));
    }
    let mut found = FoundKeys { keys: marks.found, late: &environments.late | &marks.late, ..FoundKeys::default() };
    for (pid, block) in environments.found {
        found.keys.entry(pid).or_default().extend(variable(&block, name).map(<[u8]>::to_vec));
        if block.is_empty() {
            found.bare.insert(pid);
        }
    }
    found.late.retain(|pid| found.keys.get(pid).is_none_or(Vec::is_empty));
    found
}

/// Whether a process has written something else over its environment, as setproctitle does with its title and zeros.
fn is_overwritten(environment: &[u8]) -> bool {
    !environment.is_empty() && !environment.contains(&b'=')
}

/// Which processes have a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyedProcesses {
    /// Those that have one.
    pub found: BTreeSet<i32>,
    /// Those that may have one: they were not read in time.
    pub late: BTreeSet<i32>,
}

/// Those of these processes that have a key that starts with `prefix`.
pub fn with_key_prefix(
    reader: &LockedFileReader,
    pids: impl IntoIterator<Item = i32>,
    (name, prefix): (&str, &str),
    places: KeyPlaces,
) -> KeyedProcesses {
    let FoundKeys { keys, late, .. } = keys(reader, pids, name, places);
    let starts = |keys: &[Vec<u8>]| keys.iter().any(|key| key.starts_with(prefix.as_bytes()));
    KeyedProcesses { found: keys.into_iter().filter(|(_, keys)| starts(keys)).map(|(pid, _)| pid).collect(), late }
}

/// Kills a process if `is_it` holds for its state. That is read again after its pidfd is open, because the pid may have been
/// reused since the caller read it. Returns it if the process was killed.
pub fn kill_if(pid: i32, is_it: impl Fn(&ProcStat) -> bool) -> Option<ProcStat> {
    signal_if(pid, libc::SIGKILL, is_it)
}

/// Sends a signal to a process in the same way.
pub fn signal_if(pid: i32, signal: i32, is_it: impl Fn(&ProcStat) -> bool) -> Option<ProcStat> {
    let fd = pidfd::open(pid).ok()?;
    let stat = ProcStat::of(pid).filter(|stat| stat.is_alive() && is_it(stat))?;
    pidfd::send_signal(fd.as_fd(), signal).ok().map(|()| stat)
}

/// Kills a process whose main thread has ended while other threads run: /proc shows it as a zombie.
pub fn kill_leaderless(pid: i32) {
    let Ok(fd) = pidfd::open(pid) else { return };
    if ProcStat::of(pid).is_some_and(|stat| stat.is_gone()) {
        // An error means that it has ended by now.
        let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
    }
}

/// Whether a process has more than one thread that has not ended. The first one counts as long as it is a zombie.
pub fn has_other_threads(pid: i32) -> bool {
    procfs::list(pid, "task").is_ok_and(|tasks| tasks.count() > 1)
}

/// Whether a child of this process that is no zombie is in this process group. Reads nothing of /proc: its cost is that of
/// one system call. In a subreaper, children of a group's members become its children when these members end.
pub fn has_living_child_in(group: i32) -> bool {
    let Ok(group) = libc::id_t::try_from(group) else { return false };
    // SAFETY: siginfo_t is plain data, for which all zeroes is a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // Without WEXITED a zombie is no child to wait for, so ECHILD means that there is none but zombies (wait_consider_task
    // in kernel/exit.c). WNOWAIT: children that have stopped are not asked about.
    let options = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: waitid fills `info`, a local value that outlives the call.
    unsafe { libc::waitid(libc::P_PGID, group, &mut info, options) == 0 }
}

/// Reaps children that have ended, except those that `is_known` accepts: their owners reap them. Returns their ids. Ends after
/// this time: processes that fork and end without pause become children as fast as they are reaped.
pub fn reap_orphans(limit: Duration, is_known: impl Fn(i32) -> bool) -> Vec<i32> {
    let (mut reaped, until, mut is_over) = (Vec::new(), clock::now() + limit, false);
    while !is_over {
        let Some(pid) = ended_child(libc::P_ALL, 0, libc::WNOWAIT) else { return reaped };
        if is_known(pid) {
            // The kernel would show this one again.
            let others = children(std::process::id() as i32).into_iter().filter(|pid| !is_known(*pid));
            reaped.extend(others.filter_map(|pid| ended_child(libc::P_PID, pid as libc::id_t, 0)));
            return reaped;
        }
        let Some(pid) = ended_child(libc::P_PID, pid as libc::id_t, 0) else { return reaped };
        reaped.push(pid);
        is_over = clock::now() >= until;
    }
    reaped
}

/// A child that has ended, which is reaped unless `more` has WNOWAIT.
fn ended_child(which: libc::idtype_t, id: libc::id_t, more: libc::c_int) -> Option<i32> {
    // SAFETY: all zeroes is a valid siginfo_t; waitid fills it, or leaves the zeroes when no child has ended (waitid(2)).
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let waited = libc::waitid(which, id, &mut info, libc::WEXITED | libc::WNOHANG | more);
        (waited == 0 && info.si_pid() != 0).then(|| info.si_pid())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the mask of these children is of no importance")]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn own() -> i32 {
        std::process::id() as i32
    }

    fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
        let late = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < late, "{what}");
            std::thread::yield_now();
        }
    }

    /// `cat`, which waits for its input, ended with the value.
    struct Cat(Child);

    impl Cat {
        fn start(with: impl Fn(&mut Command) -> &mut Command) -> io::Result<Self> {
            let mut command = Command::new("cat");
            let cat = with(command.stdin(Stdio::piped())).spawn()?;
            let reader = LockedFileReader::default();
            await_that("it has its own command line", || command_line(&reader, cat.id() as i32).starts_with(b"cat\0"));
            Ok(Self(cat))
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }

        /// Ends it and leaves the zombie.
        fn end(&mut self) -> io::Result<()> {
            drop(self.0.stdin.take());
            let pidfd = pidfd::open(self.pid())?;
            await_that("it ends", || pidfd::has_ended(pidfd.as_fd()).is_ok_and(|ended| ended));
            Ok(())
        }
    }

    impl Drop for Cat {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_zombie_is_no_living_member_of_its_group() -> io::Result<()> {
        let mut leader = Cat::start(|command| command.process_group(0))?;
        let group = leader.pid();
        let mut member = Cat::start(|command| command.process_group(group))?;
        assert!(has_living_child_in(group));
        leader.end()?;
        assert!(has_living_child_in(group), "the member lives");
        member.end()?;
        assert!(!has_living_child_in(group), "both are zombies");
        drop((leader, member));
        assert!(!has_living_child_in(group));
        Ok(())
    }

    #[test]
    fn children_are_listed_with_zombies() -> io::Result<()> {
        let (cat, mut zombie) = (Cat::start(|command| command)?, Cat::start(|command| command)?);
        zombie.end()?;
        let found = children(own());
        assert!(found.contains(&cat.pid()) && found.contains(&zombie.pid()) && !found.contains(&own()), "{found:?}");
        assert!(children(cat.pid()).is_empty());
        Ok(())
    }

    #[test]
    fn only_a_process_that_sleeps_has_a_wait_channel() -> io::Result<()> {
        let cat = Cat::start(|command| command)?;
        let path = format!("/proc/{}/wchan", cat.pid());
        await_that("it sleeps", || ProcStat::of(cat.pid()).is_some_and(|stat| stat.state == 'S'));
        let shown = std::fs::read_to_string(path)?;
        // "0" in some containers, whatever it does.
        assert_eq!(wait_channel(cat.pid()), Some(shown).filter(|shown| shown != "0"));
        assert_eq!(wait_channel(nix::unistd::gettid().as_raw()), None, "this thread runs");
        Ok(())
    }

    #[test]
    fn where_a_process_sleeps_is_what_the_kernel_shows() -> io::Result<()> {
        let mut cat = Cat::start(|command| command)?;
        let shown = || std::fs::read_to_string(format!("/proc/{}/wchan", cat.pid())).unwrap_or_default();
        let is_shown = |text: &String| !matches!(text.as_str(), "" | "0");
        // A container may hide it.
        let (mut seen, patience) = ((String::new(), None), Instant::now() + Duration::from_secs(2));
        await_that("it waits for its input", || {
            seen = (shown(), wait_channel(cat.pid()));
            is_shown(&seen.0) && seen.0 == shown() || Instant::now() >= patience
        });
        assert_eq!(seen.1, Some(seen.0).filter(is_shown));
        cat.end()?;
        assert_eq!(wait_channel(cat.pid()), None);
        Ok(())
    }

    #[test]
    fn a_variable_has_all_of_its_name() {
        let environment = b"AB=2\0A=1\0EMPTY=\0NOT";
        assert_eq!(variable(environment, "A"), Some(&b"1"[..]));
        assert_eq!(variable(environment, "EMPTY"), Some(&b""[..]));
        assert_eq!([variable(environment, "B"), variable(environment, "NOT")], [None, None]);
    }

    #[test]
    fn helpers_are_known_by_their_names_and_command_lines() -> io::Result<()> {
        let (reader, mut stat) = (LockedFileReader::default(), ProcStat::of(own()).ok_or(io::ErrorKind::NotFound)?);
        let of = |stat: &ProcStat, words: &[u8]| CleanupHelper::of(&reader, stat, words);
        let server = b"python\0-c\0from multiprocessing.forkserver import main; main(3)\0";
        let fork_server = Cat::start(|command| command.args(["-u", "-", "from forkserver import main"]))?;
        assert_eq!(
            of(&stat, b"python\0-c\0from multiprocessing.resource_tracker import main;main(3)\0"),
            Some(CleanupHelper::Multiprocessing)
        );
        assert_eq!(of(&stat, server), Some(CleanupHelper::Multiprocessing));
        assert_eq!(of(&stat, b"python\0train.py\0"), None);
        stat.parent = fork_server.pid();
        assert_eq!(of(&stat, server), None, "a process that the fork server has forked");
        stat.name = "torch_shm_manag".to_owned();
        assert_eq!(of(&stat, b""), Some(CleanupHelper::TorchShmManager));
        Ok(())
    }

    #[test]
    fn torch_memory_is_being_created_until_its_name_is_removed() -> io::Result<()> {
        let path = format!("/dev/shm/torch_{}_1_0", own());
        let file = std::fs::File::create(&path)?;
        let seen = (is_creating_torch_memory(own()), torch_memory_creators().contains(&own()));
        std::fs::remove_file(&path)?;
        assert_eq!(seen, (true, true));
        assert!(!is_creating_torch_memory(own()), "{file:?} has no name any more");
        assert!(!torch_memory_creators().contains(&own()));
        Ok(())
    }

    #[test]
    fn keys_are_read_where_ranks_may_have_them() -> io::Result<()> {
        const NAME: &str = "KEY_OF_THIS_TEST";
        assert_eq!(KeyPlaces::of(true), KeyPlaces::EnvironmentAndMemory);
        assert_eq!(KeyPlaces::of(false), KeyPlaces::Environment);
        let (mine, other) =
            (Cat::start(|command| command.env(NAME, "a/1"))?, Cat::start(|command| command.env(NAME, "b/1"))?);
        let bare = Cat::start(|command| command.env_clear())?;
        mark::mark_memory("a/2")?;
        let reader = LockedFileReader::default();
        let pids = [mine.pid(), other.pid(), bare.pid(), own()];
        let found = keys(&reader, pids, NAME, KeyPlaces::Environment);
        assert_eq!(found.keys.get(&mine.pid()), Some(&vec![b"a/1".to_vec()]));
        assert_eq!(found.keys.get(&own()), Some(&vec![]), "an environment that is whole");
        assert_eq!((found.bare, found.late), (BTreeSet::from([bare.pid()]), BTreeSet::new()));
        let prefix = |places| with_key_prefix(&reader, pids, (NAME, "a/"), places).found;
        assert_eq!(prefix(KeyPlaces::Environment), BTreeSet::from([mine.pid()]));
        assert_eq!(prefix(KeyPlaces::EnvironmentAndMemory), BTreeSet::from([mine.pid(), own()]));
        let is_overwritten = [&b""[..], b"A=1\0", b"a title\0\0"].map(is_overwritten);
        assert_eq!(is_overwritten, [false, false, true]);
        Ok(())
    }

    #[test]
    fn a_process_is_signalled_only_if_it_is_the_one() -> io::Result<()> {
        let (mut killed, mut ended) = (Cat::start(|command| command)?, Cat::start(|command| command)?);
        assert_eq!(kill_if(killed.pid(), |_| false), None);
        kill_leaderless(killed.pid());
        assert!(signal_if(ended.pid(), libc::SIGTERM, |stat| stat.parent == own()).is_some());
        assert_eq!(ended.0.wait()?.signal(), Some(libc::SIGTERM));
        assert_eq!(killed.0.try_wait()?, None, "neither call has killed it");
        let stat = kill_if(killed.pid(), |stat| stat.name == "cat");
        assert_eq!(stat.map(|stat| stat.parent), Some(own()));
        assert_eq!(killed.0.wait()?.signal(), Some(libc::SIGKILL));
        let mut zombie = Cat::start(|command| command)?;
        zombie.end()?;
        assert_eq!(kill_if(zombie.pid(), |_| true), None);
        Ok(())
    }

    #[test]
    fn threads_beside_the_first_are_counted() -> io::Result<()> {
        let cat = Cat::start(|command| command)?;
        assert!(has_other_threads(own()), "this test runs in one");
        assert!(!has_other_threads(cat.pid()));
        Ok(())
    }

    #[test]
    fn only_processes_that_no_owner_knows_are_reaped() -> io::Result<()> {
        let (mut orphan, mut known) = (Cat::start(|command| command)?, Cat::start(|command| command)?);
        known.end()?;
        orphan.end()?;
        let pid = orphan.pid();
        // The kernel shows the one that is known first, or that of another test.
        assert_eq!(reap_orphans(Duration::from_secs(1), |other| other != pid), [pid]);
        assert!(known.0.try_wait()?.is_some(), "it is its owner's");
        assert!(orphan.0.try_wait().is_err(), "reaped twice");
        // Its number may be another process's by now.
        std::mem::forget(orphan);
        Ok(())
    }
}
