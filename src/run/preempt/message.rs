//! What the launchers of a job tell each other about a stop step. It is sent as a question without an answer, and may be lost: the
//! agreement sends it again.

use crate::protocol::stop_step::StopDocument;
use crate::report::job_status::CONTROL_VERSION;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest time until a stop that is believed.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Where a node stands in the agreement on a stop step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopMessage {
    version: u32,
    /// The round whose ranks stop; 0 in a job without rounds.
    pub round: u64,
    /// The time until the ranks are ended by signals.
    left_millis: u64,
    /// The time until they are killed; `None`: the grace period of their node later.
    #[serde(default)]
    kill_millis: Option<u64>,
    /// Whether the node has not heard that its times are known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks_for_time: bool,
    /// Whether a user stops the job (`rlaunch stop`), so that it is not queued again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_users_stop: bool,
    /// Where the node stands.
    pub stop: StopDocument,
}

/// Why a text is not a message about a stop step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoStopMessage {
    /// A launcher of another version has sent it.
    OtherVersion,
    /// No launcher has.
    Unreadable,
}

/// What all versions have.
#[derive(Deserialize)]
struct MessageVersion {
    version: u32,
}

impl StopMessage {
    /// A message of this round. The times are those until the ranks are ended by signals, and until they are killed.
    pub fn new(round: u64, (left, kills): (Duration, Option<Duration>), stop: StopDocument) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (left_millis, kill_millis) = (millis(left), kills.map(millis));
        Self {
            version: CONTROL_VERSION,
            round,
            left_millis,
            kill_millis,
            asks_for_time: false,
            is_users_stop: false,
            stop,
        }
    }

    /// The same, of a node that has or has not heard that its times are known.
    pub fn asking_for_time(self, asks_for_time: bool) -> Self {
        Self { asks_for_time, ..self }
    }

    /// The same, of a node whose user stops the job, or not.
    pub fn by_user(self, is_users_stop: bool) -> Self {
        Self { is_users_stop, ..self }
    }

    /// The time until the ranks are ended by signals, and that until they are killed, if it is set.
    pub fn left(&self) -> (Duration, Option<Duration>) {
        let time = |millis| Duration::from_millis(millis).min(LONGEST);
        (time(self.left_millis), self.kill_millis.map(time))
    }

    /// Whether the node that has sent `other` in this round does not know of the decision here.
    pub fn is_news_to(&self, other: &Self) -> bool {
        self.round == other.round && self.stop.decision.is_some() && other.stop.decision.is_none()
    }

    /// The text.
    pub fn encode(&self) -> String {
        // Serialization of this type cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the message of another node.
    pub fn decode(text: &str) -> Result<Self, NoStopMessage> {
        let version = serde_json::from_str::<MessageVersion>(text).map_err(|_| NoStopMessage::Unreadable)?.version;
        if version != CONTROL_VERSION {
            return Err(NoStopMessage::OtherVersion);
        }
        serde_json::from_str(text).map_err(|_| NoStopMessage::Unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::stop_step::{Answer, Decision, Proposal};

    #[test]
    fn a_message_survives_the_wire() {
        let proposal = Some(Proposal { serial: 3, step: 70 });
        let answer = Some(Answer { serial: 3, reached: Some(71) });
        for decision in [None, Some(Decision::StopAt(70)), Some(Decision::Abandoned)] {
            let times = (Duration::from_millis(1500), Some(Duration::from_millis(2000)));
            let message = StopMessage::new(2, times, StopDocument { proposal, answer, decision });
            assert_eq!(StopMessage::decode(&message.encode()), Ok(message));
            assert_eq!(message.left(), times);
            let asks = StopMessage { is_users_stop: true, ..message.asking_for_time(true) };
            assert_eq!(StopMessage::decode(&asks.encode()), Ok(asks));
        }
        let message = StopMessage::new(2, (Duration::ZERO, None), StopDocument::default());
        let other = StopMessage { version: CONTROL_VERSION + 1, ..message };
        assert_eq!(StopMessage::decode(&other.encode()), Err(NoStopMessage::OtherVersion));
        let of_this_version = format!(r#"{{"version":{CONTROL_VERSION},"round":2,"grace_millis":7}}"#);
        for text in ["", "7", r#"{"round":2}"#, &of_this_version] {
            assert_eq!(StopMessage::decode(text), Err(NoStopMessage::Unreadable), "{text}");
        }
    }
}
