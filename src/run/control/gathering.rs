//! The answers of all nodes of a job to the question of one client. Pure.

use super::live_status::JobNode;
use super::message::NodeEntry;
use super::node_answer::{NodeAnswer, NodeQuestion, QuestionText};
use crate::net::server::ConnectionId;
use crate::rendezvous::questions::AskLimit;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Questions of clients that are open at once.
const MAX_OPEN: usize = 16;
/// Nodes whose questions are counted.
const MAX_ASKERS: usize = 16384;

/// A question that is open.
pub(super) struct Gathering {
    pub connection: ConnectionId,
    /// What the other nodes are asked.
    pub text: QuestionText,
    /// Why other nodes are not asked.
    pub only_this_node: Option<String>,
    until: Duration,
    /// By node, with their ids.
    entries: Vec<(String, NodeEntry)>,
}

impl Gathering {
    fn is_complete(&self) -> bool {
        self.entries.iter().all(|(_, entry)| entry.answer.is_some() || entry.error.is_some())
    }

    /// The answer, which names the nodes that have not answered.
    pub fn into_entries(self) -> Vec<NodeEntry> {
        let late = format!("has not answered within {} s", self.text.question.patience().as_secs());
        let named = self.entries.into_iter().map(|(_, mut entry)| {
            if entry.answer.is_none() && entry.error.is_none() {
                entry.error = Some(late.clone());
            }
            entry
        });
        named.collect()
    }
}

/// Who is asked, and by whom.
pub(super) struct Inquiry<'a> {
    pub connection: ConnectionId,
    pub question: NodeQuestion,
    pub nodes: &'a [JobNode],
    /// The number of this node among them.
    pub own: usize,
    /// Why other nodes of the job are not asked.
    pub only_this_node: Option<String>,
}

/// The questions that are open, by number.
#[derive(Default)]
pub(super) struct Gatherings {
    last: u64,
    open: BTreeMap<u64, Gathering>,
}

impl Gatherings {
    /// Opens a question. Returns its number and its text; `None`: too many are open.
    pub fn begin(&mut self, inquiry: Inquiry<'_>, now: Duration) -> Option<(u64, String)> {
        let Inquiry { connection, question, nodes, own, only_this_node } = inquiry;
        if self.open.len() >= MAX_OPEN {
            return None;
        }
        let entry = |(node, one): (usize, &JobNode)| {
            let foreign = "runs Paddle's own launcher, which does not answer";
            let error = one.is_paddle_launcher.then(|| foreign.to_owned());
            let (is_known, is_own) = (only_this_node.is_none(), node == own);
            let node = is_known.then_some(node);
            let entry = NodeEntry { node, host: one.host.clone(), is_own, answer: None, error };
            (one.id.clone(), entry)
        };
        let number = self.next_number();
        let text = QuestionText::new(question, nodes.len());
        let encoded = text.encode();
        let entries = nodes.iter().enumerate().map(entry).collect();
        let until = now + question.patience();
        self.open.insert(number, Gathering { connection, text, only_this_node, until, entries });
        Some((number, encoded))
    }

    /// A number that no question of this node has had.
    pub fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A node has answered; `None`: this one. Later answers change nothing.
    pub fn note(
        &mut self,
        number: u64,
        node: Option<&str>,
        answer: impl FnOnce(&QuestionText) -> Result<NodeAnswer, String>,
    ) {
        let Some(gathering) = self.open.get_mut(&number) else { return };
        let is_it = |(id, entry): &&mut (String, NodeEntry)| match node {
            Some(node) => !entry.is_own && id == node,
            None => entry.is_own,
        };
        if let Some((_, entry)) = gathering.entries.iter_mut().find(is_it)
            && entry.answer.is_none()
            && entry.error.is_none()
        {
            match answer(&gathering.text) {
                Ok(answer) => entry.answer = Some(answer),
                Err(error) => entry.error = Some(error),
            }
        }
    }

    /// Takes those that all nodes have answered, and those whose time is over.
    pub fn take_done(&mut self, now: Duration) -> Vec<(u64, Gathering)> {
        let is_done = |gathering: &Gathering| now >= gathering.until || gathering.is_complete();
        self.take(|gathering| is_done(gathering))
    }

    /// Takes those of a connection that has ended.
    pub fn take_of(&mut self, connection: ConnectionId) -> Vec<(u64, Gathering)> {
        self.take(|gathering| gathering.connection == connection)
    }

    fn take(&mut self, is_taken: impl Fn(&Gathering) -> bool) -> Vec<(u64, Gathering)> {
        let (taken, open) = std::mem::take(&mut self.open).into_iter().partition(|(_, gathering)| is_taken(gathering));
        self.open = open;
        let taken: BTreeMap<u64, Gathering> = taken;
        taken.into_iter().collect()
    }

    /// When the time of the first one is over.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.open.values().map(|gathering| gathering.until).min()
    }
}

/// How often other nodes ask: one that asks without end delays no other.
#[derive(Default)]
pub(super) struct AskerLimits(HashMap<String, AskLimit>);

impl AskerLimits {
    /// Whether this node may ask now.
    pub fn allow(&mut self, asker: &str, now: Duration) -> bool {
        if self.0.len() >= MAX_ASKERS {
            self.0.retain(|_, limit| !limit.is_idle(now));
        }
        self.0.len() < MAX_ASKERS && self.0.entry(asker.to_owned()).or_default().allow(now)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::report::job_status::JobStatus;

    fn answer(at: f64) -> NodeAnswer {
        NodeAnswer { at, status: JobStatus::default(), facts: Vec::new(), stacks: None }
    }

    fn node(id: &str, is_paddle_launcher: bool) -> JobNode {
        JobNode { id: id.into(), host: format!("host-{id}"), is_paddle_launcher }
    }

    fn shown(gathering: Gathering) -> Vec<String> {
        let text = |entry: NodeEntry| match (entry.node, entry.answer, entry.error) {
            (Some(node), Some(answer), None) => format!("{node} {}: {}", entry.host, answer.at),
            (Some(node), None, Some(error)) => format!("{node} {}: {error}", entry.host),
            _ => panic!("neither"),
        };
        gathering.into_entries().into_iter().map(text).collect()
    }

    fn ask(connection: ConnectionId, question: NodeQuestion, nodes: &[JobNode]) -> Inquiry<'_> {
        Inquiry { connection, question, nodes, own: 1, only_this_node: None }
    }

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn a_question_ends_with_the_last_answer_or_its_time() {
        let nodes = [node("a", false), node("b", false), node("p", true)];
        let mut all = Gatherings::default();
        let (first, text) = all.begin(ask(7, NodeQuestion::Status, &nodes), NOW).unwrap();
        assert_eq!(QuestionText::decode(&text).unwrap().question, NodeQuestion::Status);
        let (second, _) = all.begin(ask(8, NodeQuestion::Stacks, &nodes), NOW).unwrap();
        all.note(first, None, |_| Ok(answer(1.0)));
        // A node that is not in the list, an unknown question, and one that claims to be this node.
        all.note(first, Some("z"), |_| Ok(answer(9.0)));
        all.note(first + 9, Some("a"), |_| Ok(answer(9.0)));
        all.note(second, Some("b"), |_| Ok(answer(9.0)));
        assert!(all.take_done(NOW).is_empty());
        all.note(first, Some("a"), |_| Ok(answer(2.0)));
        all.note(first, Some("a"), |_| Err("again".into()));
        let (number, done) = all.take_done(NOW).pop().unwrap();
        let foreign = "2 host-p: runs Paddle's own launcher, which does not answer";
        assert_eq!((number, shown(done)), (first, vec!["0 host-a: 2".into(), "1 host-b: 1".into(), foreign.into()]));
        assert_eq!(all.next_deadline(), Some(NOW + Duration::from_secs(10)));
        all.note(second, None, |_| Err("cannot be read".into()));
        let (_, late) = all.take_done(NOW + Duration::from_secs(10)).pop().unwrap();
        let first_two = ["0 host-a: has not answered within 10 s", "1 host-b: cannot be read"];
        assert_eq!(shown(late)[..2], first_two);
    }

    #[test]
    fn questions_of_a_client_that_goes_are_closed_and_their_number_is_limited() {
        let nodes = [node("a", false), node("b", false)];
        let mut all = Gatherings::default();
        for connection in 0..MAX_OPEN as u64 {
            all.begin(ask(connection % 2, NodeQuestion::Status, &nodes), NOW).unwrap();
        }
        assert_eq!(all.begin(ask(9, NodeQuestion::Status, &nodes), NOW), None);
        assert_eq!(all.take_of(1).len(), MAX_OPEN / 2);
        assert!(all.begin(ask(9, NodeQuestion::Status, &nodes), NOW).is_some());
    }

    #[test]
    fn a_node_that_asks_without_end_delays_no_other() {
        let mut limits = AskerLimits::default();
        assert!((0..1000).filter(|_| limits.allow("a", NOW)).count() < 1000);
        assert!(!limits.allow("a", NOW) && limits.allow("b", NOW));
    }
}
