//! Real child processes: their environment, signals, cgroups and exit statuses; no other process is ever signalled.

use nix::fcntl::{Flock, FlockArg};
use rlaunch::model::{CpuSet, Exit};
use rlaunch::run::output::console::LogFollower;
use rlaunch::run::output::pending_text::LogForm;
use rlaunch::sys::io::console::Console;
use rlaunch::sys::io::inotify::GrownFiles;
use rlaunch::sys::io::poll::Poller;
use rlaunch::sys::process::affinity;
use rlaunch::sys::process::affinity::CpuMask;
use rlaunch::sys::process::cgroup::{CgroupDir, JobCgroup};
use rlaunch::sys::process::child::Child;
use rlaunch::sys::process::lifeline::{KillScope, Lifeline};
use rlaunch::sys::process::pidfd;
use rlaunch::sys::process::spawn;
use rlaunch::sys::process::spawn::{ProcessGroup, SpawnCommand, SpawnDescriptors, c_strings};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// `/bin/sh -c script`, writing to `output`.
pub fn shell<'fd>(
    script: &str,
    output: &'fd OwnedFd,
    lifeline: Option<(BorrowedFd<'fd>, KillScope)>,
) -> (SpawnCommand, SpawnDescriptors<'fd>) {
    let words = |list: &[&str]| c_strings(list.iter().map(|w| w.as_bytes().to_vec())).unwrap();
    let command = SpawnCommand {
        program: words(&["/bin/sh"]).remove(0),
        argv: words(&["sh", "-c", script]),
        envp: words(&["PATH=/usr/bin:/bin", "ANSWER=42"]),
        group: ProcessGroup::Session,
        cwd: None,
        detached: false,
        mask: spawn::current_mask(),
        nofile: Some(77),
        affinity: None,
        default_sigpipe: true,
    };
    let stdio = [None, Some(output.as_fd()), None];
    (command, SpawnDescriptors { stdio, lifeline, ..SpawnDescriptors::default() })
}

pub fn pipe() -> (File, OwnedFd) {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    (File::from(read), write)
}

pub fn start((command, descriptors): &(SpawnCommand, SpawnDescriptors<'_>)) -> Arc<Child> {
    let started = spawn::start(command, descriptors).unwrap();
    Arc::new(Child::new(started.pid, started.pidfd, true))
}

fn ended(child: &Child) -> Exit {
    child.wait(Some(Duration::from_secs(20))).unwrap().unwrap()
}

fn output_of(script: &str) -> (String, Exit) {
    let (mut read, write) = pipe();
    let child = start(&shell(script, &write, None));
    drop(write);
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    (text, ended(&child))
}

#[test]
fn a_child_gets_its_environment_its_session_and_a_clean_signal_state() {
    let (text, exit) = output_of("echo $ANSWER; ulimit -n; cut -d' ' -f5-6 /proc/$$/stat; echo $$ $$; exit 7");
    assert_eq!(exit, Exit::Code(7));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["42", "77"]);
    assert_eq!(lines[2], lines[3], "process group and session are its own");
    // Of a program that takes the shell's place: a shell changes its own mask as it goes.
    let (text, _) = output_of("exec grep -E 'SigBlk|SigIgn' /proc/self/status");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "SigBlk:\t0000000000000000");
    // Rust ignores SIGPIPE in its programs; the child has it back. What else is ignored stays so.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ours = status.lines().find_map(|l| l.strip_prefix("SigIgn:\t")).unwrap();
    let ours = u64::from_str_radix(ours, 16).unwrap() & !(1 << (libc::SIGPIPE - 1));
    assert_eq!(lines[1], format!("SigIgn:\t{ours:016x}"));
    // 3 is the folder that ls reads.
    assert_eq!(output_of("exec ls /proc/self/fd").0, "0\n1\n2\n3\n", "nothing but 0, 1 and 2 is inherited");
}

#[test]
fn a_program_that_cannot_run_names_the_step_and_the_errno() {
    let (_, write) = pipe();
    let mut wanted = shell("true", &write, None);
    wanted.0.program = c_strings([b"/nowhere/at/all".to_vec()]).unwrap().remove(0);
    let error = spawn::start(&wanted.0, &wanted.1).unwrap_err();
    assert_eq!((error.step, error.errno), ("execve", libc::ENOENT));
    wanted.0.program = c_strings([b"/etc/passwd".to_vec()]).unwrap().remove(0);
    assert_eq!(spawn::start(&wanted.0, &wanted.1).unwrap_err().errno, libc::EACCES);
}

/// The CPUs that a child bound to these may run on, as the child reports them.
fn allowed(cpus: Option<&CpuSet>, change: impl FnOnce(&mut SpawnCommand)) -> String {
    let (mut read, write) = pipe();
    let mut wanted = shell("exec grep Cpus_allowed_list /proc/self/status", &write, None);
    wanted.0.affinity = cpus.map(CpuMask::of);
    change(&mut wanted.0);
    let is_detached = wanted.0.detached;
    let started = spawn::start(&wanted.0, &wanted.1).unwrap();
    drop(write);
    if !is_detached {
        ended(&Child::new(started.pid, started.pidfd, true));
    }
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    text.trim_start_matches("Cpus_allowed_list:").trim().to_owned()
}

#[test]
fn a_child_runs_on_the_cpus_it_is_bound_to() {
    let ours = affinity::own().unwrap();
    let one: CpuSet = ours.iter().next_back().into_iter().collect();
    assert_eq!(allowed(Some(&one), |_| ()), one.to_string());
    assert_eq!(allowed(Some(&one), |wanted| wanted.detached = true), one.to_string());
    assert_eq!(allowed(Some(&ours), |_| ()), ours.to_string());
    assert_eq!(affinity::own().unwrap(), ours, "the parent runs where it ran");
    let listed = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let listed = listed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    assert_eq!(allowed(None, |_| ()), listed.trim());
}

#[test]
fn a_binding_that_cannot_be_is_a_step_of_its_own() {
    let (_read, write) = pipe();
    let mut wanted = shell("true", &write, None);
    wanted.0.affinity = Some(CpuMask::of(&[u16::MAX].into_iter().collect()));
    let error = spawn::start(&wanted.0, &wanted.1).unwrap_err();
    assert_eq!((error.step, error.errno), ("affinity", libc::EINVAL));
    assert!(error.to_string().starts_with("affinity: "), "{error}");
}

#[test]
fn the_whole_group_dies_when_the_lifeline_closes() {
    let (mut read, write) = pipe();
    let (lifeline, end) = Lifeline::open().unwrap();
    // The shell's own child holds the pipe as well: EOF comes when both are gone.
    let wanted = shell("sleep 1000 & echo up; wait", &write, Some((end.as_fd(), KillScope::Group)));
    let child = start(&wanted);
    drop((write, end));
    let mut up = [0; 3];
    read.read_exact(&mut up).unwrap();
    drop(lifeline);
    assert_eq!(ended(&child), Exit::Signal(libc::SIGKILL));
    assert_eq!(read.read(&mut up).unwrap(), 0);
}

#[test]
fn processes_left_in_a_childs_group_are_swept_when_it_is_reaped() {
    let (mut read, write) = pipe();
    let child = start(&shell("sleep 1000 & exit 5", &write, None));
    drop(write);
    assert_eq!(ended(&child), Exit::Code(5));
    assert_eq!(read.read(&mut [0; 1]).unwrap(), 0, "the sleeper held the pipe and is gone");
}

#[test]
fn a_reaped_child_is_never_signalled_again() {
    let (_, write) = pipe();
    let child = start(&shell("exit 0", &write, None));
    assert_eq!(ended(&child), Exit::Code(0));
    child.signal(libc::SIGKILL).unwrap();
    child.signal_leader(libc::SIGKILL).unwrap();
    assert_eq!(child.try_exit().unwrap(), Some(Exit::Code(0)));
}

#[test]
fn a_status_that_another_thread_collected_is_still_found() {
    let (_, write) = pipe();
    let (command, descriptors) = shell("exit 9", &write, None);
    let started = spawn::start(&command, &descriptors).unwrap();
    let elsewhere = pidfd::open(started.pid).unwrap();
    let child = Child::new(started.pid, started.pidfd, true);
    let collected = loop {
        if let Some(exit) = pidfd::reap(elsewhere.as_fd()).unwrap() {
            break exit;
        }
        std::thread::yield_now();
    };
    assert_eq!(collected.exit, Exit::Code(9));
    let exit = child.try_exit().unwrap().unwrap();
    // Linux before 6.15 does not keep it.
    assert!([Exit::Code(9), Exit::Lost].contains(&exit), "{exit}");
}

/// multiprocessing's fork server may have collected a rank that ends at once before its number reaches us.
#[test]
fn a_child_of_a_fork_server_that_is_gone_before_it_is_named_still_has_its_status() {
    let gone = start(&shell("exit 0", &pipe().1, None));
    ended(&gone);
    for (code, exit) in [(3i64, Exit::Code(3)), (-9, Exit::Signal(9))] {
        let (status, server) = pipe();
        File::from(server).write_all(&code.to_le_bytes()).unwrap();
        let child = Child::of_fork_server(gone.pid(), status.into()).unwrap();
        assert!(!child.has_ended().unwrap());
        child.signal(libc::SIGKILL).unwrap();
        assert_eq!(child.try_exit().unwrap(), Some(exit));
    }
    let (status, server) = pipe();
    drop(server);
    let child = Child::of_fork_server(gone.pid(), status.into()).unwrap();
    assert_eq!(child.try_exit().unwrap(), Some(Exit::Lost));
}

/// A cgroup that processes can be started in, and its folder, where this machine has one; what a child says of its
/// own is in the last line of /proc/self/cgroup, the one of version 2.
fn cgroup(key: &str) -> Option<(JobCgroup, CgroupDir)> {
    let group = JobCgroup::find(&format!("{key}-{}", std::process::id()))?;
    let folder = group.create().ok()?;
    Some((group, folder))
}

/// Says where it is; then it, a child, and one with a session of its own hold the pipe.
const THREE: &str = "tail -n 1 /proc/self/cgroup; sleep 1000 & setsid sleep 1000 & exec sleep 1000";
const ALONE: &str = "tail -n 1 /proc/self/cgroup";

#[test]
fn one_write_kills_all_processes_of_a_cgroup() {
    let group = cgroup("write");
    let (mut read, write) = pipe();
    let mut wanted = shell(if group.is_some() { THREE } else { ALONE }, &write, None);
    wanted.1.cgroup = group.as_ref().map(|(_, folder)| folder.as_fd());
    let child = start(&wanted);
    drop(write);
    let mut line = String::new();
    let mut reader = BufReader::new(&mut read);
    reader.read_line(&mut line).unwrap();
    match group {
        Some((group, _)) => {
            assert!(line.trim_end().ends_with(group.path().file_name().unwrap().to_str().unwrap()), "{line}");
            // As a job may do that has controllers to set.
            std::fs::create_dir_all(group.path().join("below/it")).unwrap();
            assert!(group.is_populated() && group.members().contains(&child.pid()));
            assert!(group.close(Duration::from_secs(20)) && !group.path().exists());
            assert_eq!(ended(&child), Exit::Signal(libc::SIGKILL));
            assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0, "the other two held the pipe and are gone");
        }
        None => {
            assert!(!line.contains("rlaunch-write"), "{line}");
            assert_eq!(ended(&child), Exit::Code(0));
        }
    }
}

#[test]
fn a_cgroup_that_was_killed_takes_processes_once_it_is_renewed() {
    let Some((group, _)) = cgroup("again") else {
        return assert!(cgroup("again").is_none(), "nowhere to be had, every time");
    };
    for _ in 0..3 {
        group.kill().unwrap();
        let folder = group.renew(Duration::from_secs(20)).unwrap();
        let (_, write) = pipe();
        let mut wanted = shell("exit 7", &write, None);
        wanted.1.cgroup = Some(folder.as_fd());
        assert_eq!(ended(&start(&wanted)), Exit::Code(7));
    }
    assert!(group.close(Duration::from_secs(20)));
}

#[test]
fn a_cgroup_created_anew_survives_who_takes_its_predecessor_for_abandoned() {
    let Some((group, folder)) = cgroup("anew") else {
        return assert!(cgroup("anew").is_none(), "nowhere to be had, every time");
    };
    drop(folder);
    // Another launcher locks the cgroup between two rounds of its owner, and goes on once the next has begun.
    let how = FlockArg::LockExclusiveNonblock;
    let abandoned = Flock::lock(File::open(group.path()).unwrap(), how).unwrap_or_else(|(_, errno)| panic!("{errno}"));
    let folder = group.renew(Duration::ZERO).unwrap();
    let (mut read, write) = pipe();
    let mut wanted = shell("echo on; read end; exit 7", &write, None);
    let (input, end) = pipe();
    wanted.1.stdio[0] = Some(input.as_fd());
    wanted.1.cgroup = Some(folder.as_fd());
    let child = start(&wanted);
    read.read_exact(&mut [0; 3]).unwrap();
    let ended_it = group.end_locked(&abandoned, Duration::from_secs(20));
    assert_eq!(ended_it.unwrap_err().raw_os_error(), Some(libc::ENOENT), "the locked one is gone");
    assert_eq!(group.members(), [child.pid()]);
    drop(end);
    assert_eq!(ended(&child), Exit::Code(7));
    assert!(group.close(Duration::from_secs(20)));
}

#[test]
fn children_start_without_a_cgroup_that_cannot_be_joined() {
    let no_cgroup = File::open("/dev/null").unwrap();
    let (mut read, write) = pipe();
    let mut wanted = shell("echo $ANSWER; exit 7", &write, None);
    wanted.1.cgroup = Some(no_cgroup.as_fd());
    let child = start(&wanted);
    wanted.0.program = c_strings([b"/nowhere/at/all".to_vec()]).unwrap().remove(0);
    assert_eq!(spawn::start(&wanted.0, &wanted.1).unwrap_err().step, "execve");
    drop(write);
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), ended(&child)), ("42\n", Exit::Code(7)));
}

#[test]
fn a_program_that_cannot_run_leaves_a_cgroup_empty() {
    let group = cgroup("empty");
    let (_, write) = pipe();
    let mut wanted = shell("true", &write, None);
    wanted.1.cgroup = group.as_ref().map(|(_, folder)| folder.as_fd());
    wanted.0.program = c_strings([b"/nowhere/at/all".to_vec()]).unwrap().remove(0);
    let error = spawn::start(&wanted.0, &wanted.1).unwrap_err();
    assert_eq!((error.step, error.errno), ("execve", libc::ENOENT));
    assert!(group.is_none_or(|(group, _)| group.close(Duration::from_secs(20))));
}

#[test]
fn output_written_before_its_log_was_watched_is_shown() {
    let path = std::env::temp_dir().join(format!("rlaunch-followed-{}", std::process::id()));
    std::fs::write(&path, "early\n").unwrap();
    let (mut shown, console) = pipe();
    let poll = Poller::new().unwrap();
    let mut follower = LogFollower::new((Console::open(&console).unwrap(), "stderr".to_owned()), false, 0);
    drop(console);
    assert!(!follower.has_more());
    follower.follow(&path, 0, None, LogForm::Bytes).unwrap();
    // No event will ever report that the file has grown.
    assert!(follower.has_more());
    follower.copy(&poll).unwrap();
    assert!(!follower.has_more());
    drop(follower);
    let mut text = String::new();
    shown.read_to_string(&mut text).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(text, "early\n");
}

#[test]
fn ranks_at_terminals_share_one_line_by_line_except_for_bars() {
    let paths = [0, 1].map(|n| std::env::temp_dir().join(format!("rlaunch-shared-{}-{n}", std::process::id())));
    let mut logs = paths.each_ref().map(|path| File::create(path).unwrap());
    let (mut shown, console) = pipe();
    let poll = Poller::new().unwrap();
    let mut follower = LogFollower::new((Console::open(&console).unwrap(), "stderr".to_owned()), false, 0);
    drop(console);
    for path in &paths {
        follower.follow(path, 0, None, LogForm::Terminal).unwrap();
    }
    for (log, text) in [(0, "whole\nhalf "), (1, "\r 5%|#"), (0, "line\n"), (1, "\r 9%|##"), (0, "rest")] {
        logs[log].write_all(text.as_bytes()).unwrap();
        follower.grown(&GrownFiles::Any, &poll).unwrap();
    }
    follower.finish(Duration::ZERO, Duration::ZERO, &[], &mut || false).unwrap();
    drop(follower);
    let mut text = String::new();
    shown.read_to_string(&mut text).unwrap();
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    assert_eq!(text, "whole\n\r 5%|#half line\n\r 9%|##rest");
}
