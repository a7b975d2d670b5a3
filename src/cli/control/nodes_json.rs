//! The answers of a job's nodes as JSON: the fields of the node whose launcher was asked, and `nodes` with all of them.

use crate::report::job_status::JobStatus;
use crate::run::control::message::NodeEntry;
use crate::run::control::node_answer::NodeAnswer;
use crate::run::control::rank_facts::RankFacts;
use serde_json::{Value, json};

/// The state of a job and its nodes.
pub(super) fn status(own: &JobStatus, nodes: &[NodeEntry]) -> Value {
    let mut value = with_facts(own, nodes.iter().find(|entry| entry.is_own));
    value["nodes"] = all(nodes);
    value
}

/// The same with stacks.
pub(super) fn stacks(own: &JobStatus, nodes: &[NodeEntry]) -> Value {
    let dump = nodes.iter().find(|entry| entry.is_own).and_then(|entry| entry.answer.as_ref()?.stacks.as_ref());
    json!({ "version": own.version, "status": own, "stacks": dump, "nodes": all(nodes) })
}

fn all(nodes: &[NodeEntry]) -> Value {
    let one = |entry: &NodeEntry| {
        let NodeEntry { node, host, answer, error, .. } = entry;
        let answer = answer.as_ref();
        let status = answer.map(|NodeAnswer { status, .. }| with_facts(status, Some(entry)));
        let stacks = answer.and_then(|answer| answer.stacks.as_ref());
        json!({ "node": node, "host": host, "status": status, "stacks": stacks, "error": error })
    };
    nodes.iter().map(one).collect()
}

/// The state with the facts of each rank among its fields.
fn with_facts(status: &JobStatus, entry: Option<&NodeEntry>) -> Value {
    let mut value = json!(status);
    let facts: &[RankFacts] = entry.and_then(|entry| entry.answer.as_ref()).map_or(&[], |answer| &answer.facts);
    if let Some(ranks) = value["ranks"].as_array_mut() {
        for (rank, facts) in ranks.iter_mut().zip(facts) {
            if let (Some(rank), Value::Object(facts)) = (rank.as_object_mut(), json!(facts)) {
                rank.extend(facts);
            }
        }
    }
    value
}
