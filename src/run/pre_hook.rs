//! A command of the user's before each round of an elastic job in the older launcher's ways.

use crate::sys::clock;
use crossbeam_channel::{RecvTimeoutError, bounded};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How often it is asked whether to go on.
const AGAIN: Duration = Duration::from_millis(50);

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

/// Has a shell run it, with these variables beside the launcher's own, for `limit` at most.
pub fn run(
    command: &str,
    vars: &[(&str, String)],
    limit: Duration,
    go_on: &mut dyn FnMut() -> bool,
) -> io::Result<Ran> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).envs(vars.iter().map(|(name, value)| (name, value)));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = shell.spawn()?;
    let (done, wait) = bounded(2);
    let stderr = child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    let stdout = child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    let pipes = [stdout, stderr].into_iter().enumerate().filter_map(|(number, pipe)| Some((number, pipe?)));
    for (number, mut pipe) in pipes {
        let done = done.clone();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            let _ = done.send((number, String::from_utf8_lossy(&bytes).trim().to_owned()));
        });
    }
    drop(done);
    let until = clock::now() + limit;
    let mut said = [String::new(), String::new()];
    let cut = loop {
        match wait.recv_timeout(AGAIN) {
            Ok((number, text)) => said[number] = text,
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if !go_on() {
            break Some(Ran::Stopped);
        }
        if clock::now() >= until {
            break Some(Ran::TooLong);
        }
    };
    if cut.is_some() {
        // It leads this group, and is not collected before; if `go_on` has done so, its pipes are held by others of it.
        let _ = i32::try_from(child.id()).map(|pid| killpg(Pid::from_raw(pid), Signal::SIGKILL));
    }
    // Whoever asked whether to go on may have collected it.
    let _ = child.wait();
    let [stdout, stderr] = said;
    Ok(cut.unwrap_or(if stderr.is_empty() { Ran::Well(stdout) } else { Ran::Complained(stderr) }))
}
