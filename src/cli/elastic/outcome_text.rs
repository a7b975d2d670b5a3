//! The outcome of a multi-node job, and why a round stopped, as sentences.

use crate::cli::elastic::participants::describe_participants;
use crate::model::exit::signal_label;
use crate::protocol::state::LostNode;
use crate::protocol::{JobEnd, RankFailure, RoundStopCause};
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::multi_node::membership::RoundStop;

/// What became of the job, as one sentence; `None` where this node's report says it all.
pub fn of_job(outcome: &JobOutcome) -> Option<String> {
    Some(match outcome {
        JobOutcome::AsReported | JobOutcome::StoreLost | JobOutcome::SupervisorLost => return None,
        JobOutcome::Preempted(step) => format!("the job was preempted: its ranks stopped at step {step}"),
        JobOutcome::Ended(JobEnd::Completed) => "all ranks of all nodes exited successfully".into(),
        JobOutcome::Ended(JobEnd::Failed { failure, no_restart }) => {
            let no_restart = no_restart.as_ref().map_or(String::new(), |why| format!("; not started again: {why}"));
            format!("the job has failed: {}{no_restart}", of_failure(failure))
        }
        JobOutcome::Ended(JobEnd::Lost { lost }) => format!("the job has ended: {}", of_lost_node(lost)),
        JobOutcome::Ended(JobEnd::TooFew { participants, waited_ms }) => {
            let (waited, here) = (waited_ms / 1000, describe_participants(participants));
            let hint = "start the others with the same --nnodes and rendezvous, or raise --join_timeout \
                        (rlaunch.run: --rdzv-conf join_timeout=SECONDS)";
            format!("the nodes have not come together within {waited} s: {here}; {hint}")
        }
        JobOutcome::Ended(JobEnd::Stopped { host, signal }) => {
            format!("the job was stopped: the launcher on {host} received {}", signal_label(*signal))
        }
        JobOutcome::Refused(why) => format!("this node cannot take part: {why}"),
        JobOutcome::NeverReached(why) | JobOutcome::Unreachable(why) => why.clone(),
        JobOutcome::Stopped(signal) => format!("stopped by {}", signal_label(*signal)),
        JobOutcome::LauncherKilled => "the launcher process was killed".into(),
    })
}

/// `rank 3 on node 1 (b) failed first, with exit code 3: ValueError: no`
pub fn of_failure(failure: &RankFailure) -> String {
    let RankFailure { host, node, process, outcome: how, message: words, .. } = failure;
    if failure.hangs {
        return format!("the ranks of node {node} ({host}) hang at their start: {words}");
    }
    if failure.again {
        return format!("{process} on node {node} ({host}) requested a restart of all ranks by {how}");
    }
    let cause = if words.is_empty() { String::new() } else { format!(": {words}") };
    format!("{process} on node {node} ({host}) failed first, with {how}{cause}")
}

/// `node 1 (b, 10.0.0.2) is lost: its last heartbeat came 10.1 s before that was noticed`
fn of_lost_node(lost: &LostNode) -> String {
    let LostNode { node, host, address, age_ms } = lost;
    let how = match age_ms {
        0 => "its launcher has gone".to_owned(),
        age => format!("its last heartbeat came {:.1} s before that was noticed", *age as f64 / 1000.0),
    };
    format!("node {node} ({host}, {address}) is lost: {how}")
}

/// Why the ranks of a round were stopped from outside.
pub fn of_round_stop(stop: &RoundStop) -> String {
    let stopped = |why: String, end: &Option<JobEnd>| {
        let next = if end.is_none() { ", to be started again with the nodes that remain" } else { "" };
        format!("{why}; the ranks of this node are stopped{next}")
    };
    match stop {
        RoundStop::ByOthers { cause: Some(RoundStopCause::Failed { failure }), end } => {
            stopped(of_failure(failure), end)
        }
        RoundStop::ByOthers { cause: Some(RoundStopCause::Lost { lost }), end } => stopped(of_lost_node(lost), end),
        RoundStop::ByOthers { cause: Some(RoundStopCause::More { hosts }), .. } => {
            let (count, hosts) = (hosts.len(), hosts.join(", "));
            format!("{count} more node(s) joined ({hosts}); all ranks are stopped and started again with them")
        }
        RoundStop::ByOthers { cause: Some(RoundStopCause::Stopped { host, signal }), end } => {
            stopped(format!("the launcher on {host} received {}", signal_label(*signal)), end)
        }
        RoundStop::ByOthers { cause: None, end } => {
            stopped("the other nodes took this one for lost, and wait for it".to_owned(), end)
        }
        RoundStop::LeftBehind { end: None } => "the other nodes continue without this one; its ranks are killed".into(),
        RoundStop::LeftBehind { end: Some(_) } => "the job ended without this node; its ranks are killed".into(),
        RoundStop::Refused(why) => format!("{why}; the ranks of this node are stopped"),
        RoundStop::Unreachable(why) => format!("{why}; the ranks of this node are killed"),
    }
}
