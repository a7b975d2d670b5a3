//! What people are told while a job is on its way down, or up again: lines on stderr, past the log level.

use super::refusal::tell;
use crate::model::Who;
use crate::model::exit::signal_label;
use crate::supervise::{NoRestart, Note, Policy};
use crate::sys::clock;
use std::time::Duration;

/// `rank(s) 0, 1`, `rank(s) 0, 1 and server(s) 0`.
fn list(all: &[Who]) -> String {
    let of = |(role, numbers): &(_, Vec<usize>)| {
        format!("{role}(s) {}", numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
    };
    Who::by_role(all).iter().map(of).collect::<Vec<_>>().join(" and ")
}

/// Says it; `who` knows a process by its number on this node. Whoever stops a job is told what it waits for.
pub fn say(note: &Note, policy: &Policy, who: &dyn Fn(usize) -> Who) {
    tell(&line(note, grace_now(policy), who));
}

/// `grace` is in seconds.
fn line(note: &Note, grace: f64, who: &dyn Fn(usize) -> Who) -> String {
    let names = |living: &[usize]| list(&living.iter().map(|local| who(*local)).collect::<Vec<_>>());
    match note {
        // Paddle's launcher says so, and scripts match on it.
        Note::Finishing { living } => format!(
            "all workers exit, going to finish parameter server: waiting up to {grace} s for {} to stop",
            names(living)
        ),
        Note::Stopping { signal, living } if living.is_empty() => format!("{}: nothing runs", signal_label(*signal)),
        Note::Stopping { signal, living } => format!(
            "{}: waiting up to {grace} s for {} to stop; the same signal again kills them at once",
            signal_label(*signal),
            names(living)
        ),
        Note::Forced { living } => format!("second signal: killing {}", names(living)),
        Note::Killing { living } => format!("sending SIGKILL to {}", names(living)),
        Note::Unkillable { living } => {
            format!("{} do not end after SIGKILL and are left behind", names(living))
        }
        Note::Restarting { attempt, of, culprit, exit, delay } => {
            let wait = if delay.is_zero() { "at once".into() } else { format!("in {:.1} s", delay.as_secs_f64()) };
            format!("{} ended first, with {exit}; restart {attempt} (at most {of}) {wait}", who(*culprit))
        }
        Note::NotRestarting { why } => format!("no restart: {}", why_not(*why)),
    }
}

pub(super) fn why_not(why: NoRestart) -> String {
    match why {
        NoRestart::Never(status) => format!("--never_restart_on has status {status}"),
        NoRestart::NotListed(status) => format!("--restart_on does not have status {status}"),
        NoRestart::SameFailure(times) => format!("the same rank has failed in the same way {times} time(s) in a row"),
        NoRestart::UsedUp(restarts) => format!("there have been {restarts} already"),
        NoRestart::StartFailed => "a rank could not be started".into(),
        NoRestart::Stopped => "the job was asked to stop".into(),
        NoRestart::HostLost => "the launcher's front was killed".into(),
        NoRestart::Unkillable => "a rank of the failed attempt is still there".into(),
    }
}

/// How long ranks that are asked to stop now may take, in seconds, to the millisecond.
fn grace_now(policy: &Policy) -> f64 {
    let left = policy.stop_by.map_or(Duration::MAX, |at| at.saturating_sub(clock::now()));
    policy.grace.min(left).as_millis() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Role;

    #[test]
    fn scripts_find_the_words_for_the_end_of_the_servers() {
        let server = |number| Who { role: Role::Server, number };
        let said = line(&Note::Finishing { living: vec![0, 2] }, 1.5, &server);
        assert!(said.contains("all workers exit, going to finish parameter server"), "{said}");
        assert!(said.contains("server(s) 0, 2"), "{said}");
    }
}
