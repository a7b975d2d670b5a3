//! Memory that a launcher shares with the ranks of its node: the step of each rank, and the step at which all of them stop. A rank
//! writes its step and then reads the stop step; the launcher writes the stop step and then reads the steps. Both are sequentially
//! consistent, so at least one of them sees what the other has written. `protocol/stop_step` rests on that.

use crate::protocol::stop_step::LARGEST_STEP;
use crate::sys::clock;
use crate::sys::deferred_term;
use crate::sys::io::shared_words::SharedWords;
use crate::sys::process::{pidfd, tree};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

/// The stop step (62 bits) and its phase (2 bits).
const STOP: usize = 0;
/// When the ranks are ended by signals, in microseconds (`clock::now`); 0: not known.
const ENDS: usize = 1;
/// The first rank's words: the newest step that it has reported plus one, and the step at which it was asked to stop plus one. Behind
/// those of all ranks each one's process id follows; 0: not known yet.
const FIRST: usize = 2;
const WORDS_PER_RANK: usize = 2;

/// How long a rank waits for the launcher to note its process id, which it does when the rank's start is complete.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// How often it looks.
const START_INTERVAL: Duration = Duration::from_millis(1);

const PHASE_SHIFT: u32 = 62;
const STEP_MASK: u64 = (1 << PHASE_SHIFT) - 1;
/// Ranks that reach the step wait.
const RAISED: u64 = 1;
/// Ranks that reach the step stop.
const DECIDED: u64 = 2;

/// What a rank is to do at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopAnswer {
    /// Go on.
    GoOn,
    /// Stop here, with all other ranks.
    Stop,
    /// Ask again: the launchers are agreeing on the stop step.
    Wait,
}

fn ranks_of(words: &SharedWords) -> usize {
    words.count().saturating_sub(FIRST) / (WORDS_PER_RANK + 1)
}

fn process_of(words: &SharedWords, local_rank: usize) -> usize {
    slot(ranks_of(words)) + local_rank
}

/// The launcher's end.
#[derive(Debug)]
pub struct StopWords {
    words: SharedWords,
}

fn slot(local_rank: usize) -> usize {
    FIRST + WORDS_PER_RANK * local_rank
}

impl StopWords {
    /// For so many ranks.
    pub fn new(ranks: usize) -> io::Result<Self> {
        Ok(Self { words: SharedWords::new("rlaunch-stop", slot(ranks) + ranks)? })
    }

    fn ranks(&self) -> usize {
        ranks_of(&self.words)
    }

    /// The text by which a rank opens its slot (`RankStopSlot::open`).
    pub fn address(&self, local_rank: usize) -> String {
        format!("/proc/{}/fd/{}:{local_rank}", std::process::id(), self.words.as_fd().as_raw_fd())
    }

    /// Another process of this rank is about to be started.
    pub fn begin_rank(&self, local_rank: usize) {
        self.words.set(slot(local_rank), 0);
        self.words.set(slot(local_rank) + 1, 0);
        self.words.set(process_of(&self.words, local_rank), 0);
    }

    /// This is the process of the rank.
    pub fn set_rank(&self, local_rank: usize, pid: i32) {
        self.words.set(process_of(&self.words, local_rank), u64::try_from(pid).unwrap_or(0));
    }

    /// The newest step of all ranks; `None`: none has asked whether to stop.
    pub fn newest(&self) -> Option<u64> {
        (0..self.ranks()).filter_map(|rank| self.words.get(slot(rank)).checked_sub(1)).max()
    }

    /// The step at which ranks were asked to stop, if any was.
    pub fn stopped_at(&self) -> Option<u64> {
        (0..self.ranks()).filter_map(|rank| self.words.get(slot(rank) + 1).checked_sub(1)).max()
    }

    /// Ranks that reach this step wait from now on.
    pub fn raise(&self, step: u64) {
        self.words.set(STOP, packed(RAISED, step));
    }

    /// Ranks that reach this step stop.
    pub fn decide(&self, step: u64) {
        self.words.set(STOP, packed(DECIDED, step));
    }

    /// Ranks go on.
    pub fn lower(&self) {
        self.words.set(STOP, 0);
    }

    /// No time at which ranks are ended by signals is known.
    pub fn clear_end(&self) {
        self.words.set(ENDS, 0);
    }

    /// Ranks learn when they are ended by signals (`clock::now`).
    pub fn set_end(&self, at: Duration) {
        self.words.set(ENDS, u64::try_from(at.as_micros()).unwrap_or(u64::MAX).max(1));
    }
}

/// A rank's end.
#[derive(Debug)]
pub struct RankStopSlot {
    words: SharedWords,
    local_rank: usize,
}

impl RankStopSlot {
    /// Opens the slot that this text names (`StopWords::address`).
    pub fn open(address: &str) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let (path, rank) = address.rsplit_once(':').ok_or_else(invalid)?;
        let rank: usize = rank.parse().map_err(|_| invalid())?;
        let words = SharedWords::open(Path::new(path))?;
        if rank < ranks_of(&words) { Ok(Self { words, local_rank: rank }) } else { Err(invalid()) }
    }

    /// Whether a process is the rank, or was started by it or below it and has not lost its parents since. A daemon that the rank has
    /// left, such as `setsid tensorboard &`, has the launcher as its parent, and says nothing for the rank. To be asked by processes
    /// of the rank: it waits for the launcher.
    pub fn is_of_rank(&self, pid: i32) -> bool {
        let (word, until) = (process_of(&self.words, self.local_rank), clock::now() + START_PATIENCE);
        while self.words.get(word) == 0 && clock::now() < until {
            pidfd::await_any(&[], START_INTERVAL);
        }
        match i32::try_from(self.words.get(word)) {
            // It may be a launcher that is busy, so the process is believed.
            Ok(0) => true,
            Ok(rank) => tree::descends_from(pid, rank),
            Err(_) => false,
        }
    }

    /// Has this process ignore SIGTERM until the time at which the ranks are ended by signals, unless it has a handler.
    pub fn defer_sigterm(address: &str) -> io::Result<()> {
        deferred_term::install(Self::open(address)?.words, ENDS)
    }

    /// Reports a step, at most `LARGEST_STEP`, and asks what to do there. No system call but for the clock, and that only while waiting.
    pub fn ask(&self, step: u64) -> StopAnswer {
        let step = step.min(LARGEST_STEP);
        self.words.set(slot(self.local_rank), step + 1);
        let stop = self.words.get(STOP);
        if stop == 0 || step < stop & STEP_MASK {
            return StopAnswer::GoOn;
        }
        if stop >> PHASE_SHIFT == DECIDED {
            self.words.set(slot(self.local_rank) + 1, step + 1);
            return StopAnswer::Stop;
        }
        match self.time_left() {
            Some(Duration::ZERO) => StopAnswer::GoOn,
            _ => StopAnswer::Wait,
        }
    }

    /// The time until the ranks are ended by signals, if that is known.
    pub fn time_left(&self) -> Option<Duration> {
        match self.words.get(ENDS) {
            0 => None,
            at => Some(Duration::from_micros(at).saturating_sub(clock::now())),
        }
    }
}

fn packed(phase: u64, step: u64) -> u64 {
    phase << PHASE_SHIFT | step.min(STEP_MASK)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    fn ranks(count: usize) -> (StopWords, Vec<RankStopSlot>) {
        let words = StopWords::new(count).unwrap();
        let ranks = (0..count).map(|rank| RankStopSlot::open(&words.address(rank)).unwrap()).collect();
        (words, ranks)
    }

    #[test]
    fn a_rank_waits_at_a_raised_step_and_stops_at_a_decided_one() {
        let (words, ranks) = ranks(2);
        assert_eq!((words.newest(), words.stopped_at(), ranks[0].time_left()), (None, None, None));
        assert_eq!(ranks[0].ask(0), StopAnswer::GoOn);
        assert_eq!(words.newest(), Some(0), "step 0 is a step");
        assert_eq!(ranks[1].ask(7), StopAnswer::GoOn);
        assert_eq!(words.newest(), Some(7));
        words.raise(8);
        assert_eq!((ranks[0].ask(7), ranks[1].ask(8)), (StopAnswer::GoOn, StopAnswer::Wait));
        words.raise(10);
        assert_eq!(ranks[1].ask(8), StopAnswer::GoOn, "a later proposal has replaced it");
        words.decide(10);
        assert_eq!((ranks[0].ask(9), ranks[0].ask(10), ranks[1].ask(11)), {
            (StopAnswer::GoOn, StopAnswer::Stop, StopAnswer::Stop)
        });
        assert_eq!(words.stopped_at(), Some(11));
        words.begin_rank(1);
        assert_eq!((words.newest(), words.stopped_at()), (Some(10), Some(10)));
        words.set_end(clock::now());
        words.clear_end();
        assert_eq!(ranks[0].time_left(), None);
    }

    #[test]
    fn ranks_go_on_when_the_step_is_lowered_or_the_time_is_over() {
        let (words, ranks) = ranks(1);
        words.raise(0);
        assert_eq!(ranks[0].ask(0), StopAnswer::Wait, "step 0 may be the stop step");
        words.set_end(clock::now() + Duration::from_secs(1000));
        assert_eq!(ranks[0].ask(0), StopAnswer::Wait);
        assert!(ranks[0].time_left().unwrap() > Duration::from_secs(900));
        words.set_end(Duration::ZERO);
        assert_eq!((ranks[0].ask(0), ranks[0].time_left()), (StopAnswer::GoOn, Some(Duration::ZERO)));
        words.decide(0);
        assert_eq!(ranks[0].ask(0), StopAnswer::Stop, "a decision counts also later");
        words.lower();
        assert_eq!(ranks[0].ask(LARGEST_STEP), StopAnswer::GoOn);
    }

    #[test]
    fn only_the_rank_and_what_descends_from_it_is_of_the_rank() {
        let (words, ranks) = ranks(2);
        let own = std::process::id() as i32;
        words.set_rank(0, own);
        words.set_rank(1, i32::MAX);
        assert!(ranks[0].is_of_rank(own) && !ranks[1].is_of_rank(own));
        words.set_rank(1, nix::unistd::getppid().as_raw());
        assert!(ranks[1].is_of_rank(own), "its parent is the rank");
        words.begin_rank(0);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ranks[0].is_of_rank(own));
            words.set_rank(0, i32::MAX);
            assert!(!asked.join().unwrap(), "it has waited for the number");
        });
    }

    fn tempfile_of(bytes: usize) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("rlaunch-stop-words-{}", std::process::id()));
        std::fs::write(&path, vec![0; bytes]).unwrap();
        path
    }

    #[test]
    fn an_address_that_no_launcher_gives_is_refused() {
        let (words, _) = ranks(2);
        let path = words.address(0);
        let path = path.strip_suffix(":0").unwrap();
        for odd in ["", "/proc/self/stat", "/proc/self/stat:0", &format!("{path}:2"), &format!("{path}:{}", usize::MAX)]
        {
            assert!(RankStopSlot::open(odd).is_err(), "{odd}");
        }
        assert!(RankStopSlot::open(&format!("{path}:1")).is_ok());
        let file = tempfile_of(64);
        assert!(RankStopSlot::open(&format!("{}:0", file.display())).is_err(), "an ordinary file");
        assert_eq!(std::fs::read(&file).unwrap(), [0; 64]);
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_rank_and_its_launcher_cannot_both_miss_the_other() {
        let (words, ranks) = ranks(1);
        for _ in 0..3_000 {
            words.lower();
            words.begin_rank(0);
            let (newest, answer) = std::thread::scope(|scope| {
                let rank = scope.spawn(|| ranks[0].ask(5));
                words.raise(5);
                (words.newest(), rank.join().unwrap())
            });
            assert!(newest.is_some() || answer == StopAnswer::Wait);
        }
    }
}
