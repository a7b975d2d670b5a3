//! Looks at ranks that have been silent for long, by a reader process, and finds out whether the job hangs.

use crate::protocol::RankHang;
use crate::report::stacks::{self, RankLine, StackDump, StackGroup};
use crate::run::stacks::collector::StacksUnavailable;
use crate::run::stacks::look::{HangQuestion, RankTarget, StackAnswer, StackRequest};
use crate::run::stacks::output_mark::OutputHistory;
use crate::run::stacks::polled_reader::PolledReader;
use crate::supervise::{HangAction, HangEvent, HangLook, HangWatch};
use crate::sys::clock;
use std::time::Duration;
use tracing::{debug, warn};

/// For how long no stack may move.
pub const WATCHED: Duration = Duration::from_secs(5);
/// Ranks that show no sign of life later than this after their start hang at their start. Or later than two timeouts, which a first look
/// takes where not all output is seen.
const START: Duration = Duration::from_secs(600);

/// A job that hangs.
#[derive(Clone, Debug)]
pub struct FoundHang {
    /// How long no rank has written anything.
    pub silence: Duration,
    /// For how long the stacks were watched.
    pub watched: Duration,
    /// The stacks.
    pub dump: StackDump,
    /// Whether it has not been reported yet.
    pub is_new: bool,
    /// How many looks in a row have found it.
    pub looks: u32,
    /// Whether the ranks have shown no sign of life since their start.
    pub is_at_start: bool,
}

impl FoundHang {
    /// What the other nodes of the round learn of it, if it is clear.
    pub fn for_other_nodes(&self, ranks: &[RankLine]) -> Option<RankHang> {
        let groups = stacks::group(&self.dump);
        let stuck: Vec<&StackGroup<'_>> = groups.iter().filter(|group| !group.waits()).collect();
        if stuck.is_empty() {
            return Some(RankHang::Waits);
        }
        self.are_idle_since_start(&stuck)
            .then(|| RankHang::Stuck { place: stacks::describe_places(&self.dump, ranks, &stuck), looks: self.looks })
    }

    /// Whether those of other nodes may wait for ranks here that have been idle since their start: what `RankHang::Stuck` says.
    fn holds_up_others(&self) -> bool {
        let groups = stacks::group(&self.dump);
        let stuck: Vec<&StackGroup<'_>> = groups.iter().filter(|group| !group.waits()).collect();
        !stuck.is_empty() && self.are_idle_since_start(&stuck)
    }

    fn are_idle_since_start(&self, groups: &[&StackGroup<'_>]) -> bool {
        let is_idle =
            |group: &&StackGroup<'_>| group.process.is_some() && group.ranks.iter().all(|local| self.is_idle(*local));
        self.is_at_start && groups.iter().all(is_idle)
    }

    fn is_idle(&self, local_rank: usize) -> bool {
        let rank = self.dump.ranks.iter().find(|rank| rank.local_rank == local_rank);
        rank.is_some_and(|rank| rank.is_idle(self.watched))
    }

    /// The ranks to be aborted: those that hold up the others and are idle; or all of them, if none stands out and all wait for each
    /// other. `has_other_nodes`: then ranks that wait may wait for those of other nodes, which may work.
    pub fn ranks_to_abort(&self, has_other_nodes: bool) -> Vec<usize> {
        let groups = stacks::group(&self.dump);
        let all = || self.dump.ranks.iter().map(|rank| rank.local_rank);
        match stacks::find_odd_ranks(&groups, &[]) {
            odd if !odd.ranks().is_empty() => {
                odd.ranks().iter().copied().filter(|local| self.is_idle(*local)).collect()
            }
            _ if has_other_nodes => Vec::new(),
            _ if groups.iter().all(|group| group.waits_in.is_some()) || all().all(|local| self.is_idle(local)) => {
                all().collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Looks for hangs of the present attempt.
pub struct HangDetector<'a> {
    watch: HangWatch,
    question: HangQuestion,
    reader: PolledReader<'a>,
    /// Whether ranks of other nodes may wait for those of this one.
    has_other_nodes: bool,
    /// The attempt that is watched.
    attempt: Option<u32>,
    /// The last attempt, and when it began.
    began: Option<(u32, Duration)>,
    /// When a stack was last seen to have moved, or that attempt began.
    moved: Duration,
    /// What was seen of the ranks' output.
    output: OutputHistory,
    /// How many looks in a row have found a hang.
    looks: u32,
    has_warned: bool,
}

impl<'a> HangDetector<'a> {
    /// `timeout`: how long no rank has to write anything; `None`: never looks. `has_other_nodes`: those of other nodes may wait
    /// for them.
    pub fn new(timeout: Option<Duration>, has_other_nodes: bool, reader: PolledReader<'a>) -> Self {
        let silent = timeout.unwrap_or(Duration::MAX);
        let watched_seconds = WATCHED.min(silent).as_secs_f64();
        let question = HangQuestion { silent_seconds: silent.as_secs_f64(), watched_seconds, is_exiting: false };
        Self {
            watch: HangWatch::new(timeout),
            question,
            reader,
            has_other_nodes,
            attempt: None,
            began: None,
            moved: Duration::ZERO,
            output: OutputHistory::default(),
            looks: 0,
            has_warned: false,
        }
    }

    /// When `turn` has something to do, if nothing happens before.
    pub fn due(&self) -> Option<Duration> {
        self.reader.until().or_else(|| self.watch.due())
    }

    /// Whether a hang has been reported, and nothing has been seen to move since.
    pub fn is_reported(&self) -> bool {
        self.watch.is_reported()
    }

    /// Continues. `attempt`: the one whose ranks run, and neither stop nor are suspended; `targets`: those ranks. Returns a hang each time
    /// that it is seen.
    pub fn turn(&mut self, attempt: Option<u32>, targets: impl FnOnce() -> Vec<RankTarget>) -> Option<FoundHang> {
        let now = clock::now();
        if attempt != self.attempt {
            self.attempt = attempt;
            self.watch.handle(now, HangEvent::NotRunning);
            self.output.clear();
            self.reader.give_up();
            if let Some(attempt) = attempt {
                self.watch.handle(now, HangEvent::Running);
                if self.began.is_none_or(|(last, _)| last != attempt) {
                    (self.began, self.moved) = (Some((attempt, now)), now);
                }
            }
        }
        if let Some(answer) = self.reader.receive() {
            let (look, found) = self.judge(answer, now);
            debug!("no rank has written anything for --hang_timeout: {look:?}");
            if look == HangLook::Moved {
                self.moved = now;
            }
            let action = self.watch.handle(now, HangEvent::Looked(look));
            let found = found.filter(|_| self.watch.is_reported())?;
            let is_new = action == Some(HangAction::Report);
            self.looks = if is_new { 1 } else { self.looks.saturating_add(1) };
            return Some(FoundHang { is_new, looks: self.looks, ..found });
        }
        if self.watch.due().is_some_and(|at| now >= at)
            && self.watch.handle(now, HangEvent::Due) == Some(HangAction::Look)
        {
            let mut ranks = targets();
            for rank in &mut ranks {
                rank.seen = self.output.of(rank.local_rank, now);
            }
            if ranks.is_empty() {
                self.watch.handle(now, HangEvent::Looked(HangLook::Moved));
                return None;
            }
            let request = StackRequest { ranks, hang: Some(self.question) };
            if let Err(error) = self.reader.start(request) {
                // One of the attempt before may not be over.
                if !matches!(error, StacksUnavailable::Busy) {
                    self.warn(&error);
                }
                self.watch.handle(now, HangEvent::Looked(HangLook::Failed));
            }
        }
        None
    }

    fn is_at_start(&self, now: Duration, silence: Duration) -> bool {
        let sign_of_life = self.moved.max(now.saturating_sub(silence));
        let timeout = duration(self.question.silent_seconds);
        self.began.is_some_and(|(_, began)| sign_of_life.saturating_sub(began) <= START.max(timeout.saturating_mul(2)))
    }

    fn judge(
        &mut self,
        answer: Result<StackAnswer, StacksUnavailable>,
        now: Duration,
    ) -> (HangLook, Option<FoundHang>) {
        match answer {
            Ok(StackAnswer::NotSilent { seconds, marks }) => {
                self.output.note(now, marks);
                (HangLook::NotSilent(duration(seconds)), None)
            }
            Ok(StackAnswer::Still { seconds, watched, dump }) => {
                let (silence, watched) = (duration(seconds), duration(watched));
                let is_at_start = self.is_at_start(now, silence);
                let found = FoundHang { silence, watched, dump, is_new: false, looks: 0, is_at_start };
                let is_held_up = self.has_other_nodes && found.holds_up_others();
                (if is_held_up { HangLook::StillAtStart } else { HangLook::Still }, Some(found))
            }
            Ok(StackAnswer::Moved | StackAnswer::Stacks(_)) => (HangLook::Moved, None),
            Err(error) => {
                self.warn(&error);
                (HangLook::Failed, None)
            }
        }
    }

    fn warn(&mut self, error: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.has_warned, true) {
            warn!("cannot find out whether the job hangs: {error}");
        }
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ProcessLabel, Role};
    use crate::report::stacks::{ProcessStack, RankStacks, StackFrame, ThreadStack};
    use crate::run::stacks::collector::StackReader;

    const T: Duration = Duration::from_secs(600);

    /// A rank whose main thread is in these functions, outermost first, and which used so much CPU time.
    fn rank(local_rank: usize, frames: &[(&str, &str)], used: f64) -> RankStacks {
        let frame = |(function, file): &(&str, &str)| StackFrame {
            function: (*function).into(),
            file: (*file).into(),
            line: 2,
        };
        let frames = frames.iter().rev().map(frame).collect();
        let process = ProcessStack {
            pid: 100,
            name: "python".into(),
            state: 'S',
            wait_channel: None,
            cpu_seconds: used,
            cpu_seconds_watched: Some(used),
            threads: vec![ThreadStack { thread: None, name: None, frames }],
            unread: None,
        };
        RankStacks { local_rank, processes: vec![process], silent_seconds: None, last_line: None }
    }

    fn reported(ranks: Vec<RankStacks>, is_at_start: bool) -> Option<RankHang> {
        let label = |number| ProcessLabel { role: Role::Trainer, number };
        let line = |n| RankLine { local_rank: n, label: label(2 + n), has_ended: false, place: None };
        let lines: Vec<RankLine> = (0..ranks.len()).map(line).collect();
        let dump = StackDump { ranks };
        FoundHang { silence: T, watched: WATCHED, dump, is_new: false, looks: 4, is_at_start }.for_other_nodes(&lines)
    }

    #[test]
    fn other_nodes_learn_of_ranks_that_wait_or_have_been_idle_elsewhere_since_their_start() {
        let hangs = |local| rank(local, &[("<module>", "hangs.py")], 0.0);
        let stuck = |place: &str| Some(RankHang::Stuck { place: place.into(), looks: 4 });
        let torch = "/v/site-packages/torch/distributed/distributed_c10d.py";
        let paddle = "/v/site-packages/paddle/distributed/parallel.py";
        let store = "/v/site-packages/torch/distributed/rendezvous.py";
        for wait in [
            &[("<module>", "train.py"), ("init_process_group", torch), ("_create_c10d_store", store)][..],
            &[("<module>", "train.py"), ("wrapper", "/v/torch/distributed/c10d_logger.py"), ("all_reduce", torch)],
            &[("<module>", "train.py"), ("main", "train.py"), ("init_parallel_env", paddle)],
        ] {
            let waits = |local| rank(local, wait, 5.0);
            assert_eq!(reported(vec![waits(0), waits(1)], false), Some(RankHang::Waits), "{wait:?}");
            assert_eq!(reported(vec![waits(0), hangs(1)], true), stuck("rank 3 is in <module> (hangs.py:2)"));
        }
        assert_eq!(reported(vec![hangs(0), hangs(1)], true), stuck("ranks 2, 3 are in <module> (hangs.py:2)"));
        assert_eq!(reported(vec![hangs(0)], false), None, "it has worked before");
        assert_eq!(
            reported(vec![hangs(0), rank(1, &[("<module>", "load.py")], 5.0)], true),
            None,
            "one works in C code"
        );
        assert_eq!(
            reported(vec![RankStacks { processes: Vec::new(), ..hangs(0) }], true),
            None,
            "it has ended meanwhile"
        );
        let mut stopped = rank(0, &[("<module>", "train.py"), ("barrier", torch)], 0.0);
        stopped.processes[0].state = 'T';
        assert_eq!(reported(vec![stopped], true), stuck("rank 2 is stopped by a signal"));
    }

    #[test]
    fn a_hang_is_at_the_start_unless_the_ranks_have_lived_on_for_ten_minutes_or_two_timeouts() {
        let reader = StackReader::default();
        let mut detector = HangDetector::new(Some(T), false, PolledReader::new(&reader));
        let at = Duration::from_secs;
        assert!(!detector.is_at_start(at(2000), T), "nothing has begun");
        (detector.began, detector.moved) = (Some((0, at(1000))), at(1000));
        for (now, is_at_start) in [(1605, true), (2800, true), (2801, false), (9000, false)] {
            assert_eq!(detector.is_at_start(at(now), T), is_at_start, "{now}");
        }
        detector.moved = at(2201);
        assert!(!detector.is_at_start(at(2805), at(1800)), "a stack has moved since");
        detector.question.silent_seconds = 20.0;
        detector.moved = at(1600);
        assert!(detector.is_at_start(at(1625), at(100)));
        detector.moved = at(1601);
        assert!(!detector.is_at_start(at(1626), at(100)));
    }
}
