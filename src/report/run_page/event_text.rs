//! Events of the job as sentences.

use super::fields::{count, exit, label, labels, number, text};
use crate::model::exit::signal_label;
use crate::report::wording::{counted, lasted, named};
use serde_json::Value;
use std::time::Duration;

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Normal,
    /// It explains the end, or a restart.
    Notable,
    Bad,
}

impl Weight {
    /// Its class in the style sheet.
    pub fn class(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Notable => "notable",
            Self::Bad => "bad",
        }
    }
}

/// An event for people.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EventText {
    pub text: String,
    pub weight: Weight,
}

/// A time in seconds, as the launcher's sentences have it.
pub(super) fn seconds(seconds: f64) -> String {
    lasted(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

impl EventText {
    /// The text of an event; `None` for those of single ranks, which the timeline shows, and for unknown ones.
    pub fn of(event: &Value) -> Option<Self> {
        use Weight::{Bad, Normal, Notable};
        let living = || match labels(event, "living_roles", "living") {
            living if living.is_empty() => "no rank".to_owned(),
            living => named(&living),
        };
        let signal = || {
            let number = event["signal"].as_i64().and_then(|number| i32::try_from(number).ok());
            number.map_or_else(|| "a signal".to_owned(), signal_label)
        };
        let time = |name| number(event, name).map_or_else(|| "an unknown time".to_owned(), seconds);
        let rank = || label(event, "role", "rank").map_or_else(|| "a rank".to_owned(), |label| label.to_string());
        let why = || text(event, "why").unwrap_or("unknown reason").to_owned();
        let (text, weight) = match event["event"].as_str()? {
            "job_started" => {
                let ranks = counted(count(event, "ranks").unwrap_or_default(), "rank", "ranks");
                (format!("the launcher started on {}, {ranks}", text(event, "host").unwrap_or("this node")), Normal)
            }
            "zygote_ready" => (format!("the preload server was ready after {}", time("seconds")), Normal),
            "rank_not_started" => (format!("{} could not be started: {}", rank(), why()), Bad),
            "signal" if text(event, "origin") == Some("user") => ("`rlaunch stop` was called".to_owned(), Notable),
            "signal" => (format!("the launcher received {}", signal()), Notable),
            "front_lost" => ("the launcher process was killed".to_owned(), Bad),
            "awaiting_servers" => (format!("all trainers exited; the launcher waits for {}", living()), Normal),
            "finishing" => (format!("all trainers exited; SIGTERM sent to {}", living()), Normal),
            "stopping" => (format!("{} stops the job; SIGTERM sent to {}", signal(), living()), Notable),
            "forced" => (format!("a second stop signal ends the wait for {}", living()), Notable),
            "stragglers" => {
                let first =
                    label(event, "first_role", "first").map_or_else(|| "a rank".to_owned(), |label| label.to_string());
                (
                    format!(
                        "{} still ran {} after {first} exited successfully; SIGABRT sent",
                        living(),
                        time("limit_seconds")
                    ),
                    Bad,
                )
            }
            "killing" => (format!("SIGKILL sent to {}", living()), Notable),
            "unkillable" => (format!("left behind: {} did not end after SIGKILL", living()), Bad),
            "restarting" => (restarting(event), Notable),
            "restart_requested" => {
                let attempt = count(event, "attempt").unwrap_or_default();
                (format!("`rlaunch restart` asked for attempt {attempt}; SIGTERM sent to {}", living()), Notable)
            }
            "not_restarting" => (format!("no restart: {}", no_restart(&why())), Normal),
            "round_started" => {
                let node = format!("node {} of {}", number(event, "node")?, number(event, "nnodes")?);
                let ranks = counted(count(event, "world_size").unwrap_or_default(), "rank", "ranks");
                (format!("round {} began: this is {node}; {ranks} in all", number(event, "round")?), Normal)
            }
            "round_ended" => {
                let why = text(event, "why").map_or(String::new(), |why| format!(": {why}"));
                let outcome = text(event, "outcome").unwrap_or("unknown outcome");
                (format!("round {} ended: {outcome}{why}", number(event, "round")?), Notable)
            }
            "hang" => {
                let who = match labels(event, "odd_roles", "odd") {
                    odd if odd.is_empty() => String::new(),
                    odd => format!("; the others wait for {}", named(&odd)),
                };
                (format!("hang: no output and no progress for {}{who}", time("silent_seconds")), Bad)
            }
            "stuck_exit" => (format!("{} did not exit within {} after an exception", rank(), time("seconds")), Bad),
            "job_ended" => {
                let status = count(event, "exit_status").unwrap_or_default();
                let outcome = text(event, "outcome").unwrap_or("unknown outcome").replace('_', " ");
                (format!("the job ended: {outcome}, exit status {status}"), Normal)
            }
            _ => return None,
        };
        Some(Self { text, weight })
    }
}

fn restarting(event: &Value) -> String {
    let who = label(event, "culprit_role", "culprit").map_or_else(|| "a rank".to_owned(), |label| label.to_string());
    let how = exit(&event["exit"]).map_or(String::new(), |exit| format!(" with {exit}"));
    let message = text(event, "message").map_or(String::new(), |message| format!(": {message}"));
    let delay = number(event, "delay_seconds").map_or(String::new(), |delay| format!(" in {}", seconds(delay)));
    let restart = count(event, "restart").or_else(|| count(event, "attempt")).unwrap_or_default();
    let of = count(event, "of").unwrap_or_default();
    format!("restart {restart} of at most {of}{delay}, because {who} failed{how}{message}")
}

fn no_restart(why: &str) -> &str {
    match why {
        "never_listed" => "--never_restart_on lists this exit status",
        "not_listed" => "--restart_on does not list this exit status",
        "same_failure" => "the same rank failed in the same way too often",
        "used_up" => "all restarts are used",
        "start_failed" => "a rank could not be started",
        "stopped" => "a signal asked the job to stop",
        "front_lost" => "the launcher process was killed",
        "unkillable" => "a rank of the failed attempt is still there",
        other => other,
    }
}
