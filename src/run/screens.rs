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
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
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
    /// Those that there should be, by their numbers.
    failed: BTreeSet<usize>,
    /// What is not followed though it should be, and where it begins.
    unfollowed: BTreeMap<PathBuf, u64>,
}

impl<'a> Screens<'a> {
    /// `tokens`: the first of those in `poll` that are for them, two for each.
    pub fn new(launch: &'a Launch<'a>, poll: Arc<Poll>, tokens: u64) -> Self {
        let followers = (0..2 + launch.filters.len()).map(|_| None).collect();
        let mut screens = Self {
            launch,
            poll,
            tokens,
            followers,
            attempt: None,
            failed: BTreeSet::new(),
            unfollowed: BTreeMap::new(),
        };
        for stream in Stream::BOTH {
            if launch.shown.keys().any(|(_, shown)| *shown == stream)
                && let Some(console) = opened(stream)
            {
                screens.set(stream.index(), console);
            }
        }
        screens
    }

    /// `console`: `None` if it cannot be opened.
    fn set(&mut self, number: usize, console: Option<Console>) {
        let token = self.tokens + 2 * number as u64;
        let follow = |console| Follower::new(console, self.launch.colour, &self.poll, (token, token + 1)).ok();
        self.followers[number] = console.and_then(follow);
        if self.followers[number].is_none() {
            self.failed.insert(number);
        }
    }

    /// Those that there are.
    pub fn followers(&mut self) -> impl Iterator<Item = &mut Follower> {
        self.followers.iter_mut().flatten()
    }

    /// One of them, by its number.
    pub fn follower(&mut self, number: usize) -> Option<&mut Follower> {
        self.followers.get_mut(number)?.as_mut()
    }

    /// Bytes that nobody could follow (no descriptors, no memory): the logs have them.
    pub fn unshown(&self) -> u64 {
        let left = |(path, start): (&PathBuf, &u64)| path.metadata().map_or(0, |m| m.len().saturating_sub(*start));
        self.unfollowed.iter().map(left).sum()
    }

    /// Follows a file that a rank writes to, if it is shown.
    pub fn follow(&mut self, id: ChildId, log: &Written, short: Option<&Arc<Log>>) {
        self.open_filters(id.attempt);
        let Some(prefix) = self.launch.shown.get(&(id.local_rank, log.stream)) else { return };
        let short = short.filter(|_| log.rotates);
        self.follow_with(log.stream.index(), log, short, prefix.clone());
        if log.rotates {
            return;
        }
        for (number, _) in self.launch.filters.iter().enumerate().filter(|(_, filter)| filter.stream == log.stream) {
            self.follow_with(2 + number, log, None, Some(prefix.clone().unwrap_or_default()));
        }
    }

    fn follow_with(&mut self, number: usize, log: &Written, short: Option<&Arc<Log>>, prefix: Option<String>) {
        let followed = match &mut self.followers[number] {
            Some(follower) => follower.follow(&log.path, log.start, short.cloned(), prefix).is_ok(),
            // A console that is closed is no failure.
            None => !self.failed.contains(&number),
        };
        if !followed {
            self.unfollowed.insert(log.path.clone(), log.start);
        }
    }

    fn open_filters(&mut self, attempt: u32) {
        if self.attempt == Some(attempt) || self.launch.filters.is_empty() {
            return;
        }
        self.attempt = Some(attempt);
        for (number, Filter { texts, file, .. }) in self.launch.filters.iter().enumerate() {
            let opened = logs::open(&self.launch.log_dir.join(file.at(attempt)), true).ok();
            self.set(2 + number, opened.map(Console::file));
            let follower = self.followers[2 + number].take();
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

/// A stream's console, `None` inside if it cannot be opened; nothing if it is closed.
fn opened(stream: Stream) -> Option<Option<Console>> {
    match Console::open(stream.descriptor()) {
        Ok(console) => Some(Some(console)),
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => None,
        Err(_) => Some(None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::dialect::paddle_launch::Pod;
    use crate::plan::Plan;
    use crate::supervise::Policy;

    #[test]
    fn what_cannot_be_followed_has_not_been_shown() {
        let pod = Pod { name: String::new(), log_dir: String::new(), auto_cluster: false };
        let plan = Plan {
            ranks: Vec::new(),
            nnodes: 1,
            world_size: 1,
            pod,
            job_id: String::new(),
            mode: "",
            servers_end: false,
        };
        let folder = std::env::temp_dir().join(format!("rlaunch-screens-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let launch = Launch {
            plan: &plan,
            program: PathBuf::new(),
            base: Vec::new(),
            log_dir: folder.clone(),
            store: Vec::new().into(),
            log_overwrite: false,
            rotation: None,
            shown: [((0, Stream::Stdout), None)].into(),
            filters: Vec::new(),
            colour: false,
            policy: Policy::with_grace(Duration::ZERO),
            notify: BTreeSet::new(),
            nofile: None,
            key: String::new(),
            cgroup: None,
            zygote: None,
            temporary: None,
            disposable: None,
        };
        let mut screens = Screens::new(&launch, Arc::new(Poll::new().unwrap()), 0);
        let path = folder.join("log");
        let id = ChildId { attempt: 0, local_rank: 0 };
        screens.follow(id, &Written { stream: Stream::Stdout, path: path.clone(), start: 2, rotates: true }, None);
        assert_eq!(screens.unshown(), 0);
        std::fs::write(&path, "1 lines").unwrap();
        assert_eq!(screens.unshown(), 5);
        screens.follow(id, &Written { stream: Stream::Stderr, path, start: 0, rotates: true }, None);
        assert_eq!(screens.unshown(), 5, "nobody is to be shown that one");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
