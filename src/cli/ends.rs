//! How a job of several nodes ends on this one: the exit status, a word for programs, a line for people.

use super::exit_code;
use super::waiting::who_is_here;
use crate::model::exit::signal_label;
use crate::rendezvous::agree::state::Lost;
use crate::rendezvous::agree::{End, Failure, Why};
use crate::run::membership::Halt;
use crate::run::together::Parting;

/// The end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// That of the job, on all nodes.
    Job(End),
    /// This node is not let in.
    Refused(String),
    /// Whoever coordinates was never reached.
    NotReached(String),
    /// Whoever coordinates has been out of reach for too long.
    OutOfContact(String),
    /// This signal came here.
    Stopped(i32),
    /// The front was killed.
    FrontLost,
}

impl Ending {
    /// The exit status.
    pub fn status(&self) -> i32 {
        match self {
            Ending::Job(End::Completed) => exit_code::OK,
            Ending::Job(End::Failed { failure, .. }) => failure.status,
            Ending::Job(End::Lost { .. }) => exit_code::NODE_LOST,
            Ending::Job(End::TooFew { .. }) | Ending::Refused(_) | Ending::NotReached(_) => exit_code::RENDEZVOUS,
            Ending::OutOfContact(_) => exit_code::STORE_LOST,
            Ending::Job(End::Stopped { signal, .. }) | Ending::Stopped(signal) => 128 + signal,
            Ending::FrontLost => 128 + libc::SIGKILL,
        }
    }

    /// The one word of `result.json`.
    pub fn word(&self) -> &'static str {
        match self {
            Ending::Job(End::Completed) => "completed",
            Ending::Job(End::Failed { .. }) => "failed",
            Ending::Job(End::Lost { .. }) => "node_lost",
            Ending::Job(End::TooFew { .. }) | Ending::NotReached(_) => "too_few_nodes",
            Ending::Refused(_) => "refused",
            Ending::OutOfContact(_) => "store_lost",
            Ending::Job(End::Stopped { .. }) | Ending::Stopped(_) => "stopped",
            Ending::FrontLost => "front_lost",
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        match self {
            Ending::Job(End::Completed) => "all ranks of all nodes have ended well".into(),
            Ending::Job(End::Failed { failure, no_restart }) => {
                let why_not = no_restart.as_ref().map_or(String::new(), |why| format!("; not started again: {why}"));
                format!("the job has failed: {}{why_not}", of_failure(failure))
            }
            Ending::Job(End::Lost { lost }) => format!("the job has ended: {}", of_lost(lost)),
            Ending::Job(End::TooFew { roll, waited_ms }) => {
                let (waited, here) = (waited_ms / 1000, who_is_here(roll));
                let hint = "start the others, with the same --nnodes and rendezvous, or give --join_timeout more \
                            (rlaunch.run: --rdzv-conf join_timeout=SECONDS)";
                format!("the nodes have not come together within {waited} s: {here}; {hint}")
            }
            Ending::Job(End::Stopped { host, signal }) => {
                format!("the job was stopped: {} came to the launcher on {host}", signal_label(*signal))
            }
            Ending::Refused(why) => format!("this node cannot take part: {why}"),
            Ending::NotReached(why) | Ending::OutOfContact(why) => why.clone(),
            Ending::Stopped(signal) => format!("stopped by {}", signal_label(*signal)),
            Ending::FrontLost => "the launcher's front was killed".into(),
        }
    }
}

/// `rank 3 on node 1 (b) ended first, with exit code 3: ValueError: no`
pub fn of_failure(failure: &Failure) -> String {
    let Failure { host, node, who, how, words, .. } = failure;
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    if failure.again {
        return format!("{who} on node {node} ({host}) asks by {how} that all be started again");
    }
    format!("{who} on node {node} ({host}) failed first, with {how}{words}")
}

/// `node 1 (b, 10.0.0.2) is lost: last heard of 10.1 s ago`
pub fn of_lost(lost: &Lost) -> String {
    let Lost { node, host, address, age_ms } = lost;
    let how = match age_ms {
        0 => "its launcher has gone".to_owned(),
        age => format!("it was last heard of {:.1} s before that was noticed", *age as f64 / 1000.0),
    };
    format!("node {node} ({host}, {address}) is lost: {how}")
}

/// Why the ranks of a round were stopped from outside, if they were.
pub fn why(parting: &Parting) -> Option<String> {
    let Parting::Halted(halt) = parting else { return None };
    Some(match halt {
        Halt::Told(Some(Why::Failed { failure }), end) => {
            format!("{}; the ranks of this node are stopped{}", of_failure(failure), goes_on(end.is_none()))
        }
        Halt::Told(Some(Why::Lost { lost }), end) => {
            format!("{}; the ranks of this node are stopped{}", of_lost(lost), goes_on(end.is_none()))
        }
        Halt::Told(Some(Why::More { hosts }), _) => {
            format!(
                "{} more node(s) came ({}); all ranks are stopped and started again with them",
                hosts.len(),
                hosts.join(", ")
            )
        }
        Halt::Told(Some(Why::Stopped { host, signal }), end) => {
            let goes_on = goes_on(end.is_none());
            format!(
                "{} came to the launcher on {host}; the ranks of this node are stopped{goes_on}",
                signal_label(*signal)
            )
        }
        Halt::Told(None, _) => "the other nodes have gone on without this one; its ranks are stopped".into(),
        Halt::Refused(why) | Halt::OutOfContact(why) => format!("{why}; the ranks of this node are stopped"),
    })
}

fn goes_on(yes: bool) -> &'static str {
    if yes { ", to be started again with the nodes that are there then" } else { "" }
}
