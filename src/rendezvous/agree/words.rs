//! The coordinator behind the words of a tie: JSON in, JSON out.

use super::Coordinator;
use super::record::{Offer, Record, Standing};
use super::state::{Member, State};
use crate::rendezvous::tie::{Decide, Publication};
use serde_json::json;
use std::time::Duration;

/// The longest text of a record that all nodes are told again, in characters: no node makes the state longer than they read.
const MOST_TEXT: usize = 256;

impl Decide for Coordinator {
    fn resume(&mut self, state: Option<&str>, members: Option<&str>, now: Duration) {
        let state = state.and_then(|text| serde_json::from_str::<State>(text).ok());
        let members = members.and_then(|text| serde_json::from_str::<Vec<Member>>(text).ok());
        *self = match state {
            Some(state) => Coordinator::resume(state, members.unwrap_or_default(), now),
            None => Coordinator::new(now),
        };
    }

    fn record(&mut self, id: &str, record: &str, now: Duration) {
        // What is no record says nothing; whoever wrote it will not be told anything either.
        if let Ok(mut record) = serde_json::from_str::<Record>(record) {
            clip(&mut record.offer);
            self.record(id, record, now);
        }
    }

    fn gone(&mut self, id: &str, age: Duration, now: Duration) {
        self.gone(id, age, now);
    }

    fn turn(&mut self, now: Duration) -> Option<Publication> {
        let (state, members) = self.turn(now)?;
        let text = |value: serde_json::Result<String>| value.unwrap_or_default();
        let members = members.map(|members| text(serde_json::to_string(&members)));
        Some(Publication { state: text(serde_json::to_string(&state)), members })
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.next_deadline()
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }

    fn shown_to_paddle(&self) -> Vec<(String, String)> {
        let is_own = |record: &Record| {
            !record.offer.foreign && matches!(record.standing, Standing::Ready { .. } | Standing::Runs { .. })
        };
        let nodes = self.nodes().filter(|(_, record)| is_own(record));
        nodes.map(|(_, record)| as_paddle_says_it(&record.offer)).collect()
    }
}

/// Not failures: whose it is knows it again by its words, and all are told of one alone.
fn clip(Offer { name, host, address, address_from, device, master, version, role, rules, .. }: &mut Offer) {
    for text in [name, host, address, address_from, device, master, version, role, &mut rules.door] {
        if let Some((end, _)) = text.char_indices().nth(MOST_TEXT) {
            text.truncate(end);
        }
    }
}

/// A node's key below `/{job}/info`, and its payload, as Paddle's launcher writes them.
pub fn as_paddle_says_it(offer: &Offer) -> (String, String) {
    let rank = offer.rank.map_or(-1, |rank| i64::try_from(rank).unwrap_or(i64::MAX));
    let payload = json!({
        "name": offer.name, "rank": rank, "replicas": offer.ranks, "dtype": offer.device,
        "candidate": offer.master, "endpoints": offer.endpoints.join(","),
    });
    (format!("{}/{rank}", offer.name), payload.to_string())
}
