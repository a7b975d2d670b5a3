//! Questions between nodes at etcd. A question is a key below `board/`, which all nodes watch anyway; its answers are keys of their own,
//! which only the node that asks watches. What one node tells another alone is a key that only that one watches. All of them are
//! under the lease of that node, and go with it. They have connections and threads of their own, so that no question delays a
//! record.

use super::gateway::client::{EtcdCaller, EtcdError};
use super::gateway::codec::{self, JobKeys, KeyValue, WatchChange};
use super::gateway::watch::{WatchEvent, WatchHandle};
use crate::rendezvous::questions::{
    ListenerSlot, MAX_ANSWER, MAX_QUESTION, QuestionEvent, QuestionMessage, QuestionSender,
};
use crate::sys::clock;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Questions that a node may have open.
const MAX_OPEN: usize = 16;
/// How long one is open at most: the word that it is not may be lost.
const LIFETIME: Duration = Duration::from_secs(60);

/// A question's place: the node that asks, its number there, and the lease of that node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct QuestionId {
    asker: String,
    number: u64,
    lease: i64,
}

impl QuestionId {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.rsplitn(3, '.');
        let lease = parts.next()?.parse().ok().filter(|lease| *lease > 0)?;
        Some(Self { lease, number: parts.next()?.parse().ok()?, asker: parts.next()?.to_owned() })
    }
}

impl std::fmt::Display for QuestionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.asker, self.number, self.lease)
    }
}

/// The question at a key below `board/`, if there is one and it is not this node's own.
pub fn asked(keys: &JobKeys, kv: &KeyValue, own: &str) -> Option<QuestionEvent> {
    let id = QuestionId::parse(&keys.question_of(&kv.key)?)?;
    let is_for_us = id.asker != own && kv.value.len() <= MAX_QUESTION;
    is_for_us.then(|| QuestionEvent::Asked { id: id.to_string(), asker: id.asker, text: kv.value.clone() })
}

/// A node's end of the questions.
pub struct EtcdQuestions {
    pub caller: EtcdCaller,
    pub keys: JobKeys,
    pub own_id: String,
    /// The node's lease; 0: none.
    pub lease: Arc<AtomicI64>,
    /// How long a watch may fail before it says so; that is ignored.
    pub patience: Duration,
    pub listener: ListenerSlot,
    /// This node's questions, and the watches of their answers.
    pub open: BTreeMap<u64, OpenQuestion>,
    /// The watch of what other nodes tell this one alone, if it wants that.
    pub own: Option<WatchHandle>,
}

/// A question of this node.
pub struct OpenQuestion {
    id: String,
    asked: Duration,
    /// Of its answers.
    watch: WatchHandle,
}

impl EtcdQuestions {
    fn call(&self, request: &Value) -> Result<Value, EtcdError> {
        self.caller.call("/v3/kv/txn", request)
    }

    /// The id of a question, unless it is too long or this node has no lease; and that lease.
    fn id_of(&self, number: u64, text: &str) -> Option<(String, i64)> {
        let lease = self.lease.load(Ordering::Relaxed);
        let id = QuestionId { asker: self.own_id.clone(), number, lease }.to_string();
        (lease != 0 && text.len() <= MAX_QUESTION).then_some((id, lease))
    }

    /// Writes a question. Returns its id and the revision.
    fn put(&self, number: u64, text: &str) -> Result<Option<(String, i64)>, EtcdError> {
        let Some((id, lease)) = self.id_of(number, text) else { return Ok(None) };
        let put = json!({ "request_put": codec::put(&self.keys.question(&id), text, lease) });
        let done = self.call(&json!({ "success": [put] }))?;
        Ok(Some((id, codec::revision(&done))))
    }

    /// The watches of the nodes that it is for show a key also where it is deleted at once.
    fn tell(&self, number: u64, to: Option<&str>, text: &str) -> Result<(), EtcdError> {
        let Some((id, lease)) = self.id_of(number, text) else { return Ok(()) };
        let key = to.map_or_else(|| self.keys.question(&id), |node| codec::below(&self.keys.sent_to(node), &id));
        let put = json!({ "request_put": codec::put(&key, text, lease) });
        self.call(&json!({ "success": [put] }))?;
        self.call(&json!({ "success": [{ "request_delete_range": codec::get(&key) }] })).map(drop)
    }

    /// Watches from now on what other nodes tell this one alone.
    fn receive_own(&mut self) -> Result<(), EtcdError> {
        if self.own.is_some() {
            return Ok(());
        }
        let (sent, listener) = (self.keys.sent_to(&self.own_id), self.listener.clone());
        let prefix = sent.clone();
        let on_event = move |event| {
            // What is missed is lost: it is sent again. What etcd refuses here it refuses to the watch of `board/` too, which ends
            // the session.
            let WatchEvent::Changes(changes) = event else { return };
            for change in changes {
                if let WatchChange::Put(kv) = change
                    && kv.value.len() <= MAX_QUESTION
                    && let Some(id) = codec::unescaped_after(&kv.key, &prefix)
                    && let Some(QuestionId { asker, .. }) = QuestionId::parse(&id)
                {
                    listener.report(QuestionEvent::Asked { asker, id, text: kv.value });
                }
            }
        };
        let watch = WatchHandle::start(&self.caller.client, sent, (0, self.patience), on_event)
            .map_err(|error| EtcdError::Unreachable(error.to_string()))?;
        self.own = Some(watch);
        Ok(())
    }

    fn ask(&mut self, number: u64, text: &str) -> Result<(), EtcdError> {
        while self.open.len() >= MAX_OPEN
            && let Some(oldest) = self.open.keys().next().copied()
        {
            self.forget(oldest)?;
        }
        let Some((id, revision)) = self.put(number, text)? else { return Ok(()) };
        let (answers, listener) = (self.keys.answers(&id), self.listener.clone());
        let prefix = answers.clone();
        let report = move |kv: KeyValue| {
            if let Some(node) = codec::unescaped_after(&kv.key, &prefix) {
                listener.report(QuestionEvent::Answered { number, node, text: kv.value });
            }
        };
        let on_event = move |event| match event {
            WatchEvent::Changes(changes) => changes.into_iter().for_each(|change| match change {
                WatchChange::Put(kv) => report(kv),
                WatchChange::Gone { .. } => {}
            }),
            WatchEvent::All(kvs, _) => kvs.into_iter().for_each(&report),
            WatchEvent::Behind | WatchEvent::Refused(_) | WatchEvent::Failing(_) | WatchEvent::Works => {}
        };
        let from = (revision, self.patience);
        let watch = WatchHandle::start_after(&self.caller.client, answers, from, on_event)
            .map_err(|error| EtcdError::Unreachable(error.to_string()))?;
        self.open.insert(number, OpenQuestion { id, asked: clock::now(), watch });
        Ok(())
    }

    /// Writes an answer, if the question is still there.
    fn answer(&self, id: &str, text: &str) -> Result<(), EtcdError> {
        let Some(QuestionId { lease, .. }) = QuestionId::parse(id).filter(|_| text.len() <= MAX_ANSWER) else {
            return Ok(());
        };
        let key = codec::below(&self.keys.answers(id), &self.own_id);
        let put = json!({ "request_put": codec::put(&key, text, lease) });
        let is_gone = codec::is_created_by(&self.keys.question(id), 0);
        self.call(&json!({ "compare": [is_gone], "failure": [put] })).map(drop)
    }

    fn forget(&mut self, number: u64) -> Result<(), EtcdError> {
        let Some(OpenQuestion { id, watch, .. }) = self.open.remove(&number) else { return Ok(()) };
        drop(watch);
        self.delete(&id)
    }

    /// Deletes a question and its answers.
    fn delete(&self, id: &str) -> Result<(), EtcdError> {
        let question = json!({ "request_delete_range": codec::get(&self.keys.question(id)) });
        let answers = json!({ "request_delete_range": codec::range(&self.keys.answers(id)) });
        self.call(&json!({ "success": [question, answers] })).map(drop)
    }
}

impl QuestionSender for EtcdQuestions {
    fn send(&mut self, message: QuestionMessage) {
        let now = clock::now();
        let overdue = self.open.iter().filter(|(_, question)| now >= question.asked + LIFETIME);
        let overdue: Vec<u64> = overdue.map(|(number, _)| *number).collect();
        // An error leaves its keys until the end of the lease.
        overdue.into_iter().for_each(|number| drop(self.forget(number)));
        let sent = match message {
            QuestionMessage::Ask { number, text } => self.ask(number, &text),
            QuestionMessage::Tell { number, to, text } => self.tell(number, to.as_deref(), &text),
            QuestionMessage::ReceiveOwn => self.receive_own(),
            QuestionMessage::Answer { id, text, .. } => self.answer(&id, &text),
            QuestionMessage::Forget { number } => self.forget(number),
        };
        if let Err(error) = sent {
            // What is left goes with the lease.
            tracing::debug!("etcd: a question or an answer is lost: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    fn at(key: &str, value: &str) -> KeyValue {
        KeyValue { key: key.into(), value: value.into(), created: 1, written: 1, lease: 7 }
    }

    #[test]
    fn a_question_s_id_names_its_node_and_lease() {
        let id = QuestionId { asker: "node.1".into(), number: 3, lease: i64::MAX };
        assert_eq!(QuestionId::parse(&id.to_string()), Some(id));
        for odd in ["", "a", "a.1", "a.1.0", "a.1.-3", "a.x.3", "a.1.x"] {
            assert_eq!(QuestionId::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn only_questions_of_others_are_asked() {
        let keys = JobKeys::new("/p", "job");
        let key = keys.question("a.3.7");
        let event = QuestionEvent::Asked { asker: "a".into(), id: "a.3.7".into(), text: "why".into() };
        assert_eq!(asked(&keys, &at(&key, "why"), "b"), Some(event));
        assert_eq!(asked(&keys, &at(&key, "why"), "a"), None);
        assert_eq!(asked(&keys, &at(&key, &"x".repeat(MAX_QUESTION + 1)), "b"), None);
        assert_eq!(asked(&keys, &at(&keys.state(), "{}"), "b"), None);
    }
}
