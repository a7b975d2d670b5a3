//! Progress messages while a job is stopped or restarted: lines on stderr, whatever the log level.

use crate::cli::common::message::print_notice;
use crate::model::ProcessLabel;
use crate::model::exit::signal_label;
use crate::report::cause::verdict::Verdict;
use crate::report::console::escape::plain;
use crate::report::wording::named;
use crate::run::stop_requests::SAME_REQUEST;
use crate::supervise::{AbortReason, NoRestart, ProgressNote, SupervisionPolicy};
use crate::sys::clock;
use std::time::Duration;

/// `rank(s) 0, 1`, `rank(s) 0, 1 and server(s) 0`.
fn list_by_role(all: &[ProcessLabel]) -> String {
    let of = |(role, numbers): &(_, Vec<usize>)| {
        format!("{role}(s) {}", numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
    };
    ProcessLabel::by_role(all).iter().map(of).collect::<Vec<_>>().join(" and ")
}

/// Prints a progress message. `label`: the label of a process by its number on this node.
pub fn print_progress(
    note: &ProgressNote,
    failure: Option<&Verdict>,
    policy: &SupervisionPolicy,
    label: &dyn Fn(usize) -> ProcessLabel,
) {
    // The report on this rank has said it.
    if !matches!(note, ProgressNote::Aborting { reason: AbortReason::StuckExit(_), .. }) {
        print_notice(&line(note, failure, grace_left(policy), label));
    }
}

/// Says who stops the job.
pub(crate) fn print_users_stop() {
    print_notice("`rlaunch stop` stops this job");
}

/// `failure`: what a restart follows; `grace`: seconds.
fn line(note: &ProgressNote, failure: Option<&Verdict>, grace: f64, label: &dyn Fn(usize) -> ProcessLabel) -> String {
    let names = |living: &[usize]| list_by_role(&living.iter().map(|local| label(*local)).collect::<Vec<_>>());
    match note {
        // Paddle's launcher prints this, and scripts match it.
        ProgressNote::Finishing { living } => format!(
            "all workers exit, going to finish parameter server: waiting up to {grace} s for {} to stop",
            names(living)
        ),
        ProgressNote::AwaitingServers { living, limit } => {
            let limit = limit.map_or("without a limit".into(), |limit| format!("up to {} s", limit.as_secs_f64()));
            format!("all workers have exited: waiting {limit} for {} to exit (--server_timeout)", names(living))
        }
        ProgressNote::Stopping { signal, living, .. } if living.is_empty() => {
            format!("{}: nothing runs", signal_label(*signal))
        }
        ProgressNote::Stopping { signal, living, grace } => format!(
            "{}: waiting up to {} s for {} to stop; the same signal again after {} s kills them at once",
            signal_label(*signal),
            seconds_left(*grace),
            names(living),
            SAME_REQUEST.as_secs_f64().ceil()
        ),
        ProgressNote::Forced { living } => format!("second signal: killing {}", names(living)),
        ProgressNote::Aborting { ranks, reason } => {
            let (runs, they, get) = if ranks.len() == 1 { ("runs", "it", "gets") } else { ("run", "they", "get") };
            let labels: Vec<_> = ranks.iter().map(|local| label(*local)).collect();
            match reason {
                AbortReason::Hang { .. } => format!("{} {get} SIGABRT (--on_hang abort)", named(&labels)),
                AbortReason::StuckExit(_) => format!("{} {get} SIGABRT (--exit_timeout)", named(&labels)),
                AbortReason::Straggler { first, limit } => format!(
                    "{} still {runs} {} s after {} exited successfully (--straggler_timeout); {they} {get} SIGABRT",
                    list_by_role(&labels),
                    limit.as_secs_f64(),
                    label(*first)
                ),
            }
        }
        ProgressNote::AbortIgnored { living } => {
            format!("{} did not end by SIGABRT within the grace period: sending SIGKILL", names(living))
        }
        ProgressNote::Killing { living } => format!("sending SIGKILL to {}", names(living)),
        ProgressNote::Unkillable { living } => {
            format!("{} still running after SIGKILL; left behind", names(living))
        }
        ProgressNote::Restarting { restart, of, delay, .. } => {
            let wait = if delay.is_zero() { "at once".into() } else { format!("in {:.1} s", delay.as_secs_f64()) };
            let failed = failure.map(|failure| failed_first(failure, label)).unwrap_or_default();
            format!("{failed}; restart {restart} (at most {of}) {wait}")
        }
        ProgressNote::RestartRequested { living, .. } if living.is_empty() => {
            "`rlaunch restart`: no rank runs yet; all start again".into()
        }
        ProgressNote::RestartRequested { living, grace, .. } => format!(
            "`rlaunch restart`: waiting up to {} s for {} to stop, then all ranks start again",
            to_millis(*grace),
            names(living)
        ),
        ProgressNote::NotRestarting { why } => format!("no restart: {}", describe_no_restart(*why)),
    }
}

/// Prints what the stop after a failure waits for. `living`: numbers on this node, of which `label` gives the labels.
pub fn print_slow_stop(
    failure: &Verdict,
    living: &[usize],
    left: Option<Duration>,
    label: &dyn Fn(usize) -> ProcessLabel,
) {
    let failed = failed_first(failure, label);
    let living = list_by_role(&living.iter().map(|local| label(*local)).collect::<Vec<_>>());
    let limit = left.map_or(String::new(), |left| format!("up to {:.0} s more ", left.as_secs_f64().ceil()));
    print_notice(&format!("{failed}; waiting {limit}for {living} to stop"));
}

/// `rank 1 failed first, with exit code 3: ValueError: again`. A rank that was still exiting when it was stopped has no exit of its own.
fn failed_first(failure: &Verdict, label: &dyn Fn(usize) -> ProcessLabel) -> String {
    let sender = if failure.was_aborted { " (sent by rlaunch)" } else { "" };
    let how = failure.exit.map_or(String::new(), |exit| format!(", with {exit}{sender}"));
    let message = failure.message();
    let colon = if message.is_empty() { "" } else { ": " };
    format!("{} failed first{how}{colon}{}", label(failure.culprit), plain(message.as_bytes()))
}

/// Why a failure is not followed by a restart.
pub(crate) fn describe_no_restart(why: NoRestart) -> String {
    match why {
        NoRestart::Never(status) => format!("--never_restart_on has status {status}"),
        NoRestart::NotListed(status) => format!("--restart_on does not have status {status}"),
        NoRestart::SameFailure(times) => format!("the same rank has failed in the same way {times} time(s) in a row"),
        NoRestart::UsedUp(restarts) => format!("{restarts} of {restarts} restarts used"),
        NoRestart::StartFailed => "a rank could not be started".into(),
        NoRestart::Stopped => "the job was asked to stop".into(),
        NoRestart::LauncherKilled => "the launcher process was killed".into(),
        NoRestart::Unkillable => "a rank of the failed attempt still runs".into(),
    }
}

/// Seconds that ranks have to stop from now on, to the millisecond.
fn grace_left(policy: &SupervisionPolicy) -> f64 {
    let left = policy.stop_by.map_or(Duration::MAX, |at| at.saturating_sub(clock::now()));
    to_millis(policy.grace.min(left))
}

/// The seconds that are left at most: whole ones, but for a short time.
fn seconds_left(time: Duration) -> f64 {
    if time < Duration::from_secs(10) { to_millis(time) } else { time.as_secs_f64().ceil() }
}

/// Seconds, to the millisecond.
fn to_millis(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Role;

    #[test]
    fn a_restart_before_the_first_rank_names_none() {
        let rank = |number| ProcessLabel { role: Role::Trainer, number };
        let asked = |living| ProgressNote::RestartRequested { attempt: 1, living, grace: Duration::from_secs(3) };
        let of = |living| line(&asked(living), None, 3.0, &rank);
        assert_eq!(of(vec![]), "`rlaunch restart`: no rank runs yet; all start again");
        assert_eq!(
            of(vec![1]),
            "`rlaunch restart`: waiting up to 3 s for rank(s) 1 to stop, then all ranks start again"
        );
    }

    #[test]
    fn the_end_of_the_servers_is_reported_in_paddles_text() {
        let server = |number| ProcessLabel { role: Role::Server, number };
        let text = line(&ProgressNote::Finishing { living: vec![0, 2] }, None, 1.5, &server);
        assert!(text.contains("all workers exit, going to finish parameter server"), "{text}");
        assert!(text.contains("server(s) 0, 2"), "{text}");
    }
}
