//! `rlaunch stop`: stops a job, and waits for its end.

use super::client::Client;
use super::error::ControlError;
use crate::cli::common::message::print_notice;
use crate::run::control::message::ControlRequest;
use crate::run::control::rank_facts;
use crate::sys::process::pidfd;
use std::os::fd::AsFd;
use std::time::Duration;

/// After which time it is said what is waited for.
const SLOW: Duration = Duration::from_secs(1);

pub(super) fn stop(mut client: Client, grace_period: Option<f64>, wait: bool) -> Result<(), ControlError> {
    let status = client.status()?;
    let launcher = pidfd::open(status.launcher).ok().filter(|_| is_launcher(status.launcher));
    let Some(launcher) = launcher.filter(|_| wait) else {
        if wait {
            return Err(ControlError::OtherNamespace(status.launcher));
        }
        client.ask(ControlRequest::Stop { grace_period })?;
        return Ok(());
    };
    client.ask(ControlRequest::Stop { grace_period })?;
    if !pidfd::await_any(&[launcher.as_fd()], SLOW) {
        print_notice(&format!("waiting for the end of job {} (pid {})", status.job_id, status.launcher));
        while !pidfd::await_any(&[launcher.as_fd()], Duration::from_secs(30)) {}
    }
    Ok(())
}

/// Whether a process of this number runs here: the launcher may be in another PID namespace.
fn is_launcher(pid: i32) -> bool {
    rank_facts::start_ticks(pid).is_some()
}
