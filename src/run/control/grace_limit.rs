//! The shorter grace period that a user asks for on one node, as the other nodes of the job receive it. It is sent like a question, but has
//! no answer, and may be lost: then a node has the job's own grace period.

use crate::report::job_status::CONTROL_VERSION;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The ranks of a round have at most this time to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GraceLimit {
    version: u32,
    /// The round. Those that follow have the job's own grace period again.
    pub round: u64,
    grace_millis: u64,
}

impl GraceLimit {
    pub fn new(round: u64, grace: Duration) -> Self {
        Self { version: CONTROL_VERSION, round, grace_millis: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX) }
    }

    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_millis)
    }

    pub fn encode(&self) -> String {
        // Serialization of this type cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn decode(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::node_answer::{NodeQuestion, QuestionText};
    use super::*;

    #[test]
    fn a_limit_and_a_question_are_not_taken_for_each_other() {
        let limit = GraceLimit::new(3, Duration::from_millis(1500));
        assert_eq!(GraceLimit::decode(&limit.encode()), Some(limit.clone()));
        assert_eq!(limit.grace(), Duration::from_millis(1500));
        assert_eq!(QuestionText::decode(&limit.encode()), None);
        let question = QuestionText::new(NodeQuestion::Status, 2).encode();
        assert_eq!(GraceLimit::decode(&question), None);
    }
}
