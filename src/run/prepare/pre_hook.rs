//! The pre-hook: a shell command of the user that runs before each round of a legacy elastic job (`--elastic_pre_hook`).

use crate::run::launch::OWN_VARS;
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use crate::sys::process::child::Child;
use crate::sys::process::spawn;
use crate::sys::process::spawn::{SpawnCommand, SpawnDescriptors};
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, pipe2};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

/// How often `go_on` is called, at least.
const INTERVAL: Duration = Duration::from_millis(100);

/// How the command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookResult {
    /// It wrote nothing to stderr; its stdout.
    Succeeded(String),
    /// It wrote to stderr; that text. The legacy launcher considers this a failure, whatever the exit status.
    Failed(String),
    /// It exceeded the time limit and was killed.
    TimedOut,
    /// The launcher is being stopped, so it was killed.
    Stopped,
}

/// A pipe from the command, and its content so far.
struct HookOutput {
    pipe: File,
    bytes: Vec<u8>,
}

/// Runs the command in a shell, with these variables in addition to the launcher's, for `limit` at most. Its background
/// processes continue to run until the end of the job.
pub fn run(
    command: &str,
    vars: &[(&str, String)],
    limit: Duration,
    go_on: &mut dyn FnMut() -> bool,
) -> io::Result<HookResult> {
    let poll = Poller::new()?;
    let (child, mut written) = start(command, vars)?;
    poll.readable(&child, 0)?;
    for one in &written {
        poll.readable(&one.pipe, 0)?;
    }
    let until = clock::now() + limit;
    loop {
        for one in &mut written {
            one.read(&poll)?;
        }
        // May reap the shell.
        let goes_on = go_on();
        if child.try_exit()?.is_some() {
            break;
        }
        let late = clock::now() >= until;
        if late || !goes_on {
            // The shell has not been reaped, so its process group number has not been reused.
            let _ = killpg(Pid::from_raw(child.pid()), Signal::SIGKILL);
            child.wait(None)?;
            return Ok(if late { HookResult::TimedOut } else { HookResult::Stopped });
        }
        poll.wait(Some(INTERVAL))?;
    }
    let [stdout, stderr] = written.map(|mut one| {
        // Its own output is complete. Background processes may write more, which is not waited for.
        let _ = one.read(&poll);
        String::from_utf8_lossy(&one.bytes).trim().to_owned()
    });
    Ok(if stderr.is_empty() { HookResult::Succeeded(stdout) } else { HookResult::Failed(stderr) })
}

fn start(command: &str, vars: &[(&str, String)]) -> io::Result<(Child, [HookOutput; 2])> {
    let mut env: BTreeMap<OsString, OsString> =
        std::env::vars_os().filter(|(name, _)| !OWN_VARS.iter().any(|secret| *name == **secret)).collect();
    env.extend(vars.iter().map(|(name, value)| ((*name).into(), value.into())));
    let env = env.into_iter().map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='));
    let argv = ["sh", "-c", command].map(|word| word.as_bytes().to_vec());
    let null: OwnedFd = File::open("/dev/null")?.into();
    let pipe = || pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK);
    let [(own_out, out), (own_err, err)] = [pipe()?, pipe()?];
    for end in [&out, &err] {
        // The command's own ends block, as programs expect.
        nix::fcntl::fcntl(end, nix::fcntl::FcntlArg::F_SETFL(OFlag::empty()))?;
    }
    let start = SpawnCommand::new("/bin/sh", argv.into(), env.collect())?;
    let stdio = [&null, &out, &err].map(|fd| Some(fd.as_fd()));
    let started = spawn::start(&start, &SpawnDescriptors { stdio, ..SpawnDescriptors::default() })
        .map_err(|error| io::Error::other(error.to_string()))?;
    let written = [own_out, own_err].map(|pipe| HookOutput { pipe: pipe.into(), bytes: Vec::new() });
    Ok((Child::new(started.pid, started.pidfd, false), written))
}

impl HookOutput {
    /// Reads what is there.
    fn read(&mut self, poll: &Poller) -> io::Result<()> {
        match self.pipe.read_to_end(&mut self.bytes) {
            // All writers are gone. The pipe may have been removed from `poll` before.
            Ok(_) => drop(poll.forget(&self.pipe)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
