//! Where ranks' lines are copied to while they are written: the console's two streams, and files for lines that
//! somebody looks for.

use super::console::Follower;
use super::launch::Launch;
use super::logs;
use super::output::Written;
use super::rotate::Log;
use crate::plan::{Filter, Stream};
use crate::supervise::ChildId;
use crate::sys::console::Console;
use crate::sys::poll::Poll;
use std::sync::Arc;
use std::time::Duration;

/// How long a file system that hangs is waited for.
const FILE_PATIENCE: Duration = Duration::from_secs(5);

/// All of them.
pub struct Screens<'a> {
    launch: &'a Launch<'a>,
    poll: Arc<Poll>,
    tokens: u64,
    /// The console's streams, then the filters.
    followers: Vec<Option<Follower>>,
    /// The attempt that the filters' files are of.
    attempt: Option<u32>,
}

impl<'a> Screens<'a> {
    /// `tokens`: the first of those in `poll` that are for them, two for each.
    pub fn new(launch: &'a Launch<'a>, poll: Arc<Poll>, tokens: u64) -> Self {
        let followers = (0..2 + launch.filters.len()).map(|_| None).collect();
        let mut screens = Self { launch, poll, tokens, followers, attempt: None };
        for stream in Stream::BOTH {
            if launch.shown.keys().any(|(_, shown)| *shown == stream)
                && let Ok(console) = Console::open(stream.descriptor())
            {
                screens.followers[stream.index()] = screens.copies_to(stream.index(), console);
            }
        }
        screens
    }

    fn copies_to(&self, number: usize, console: Console) -> Option<Follower> {
        let token = self.tokens + 2 * number as u64;
        Follower::new(console, self.launch.colour, &self.poll, (token, token + 1)).ok()
    }

    /// Those that there are.
    pub fn followers(&mut self) -> impl Iterator<Item = &mut Follower> {
        self.followers.iter_mut().flatten()
    }

    /// One of them, by its number.
    pub fn follower(&mut self, number: usize) -> Option<&mut Follower> {
        self.followers.get_mut(number)?.as_mut()
    }

    /// Follows a file that a rank writes to, if it is shown. A console that cannot follow shows nothing of it; the log
    /// has it all.
    pub fn follow(&mut self, id: ChildId, log: &Written, short: Option<&Arc<Log>>) {
        self.open_filters(id.attempt);
        let Some(prefix) = self.launch.shown.get(&(id.local_rank, log.stream)) else { return };
        let short = short.filter(|_| log.rotates);
        if let Some(console) = &mut self.followers[log.stream.index()] {
            let _ = console.follow(&log.path, log.start, short.cloned(), prefix.clone());
        }
        if log.rotates {
            return;
        }
        for (number, _) in self.launch.filters.iter().enumerate().filter(|(_, filter)| filter.stream == log.stream) {
            if let Some(file) = &mut self.followers[2 + number] {
                let _ = file.follow(&log.path, log.start, None, Some(prefix.clone().unwrap_or_default()));
            }
        }
    }

    fn open_filters(&mut self, attempt: u32) {
        if self.attempt == Some(attempt) || self.launch.filters.is_empty() {
            return;
        }
        self.attempt = Some(attempt);
        for (number, Filter { texts, file, .. }) in self.launch.filters.iter().enumerate() {
            let opened = logs::open(&self.launch.log_dir.join(file.at(attempt)), true).ok();
            let follower = opened.and_then(|file| self.copies_to(2 + number, Console::file(file)));
            self.followers[2 + number] = follower.map(|follower| follower.only(texts));
        }
    }

    /// All ranks of the attempt have ended.
    pub fn attempt_over(&mut self) {
        for (number, slot) in self.followers.iter_mut().enumerate() {
            let Some(follower) = slot else { continue };
            follower.all_ended();
            if number >= 2 {
                // A file takes all at once.
                let _ = follower.finish(FILE_PATIENCE, Duration::MAX, &[], &mut || false);
                *slot = None;
            }
        }
    }
}
