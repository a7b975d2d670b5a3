//! What a node answers about its ranks: to the client of its own control socket, and to the other nodes of its job.

use super::rank_facts::RankFacts;
use crate::model::plain_text::escape_document;
use crate::rendezvous::questions::MAX_ANSWER;
use crate::report::job_status::{CONTROL_VERSION, JobStatus, RankStatus};
use crate::report::stacks::{PackedDump, StackDump};
use crate::run::gpu_reader::GpuReader;
use crate::run::stacks::collector::{StackReader, StacksUnavailable};
use crate::run::stacks::look::{RankTarget, StackAnswer, StackRequest};
use crate::sys::clock;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;

/// Bytes of all answers to a question together, more or less: etcd keeps what was written until it is compacted.
const ALL_ANSWERS: usize = 4 << 20;
/// The longest answer in a job with very many nodes.
const LEAST_ANSWER: usize = 32 << 10;
/// How many times the longest answer's bytes the stacks of one may need once they are unpacked.
const UNPACKED_FACTOR: usize = 16;
/// Characters of a text in another node's answer; the rest is cut.
const MOST_TEXT: usize = 4096;
/// The largest number with a fraction there. They are seconds, times and percent.
const LARGEST: f64 = 1e12;
/// Over which time the CPU use of a rank is measured.
pub const SAMPLE: Duration = Duration::from_millis(200);

/// What is asked of a node. A question changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeQuestion {
    /// The state of its ranks.
    Status,
    /// Their stacks as well.
    Stacks,
}

impl NodeQuestion {
    /// How long the nodes of a job may take to answer.
    pub fn patience(self) -> Duration {
        Duration::from_secs(if self == Self::Status { 3 } else { 10 })
    }
}

/// A question as other nodes receive it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QuestionText {
    version: u32,
    pub question: NodeQuestion,
    /// The longest answer that the asker takes, in bytes.
    pub longest: usize,
}

impl QuestionText {
    /// In a job of so many nodes.
    pub fn new(question: NodeQuestion, nodes: usize) -> Self {
        let longest = (ALL_ANSWERS / nodes.max(1)).clamp(LEAST_ANSWER, MAX_ANSWER);
        Self { version: CONTROL_VERSION, question, longest }
    }

    /// The text.
    pub fn encode(&self) -> String {
        // Serialization of these types cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a question of another node.
    pub fn decode(text: &str) -> Option<Self> {
        let read: Self = serde_json::from_str(text).ok()?;
        Some(Self { longest: read.longest.min(MAX_ANSWER), ..read })
    }
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// Its time (seconds since 1970): clocks of other machines may differ.
    pub at: f64,
    /// The state of its launcher.
    pub status: JobStatus,
    /// What its ranks use, in the order of the state's ranks.
    pub facts: Vec<RankFacts>,
    /// The stacks of the ranks that run, if they were asked for.
    #[serde(default)]
    pub stacks: Option<StackDump>,
}

/// An answer as other nodes receive it.
#[derive(Serialize, Deserialize)]
struct AnswerText {
    #[serde(flatten)]
    answer: NodeAnswer,
    packed: Option<PackedDump>,
}

/// The answer of this node. Takes a moment.
pub(super) fn answer(
    question: NodeQuestion,
    status: JobStatus,
    (reader, gpus): (&StackReader, &GpuReader),
) -> Result<NodeAnswer, StacksUnavailable> {
    let (facts, stacks) = match question {
        NodeQuestion::Status => (RankFacts::of(&status, gpus, SAMPLE), None),
        NodeQuestion::Stacks => (Vec::new(), Some(read_stacks(&status, reader)?)),
    };
    Ok(NodeAnswer { at: clock::wall().as_secs_f64(), status, facts, stacks })
}

fn read_stacks(status: &JobStatus, reader: &StackReader) -> Result<StackDump, StacksUnavailable> {
    let target = |rank: &RankStatus| {
        let process = (rank.pid.filter(|_| rank.exit.is_none())?, rank.start_ticks?);
        Some(RankTarget::new(rank.local_rank, process, rank.logs.clone()))
    };
    let ranks: Vec<RankTarget> = status.ranks.iter().filter_map(target).collect();
    if ranks.is_empty() {
        return Ok(StackDump::default());
    }
    match reader.start(&StackRequest { ranks, hang: None })?.wait()? {
        StackAnswer::Stacks(dump) => Ok(dump),
        _ => Err(StacksUnavailable::Failed),
    }
}

/// The text of an answer for another node. Where it would be longer, other threads and processes than the main ones are left out.
pub(super) fn encode(answer: Result<NodeAnswer, String>, longest: usize) -> String {
    let text = |answer: Result<NodeAnswer, String>| {
        let packed = answer.map(|mut answer| {
            let packed = answer.stacks.take().map(PackedDump::new);
            AnswerText { answer, packed }
        });
        // Serialization of these types cannot fail.
        serde_json::to_string(&packed).unwrap_or_default()
    };
    let whole = text(answer.clone());
    if whole.len() <= longest {
        return whole;
    }
    let shorter = answer.map(|mut answer| {
        answer.stacks.iter_mut().for_each(StackDump::keep_main_threads);
        answer
    });
    let shorter = text(shorter);
    match shorter.len() {
        length if length <= longest => shorter,
        length => text(Err(format!("its answer has {length} bytes, and {longest} is the limit in a job of this size"))),
    }
}

/// Reads the answer of another node. The error is a text for people.
pub(super) fn decode(text: &str, longest: usize) -> Result<NodeAnswer, String> {
    if text.len() > longest {
        return Err("its answer is too long".to_owned());
    }
    let AnswerText { answer, packed } =
        read(text).ok_or("its answer is not understood; does it run another version of rlaunch?")??;
    let unpack = |packed: PackedDump| packed.unpack(UNPACKED_FACTOR * longest).ok_or("its stacks are too large");
    Ok(NodeAnswer { stacks: packed.map(unpack).transpose()?, ..answer })
}

fn read(text: &str) -> Option<Result<AnswerText, String>> {
    let mut document = escape_document(serde_json::from_str(text).ok()?);
    if bound(&mut document) { serde_json::from_value(document).ok() } else { None }
}

/// Cuts long texts. Returns whether all numbers are such as a node measures.
fn bound(document: &mut Value) -> bool {
    match document {
        Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(MOST_TEXT) {
                text.truncate(end);
            }
            true
        }
        Value::Number(number) => !number.is_f64() || number.as_f64().is_some_and(|number| number.abs() <= LARGEST),
        Value::Array(items) => items.iter_mut().all(bound),
        Value::Object(fields) => fields.values_mut().all(bound),
        Value::Null | Value::Bool(_) => true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::report::stacks::{ProcessStack, RankStacks, StackFrame, ThreadStack};

    fn thread(count: usize) -> ThreadStack {
        let frame = |line| StackFrame { function: "f".into(), file: "train.py".into(), line };
        ThreadStack { thread: None, name: None, frames: (0..count as i32).map(frame).collect() }
    }

    /// An answer with a main thread and another one, of so many frames.
    fn with_frames(main: usize, other: usize) -> NodeAnswer {
        let process = ProcessStack {
            pid: 7,
            name: "python\u{1b}".into(),
            state: 'S',
            wait_channel: None,
            cpu_seconds: 1.0,
            cpu_seconds_watched: None,
            threads: vec![thread(main), thread(other)],
            unread: None,
        };
        let rank = RankStacks { local_rank: 0, processes: vec![process], silent_seconds: None, last_line: None };
        let stacks = Some(StackDump { ranks: vec![rank] });
        NodeAnswer { at: 1.5, status: JobStatus::default(), facts: vec![RankFacts::default()], stacks }
    }

    fn sent(answer: NodeAnswer, longest: usize) -> Result<NodeAnswer, String> {
        let text = encode(Ok(answer), longest);
        assert!(text.len() <= longest.max(200), "{}", text.len());
        decode(&text, longest.max(200))
    }

    #[test]
    fn an_answer_survives_the_wire_with_its_texts_escaped() {
        let received = sent(with_frames(3, 2), MAX_ANSWER).unwrap();
        let mut expected = with_frames(3, 2);
        expected.stacks.as_mut().unwrap().ranks[0].processes[0].name = "python\\u{1b}".into();
        assert_eq!(received, expected);
        assert_eq!(decode(&encode(Err("why\n".into()), 100), 100), Err("why\\n".into()));
    }

    #[test]
    fn a_long_answer_is_shortened_or_refused() {
        let frames = |answer: NodeAnswer| {
            let process = &answer.stacks.unwrap().ranks[0].processes[0];
            process.threads.iter().map(|thread| thread.frames.len()).collect::<Vec<_>>()
        };
        assert_eq!(frames(sent(with_frames(50, 2000), LEAST_ANSWER).unwrap()), [50]);
        let refused = sent(with_frames(2000, 1), LEAST_ANSWER).unwrap_err();
        assert!(refused.ends_with("bytes, and 32768 is the limit in a job of this size"), "{refused}");
        assert!(decode(&"x".repeat(300), 299).unwrap_err().contains("too long"));
        for text in ["", "[]", "{\"Ok\":{}}"] {
            assert!(decode(text, 300).unwrap_err().contains("not understood"));
        }
    }

    #[test]
    fn what_a_node_cannot_have_measured_is_refused_and_long_texts_are_cut() {
        let mut long = with_frames(1, 1);
        long.status.host = "ü".repeat(MOST_TEXT + 1);
        assert_eq!(sent(long, MAX_ANSWER).unwrap().status.host, "ü".repeat(MOST_TEXT));
        let facts = |cpu_percent| vec![RankFacts { cpu_percent: Some(cpu_percent), ..RankFacts::default() }];
        for (number, is_read) in [(1e12, true), (1e300, false), (-1e300, false)] {
            let answer = NodeAnswer { facts: facts(number), ..with_frames(1, 1) };
            assert_eq!(sent(answer, MAX_ANSWER).is_ok(), is_read, "{number}");
            let mut answer = with_frames(1, 1);
            answer.stacks.as_mut().unwrap().ranks[0].silent_seconds = Some(number);
            assert_eq!(sent(answer, MAX_ANSWER).is_ok(), is_read, "{number}");
        }
    }

    #[test]
    fn equal_stacks_do_not_fill_the_memory() {
        let mut many = with_frames(1, 1);
        let threads = &mut many.stacks.as_mut().unwrap().ranks[0].processes[0].threads;
        let long = "x".repeat(2 * MOST_TEXT);
        (threads[0].frames[0].file, threads[0].frames[0].function) = (long.clone(), long);
        let main = threads[0].clone();
        threads.resize(3000, main);
        let cut = sent(many.clone(), MAX_ANSWER).unwrap().stacks.unwrap();
        let threads = &cut.ranks[0].processes[0].threads;
        assert_eq!((threads.len(), threads[0].frames[0].file.len()), (1, MOST_TEXT));
        let mut ranks = many.stacks.unwrap().ranks;
        ranks[0].processes[0].threads.truncate(1);
        let stacks = Some(StackDump { ranks: vec![ranks[0].clone(); 600] });
        assert_eq!(
            sent(NodeAnswer { stacks, ..with_frames(1, 1) }, MAX_ANSWER).unwrap_err(),
            "its stacks are too large"
        );
    }

    #[test]
    fn a_question_says_how_long_an_answer_may_be() {
        let longest = |nodes| QuestionText::new(NodeQuestion::Stacks, nodes).longest;
        assert_eq!([longest(2), longest(64), longest(9000)], [MAX_ANSWER, 64 << 10, LEAST_ANSWER]);
        let greedy = QuestionText { longest: usize::MAX, ..QuestionText::new(NodeQuestion::Status, 2) };
        assert_eq!(QuestionText::decode(&greedy.encode()).unwrap().longest, MAX_ANSWER);
        assert_eq!(QuestionText::decode(r#"{"version":1,"question":"stop","longest":9}"#), None);
    }
}
