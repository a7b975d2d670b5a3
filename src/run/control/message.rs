//! The protocol of the control socket: one JSON object a line, a request and its answer.

use super::node_answer::{NodeAnswer, NodeQuestion};
use crate::net::server::ConnectionState;
use crate::report::job_status::{CONTROL_VERSION, JobStatus};
use crate::report::stacks::StackDump;
use serde::{Deserialize, Serialize};

/// Bytes that may wait to be sent to a client before its next request is read.
const MOST_WAITING: usize = 1 << 20;

/// The longest request in bytes, with the end of its line.
pub const LONGEST_REQUEST: usize = 4096;

/// How the answer begins to what is no request.
pub const UNKNOWN_REQUEST: &str = "not a request of version";

/// What has arrived from a client.
#[derive(Default)]
pub(super) struct ClientState {
    pub received: Vec<u8>,
    /// Answers that are not written yet.
    pub owed: usize,
}

impl ConnectionState for ClientState {
    type Shared = Vec<u8>;

    fn feed(&mut self, bytes: &[u8]) {
        self.received.extend(bytes);
    }

    fn held(&self) -> usize {
        self.received.capacity()
    }

    fn may_handle(&self, backlog: usize) -> bool {
        backlog < MOST_WAITING
    }

    fn awaits_answer(&self, backlog: usize) -> bool {
        self.owed > 0 || backlog > 0
    }
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum ControlRequest {
    /// The state of the launch.
    Status,
    /// The stacks of all ranks that run.
    Stacks,
    /// An end of the job as by SIGTERM.
    Stop {
        /// The grace period in seconds, at most that of the job; `None`: that of the job.
        grace_period: Option<f64>,
    },
    /// A notice of preemption.
    Preempt,
    /// Another attempt of all ranks.
    Restart {
        /// The grace period of the present attempt in seconds, at most that of the job; `None`: that of the job.
        grace_period: Option<f64>,
    },
    /// The answers of all nodes of the job to a question.
    Nodes {
        /// The question.
        question: NodeQuestion,
    },
}

impl ControlRequest {
    /// Whether it has no effect, so that it may be sent again if it is not known whether the launcher has received it.
    pub fn may_be_repeated(&self) -> bool {
        matches!(self, Self::Status | Self::Stacks | Self::Nodes { .. })
    }
}

/// A request on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestLine {
    /// `CONTROL_VERSION`.
    pub version: u32,
    /// The request.
    #[serde(flatten)]
    pub request: ControlRequest,
}

impl RequestLine {
    /// The line of a request.
    pub fn encode(request: ControlRequest) -> Vec<u8> {
        to_line(&Self { version: CONTROL_VERSION, request })
    }
}

/// What the launcher answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum ControlAnswer {
    /// The state of the launch.
    Status(JobStatus),
    /// The state, and the stacks of its ranks.
    Stacks {
        /// The state.
        status: JobStatus,
        /// The stacks.
        dump: StackDump,
    },
    /// The job is being stopped.
    Stopping,
    /// The ranks are to stop soon.
    Preempting,
    /// The ranks are being restarted.
    Restarting {
        /// The present attempt, which another one follows.
        attempt: u32,
    },
    /// The answers of the job's nodes.
    Nodes {
        /// One entry a node, in the order of their numbers.
        nodes: Vec<NodeEntry>,
        /// Why this node alone was asked, if the job has others.
        only_this_node: Option<String>,
    },
    /// The request cannot be met, for this reason.
    Error {
        /// The reason.
        message: String,
    },
}

/// A node of the job, with its answer or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Its number in the job, if that is known.
    pub node: Option<usize>,
    /// The name of its machine.
    pub host: String,
    /// Whether it is the node whose launcher was asked.
    pub is_own: bool,
    /// Its answer.
    pub answer: Option<NodeAnswer>,
    /// What is said of it instead.
    pub error: Option<String>,
}

/// A line with a JSON object.
pub fn to_line(message: &impl Serialize) -> Vec<u8> {
    // The messages have only maps whose keys are text.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_wire() {
        let nodes = ControlRequest::Nodes { question: NodeQuestion::Stacks };
        let stop = ControlRequest::Stop { grace_period: Some(1.5) };
        let restart = ControlRequest::Restart { grace_period: None };
        let all = [ControlRequest::Status, ControlRequest::Stacks, ControlRequest::Preempt, stop, nodes, restart];
        for request in all {
            let line = RequestLine::encode(request.clone());
            assert!(line.ends_with(b"}\n") && line.len() < LONGEST_REQUEST);
            assert_eq!(serde_json::from_slice::<RequestLine>(&line).unwrap().request, request);
        }
    }
}
