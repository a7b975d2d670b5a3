//! A command of the user's before each round of an elastic job in the older launcher's ways.

use crate::run::SECRETS;
use crate::sys::child::Child;
use crate::sys::clock;
use crate::sys::poll::Poll;
use crate::sys::spawn::{self, Group, Start};
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, pipe2};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

/// How often it is asked whether to go on, at least.
const AGAIN: Duration = Duration::from_millis(100);

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// What it wrote to stdout.
    Well(String),
    /// What it wrote to stderr, which the older launcher takes for a failure, whatever the status.
    Complained(String),
    /// It took longer than that, and was killed.
    TooLong,
    /// There was no use in going on, and it was killed.
    Stopped,
}

/// What it writes to one descriptor.
struct Written {
    pipe: File,
    bytes: Vec<u8>,
}

/// Has a shell run it, with these variables beside the launcher's own, for `limit` at most. What it leaves in the background
/// lives on, as long as the job.
pub fn run(
    command: &str,
    vars: &[(&str, String)],
    limit: Duration,
    go_on: &mut dyn FnMut() -> bool,
) -> io::Result<Ran> {
    let poll = Poll::new()?;
    let (child, mut written) = start(command, vars)?;
    poll.readable(&child, 0)?;
    for one in &written {
        poll.readable(&one.pipe, 0)?;
    }
    let until = clock::now() + limit;
    loop {
        for one in &mut written {
            one.take(&poll)?;
        }
        // Whoever is asked may collect it.
        let goes_on = go_on();
        if child.try_exit()?.is_some() {
            break;
        }
        let late = clock::now() >= until;
        if late || !goes_on {
            // Nobody has collected it: the group's number is its own.
            let _ = killpg(Pid::from_raw(child.pid()), Signal::SIGKILL);
            child.wait(None)?;
            return Ok(if late { Ran::TooLong } else { Ran::Stopped });
        }
        poll.wait(Some(AGAIN))?;
    }
    let [stdout, stderr] = written.map(|mut one| {
        // What it has written is there; what others of it may still write is not waited for.
        let _ = one.take(&poll);
        String::from_utf8_lossy(&one.bytes).trim().to_owned()
    });
    Ok(if stderr.is_empty() { Ran::Well(stdout) } else { Ran::Complained(stderr) })
}

fn start(command: &str, vars: &[(&str, String)]) -> io::Result<(Child, [Written; 2])> {
    let mut env: BTreeMap<OsString, OsString> =
        std::env::vars_os().filter(|(name, _)| !SECRETS.iter().any(|secret| *name == **secret)).collect();
    env.extend(vars.iter().map(|(name, value)| ((*name).into(), value.into())));
    let env = env.into_iter().map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='));
    let argv = ["sh", "-c", command].map(|word| word.as_bytes().to_vec());
    let null: OwnedFd = File::open("/dev/null")?.into();
    let pipe = || pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK);
    let [(own_out, out), (own_err, err)] = [pipe()?, pipe()?];
    for end in [&out, &err] {
        // It may write as it likes.
        nix::fcntl::fcntl(end, nix::fcntl::FcntlArg::F_SETFL(OFlag::empty()))?;
    }
    let start = Start {
        program: c"/bin/sh".to_owned(),
        argv: spawn::c_strings(argv)?,
        envp: spawn::c_strings(env)?,
        stdio: [&null, &out, &err].map(|fd| Some(fd.as_raw_fd())),
        keep: Vec::new(),
        group: Group::Session,
        cgroup: None,
        cwd: None,
        detached: false,
        lifeline: None,
        mask: spawn::current_mask(),
        nofile: None,
        affinity: None,
        default_sigpipe: true,
    };
    let started = spawn::start(&start).map_err(|error| io::Error::other(error.to_string()))?;
    let written = [own_out, own_err].map(|pipe| Written { pipe: pipe.into(), bytes: Vec::new() });
    Ok((Child::new(started.pid, started.pidfd, false), written))
}

impl Written {
    /// Takes in what is there.
    fn take(&mut self, poll: &Poll) -> io::Result<()> {
        match self.pipe.read_to_end(&mut self.bytes) {
            // Nobody will write any more. It may have been forgotten before.
            Ok(_) => drop(poll.forget(&self.pipe)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
