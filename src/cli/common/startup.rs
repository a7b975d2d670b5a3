//! How each front end starts: standard descriptors, signal handlers, the environment.

use crate::cli::common::error::CliError;
use crate::cli::common::status_pipe::StatusPipe;
use crate::plan::env::nested::{OuterLauncher, without_outer_exports};
use crate::run::launch::OWN_VARS;
use crate::spec::options::{EnvVars, Opt};
use crate::sys::io::console;
use crate::sys::io::terminal_modes::TerminalModes;
use crate::sys::signals::Signals;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use tracing::{info, warn};

/// Runs a launcher and returns its exit status. `status_fd`: the write end of the status pipe, or negative.
pub fn run_launcher(
    status_fd: RawFd,
    body: impl FnOnce(&mut Signals, &mut StatusPipe) -> Result<i32, CliError>,
) -> i32 {
    console::fill_standard_descriptors();
    let mut status_pipe = StatusPipe::take(status_fd);
    // A program that starts a launcher has the terminal, and may change its modes meanwhile.
    let terminal = (!status_pipe.is_read()).then(TerminalModes::save).flatten();
    // Never dropped: this process ends with the launcher, and a late Ctrl-C must not reach Python.
    let mut signals = match Signals::install() {
        Ok(signals) => ManuallyDrop::new(signals),
        Err(error) => return status_pipe.fail(&CliError::SignalHandlers(error)),
    };
    let ended = body(&mut signals, &mut status_pipe);
    if let Some(terminal) = terminal {
        terminal.restore();
    }
    match ended {
        Ok(status) => status,
        Err(error) => status_pipe.fail(&error),
    }
}

/// Logs which signals cannot stop the job because this launcher was started with them ignored: SIGINT as by `command &` in a script,
/// where no terminal shows that Ctrl-C has no effect, and SIGTERM, by which containers and schedulers stop jobs.
pub fn log_ignored_stops(signals: &Signals) {
    if signals.is_ignored(libc::SIGTERM) {
        warn!(
            "SIGTERM is ignored, as it was when this launcher started, so it does not stop the job (`docker stop`, Kubernetes and Slurm \
             send it); remove `trap '' TERM` from what starts this launcher, or stop the job by `rlaunch stop`"
        );
    }
    if signals.is_ignored(libc::SIGINT) && !signals.is_ignored(libc::SIGTERM) && !std::io::stderr().is_terminal() {
        info!("SIGINT is ignored, as it was when this launcher started; SIGTERM stops the job");
    }
}

/// Prints requested output (help, a plan) on stdout, and waits for its reader. `| head` may be gone already.
pub fn print_output(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// An environment, in its order.
pub type Environment = Vec<(OsString, OsString)>;

/// The environment of a launcher that may run inside a rank of another launcher.
pub struct LauncherEnv {
    /// The environment for its own ranks.
    pub base: Environment,
    /// The part of it that is text.
    pub vars: EnvVars,
    /// The outer launcher, if there is one. Its exports are in neither of the above.
    pub outer: Option<OuterLauncher>,
}

/// Separates what the user set from what an outer launcher exported.
pub fn separate_outer_exports(base: Environment, all: &EnvVars) -> LauncherEnv {
    let (vars, outer) = without_outer_exports(all);
    let dropped = outer.as_ref().map_or(&[][..], |outer| &outer.dropped);
    let is_kept = |name: &OsString| !dropped.iter().any(|d| *name == **d) && !OWN_VARS.iter().any(|s| *name == **s);
    let base = base.into_iter().filter(|(name, _)| is_kept(name)).collect();
    LauncherEnv { base, vars, outer }
}

/// Reads this process's environment, and the part of it that is text. The variables of `options` have to be text.
pub fn read_environment(options: &[Opt]) -> Result<(Environment, EnvVars), CliError> {
    let base: Environment = std::env::vars_os().collect();
    let is_not_text = |name: &str| base.iter().any(|(n, value)| *n == *name && value.to_str().is_none());
    if let Some(name) = options.iter().flat_map(|opt| opt.env).find(|name| is_not_text(name)) {
        return Err(CliError::VariableNotUtf8 { name: (*name).to_owned() });
    }
    let text = |(name, value): &(OsString, OsString)| Some((name.to_str()?.to_owned(), value.to_str()?.to_owned()));
    let vars = base.iter().filter_map(text).collect();
    Ok((base, vars))
}
