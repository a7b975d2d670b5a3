//! Routes ranks' output while they write it: to the console's two streams, and to files for lines with certain texts.

use crate::plan::{LineFilter, ShownStream, Stream};
use crate::run::launch::Launch;
use crate::run::output::console::{LogFollower, Unshown};
use crate::run::output::log_files;
use crate::run::output::pending_text::LogForm;
use crate::run::output::rank_streams::OpenStream;
use crate::run::tokens::{FOLLOWERS, GROWTH};
use crate::supervise::ChildId;
use crate::sys::io::console::Console;
use crate::sys::io::inotify::{GrownFiles, GrowthWatch};
use crate::sys::io::poll::Poller;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// How long a file system that does not respond is waited for.
const FILE_PATIENCE: Duration = Duration::from_secs(5);

/// The log followers of a launch.
pub struct OutputRouting<'a> {
    launch: &'a Launch<'a>,
    poll: Arc<Poller>,
    /// One for each of the console's streams, then one for each filter.
    followers: Vec<Option<LogFollower>>,
    /// The attempt of the filters' files.
    attempt: Option<u32>,
    /// Numbers of followers whose output cannot be opened.
    failed: BTreeSet<usize>,
    /// Logs that should be followed and are not, and the offset of this job's output.
    unfollowed: BTreeMap<PathBuf, u64>,
}

impl<'a> OutputRouting<'a> {
    /// Opens the console.
    pub fn new(launch: &'a Launch<'a>, poll: Arc<Poller>) -> io::Result<Self> {
        if let Some(watch) = GrowthWatch::of_process() {
            poll.readable(watch, GROWTH)?;
        }
        let followers = (0..2 + launch.filters.len()).map(|_| None).collect();
        let mut routing =
            Self { launch, poll, followers, attempt: None, failed: BTreeSet::new(), unfollowed: BTreeMap::new() };
        for stream in Stream::BOTH {
            if launch.shown.keys().any(|(_, shown)| *shown == stream)
                && let Some(console) = open_console(stream)
            {
                routing.set_follower(stream.index(), console, stream.name().to_owned());
            }
        }
        Ok(routing)
    }

    /// `console`: `None` if it cannot be opened; `name`: its name.
    fn set_follower(&mut self, number: usize, console: Option<Console>, name: String) {
        let token = FOLLOWERS + number as u64;
        self.followers[number] = console.map(|console| LogFollower::new((console, name), self.launch.colour, token));
        if self.followers[number].is_none() {
            self.failed.insert(number);
        }
    }

    /// All followers.
    pub fn followers(&mut self) -> impl Iterator<Item = &mut LogFollower> {
        self.followers.iter_mut().flatten()
    }

    /// One follower, by its number.
    pub fn follower(&mut self, number: usize) -> Option<&mut LogFollower> {
        self.followers.get_mut(number)?.as_mut()
    }

    /// Handles that files have grown.
    pub fn grown(&mut self) -> io::Result<()> {
        let grown = GrowthWatch::of_process().and_then(|watch| watch.drain().ok()).unwrap_or(GrownFiles::Any);
        self.followers.iter_mut().flatten().try_for_each(|follower| follower.grown(&grown, &self.poll))
    }

    /// Bytes that could not be followed (no descriptors, no memory). The logs have them.
    pub fn unshown(&self) -> u64 {
        let unread = |(path, start): (&PathBuf, &u64)| path.metadata().map_or(0, |m| m.len().saturating_sub(*start));
        self.unfollowed.iter().map(unread).sum()
    }

    /// The console that shows a stream of a rank, if it is a terminal and the rank gets one too.
    pub fn terminal(&self, id: ChildId, stream: Stream) -> Option<&Arc<Console>> {
        self.launch.shown.get(&(id.local_rank, stream)).filter(|shown| shown.pty)?;
        self.followers[stream.index()].as_ref().map(LogFollower::console).filter(|console| console.is_terminal())
    }

    /// Follows a file that a rank writes to, if it is shown.
    pub fn follow(&mut self, id: ChildId, log: &OpenStream) {
        self.open_filters(id.attempt);
        let Some(ShownStream { prefix, .. }) = self.launch.shown.get(&(id.local_rank, log.stream)) else { return };
        let form = match prefix {
            _ if log.at_terminal => LogForm::Terminal,
            None => LogForm::Bytes,
            Some(prefix) => LogForm::Lines(prefix.clone()),
        };
        self.follow_with(log.stream.index(), log, form);
        if log.rotates {
            return;
        }
        for (number, _) in self.launch.filters.iter().enumerate().filter(|(_, filter)| filter.stream == log.stream) {
            self.follow_with(2 + number, log, LogForm::Lines(prefix.clone().unwrap_or_default()));
        }
    }

    fn follow_with(&mut self, number: usize, log: &OpenStream, form: LogForm) {
        let followed = match &mut self.followers[number] {
            Some(follower) => follower.follow(&log.path, log.start, log.rotated.clone(), form).is_ok(),
            // A closed console is no failure.
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
        for (number, LineFilter { texts, file, .. }) in self.launch.filters.iter().enumerate() {
            let path = self.launch.log_dir.join(file.at(attempt));
            let opened = log_files::open(&path, true).ok();
            self.set_follower(2 + number, opened.map(Console::file), path.display().to_string());
            let follower = self.followers[2 + number].take();
            self.followers[2 + number] = follower.map(|follower| follower.only(texts));
        }
    }

    /// From now on leaves out of the console the tracebacks that end in KeyboardInterrupt.
    pub fn leave_out_interrupts(&mut self) {
        self.followers.iter_mut().take(2).flatten().for_each(LogFollower::leave_out_interrupts);
    }

    /// Handles the end of an attempt: copies the rest of its lines to the filter files and closes them.
    pub fn end_attempt(&mut self) {
        for (number, slot) in self.followers.iter_mut().enumerate() {
            let Some(follower) = slot else { continue };
            follower.all_ended();
            if number >= 2 {
                // A file accepts everything at once, unless its disk is full.
                if let Ok(Unshown { logged: bytes @ 1.., .. }) =
                    follower.finish(FILE_PATIENCE, Duration::MAX, &[], &mut || false)
                {
                    warn!("{}: lines of {bytes} bytes of output are missing in it", follower.name());
                }
                *slot = None;
            }
        }
    }
}

/// The console behind a stream. `None`: it is closed; `Some(None)`: it cannot be opened.
fn open_console(stream: Stream) -> Option<Option<Console>> {
    let opened = match stream {
        Stream::Stdout => Console::open(io::stdout()),
        Stream::Stderr => Console::open(io::stderr()),
    };
    match opened {
        Ok(console) => Some(Some(console)),
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => None,
        Err(_) => Some(None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::framework::paddle_launch::PodInfo;
    use crate::plan::Plan;
    use crate::rendezvous::torch_store::StoreSockets;
    use crate::run::output::log_rotation::LogRotation;
    use crate::spec::records::log_rotation::LogRotationSpec;
    use crate::supervise::SupervisionPolicy;

    fn no_ranks() -> Plan {
        let pod = PodInfo { name: String::new(), log_dir: String::new(), auto_cluster: false };
        Plan {
            ranks: Vec::new(),
            nnodes: 1,
            world_size: 1,
            pod,
            job_id: String::new(),
            mode: "",
            awaits_servers: false,
        }
    }

    fn launch(plan: &Plan, folder: PathBuf) -> Launch<'_> {
        Launch {
            plan,
            program: PathBuf::new(),
            base: Vec::new(),
            log_dir: folder,
            torch_store: StoreSockets::default().into(),
            log_overwrite: false,
            rotation: None,
            shown: [((0, Stream::Stdout), ShownStream { prefix: None, pty: false })].into(),
            filters: Vec::new(),
            colour: false,
            console_drain_timeout: Duration::ZERO,
            hang: Default::default(),
            sampling: Default::default(),
            preempt: Default::default(),
            preempt_link: Default::default(),
            status: Default::default(),
            samples: Default::default(),
            stack_reader: Default::default(),
            gpu_reader: Default::default(),
            policy: SupervisionPolicy::with_grace(Duration::ZERO),
            forwarded_signals: BTreeSet::new(),
            nofile: None,
            job_key: String::new(),
            cgroup: None,
            no_sweep: crate::run::sweep::no_sweep::NoSweep::default(),
            zygote: None,
            round: None,
            gloo_tmpdir: None,
            removed_on_success: None,
        }
    }

    #[test]
    fn logs_that_cannot_be_followed_count_as_unshown() {
        let (plan, folder) = (no_ranks(), std::env::temp_dir().join(format!("rlaunch-routing-{}", std::process::id())));
        std::fs::create_dir(&folder).unwrap();
        let launch = launch(&plan, folder.clone());
        let mut routing = OutputRouting::new(&launch, Arc::new(Poller::new().unwrap())).unwrap();
        let path = folder.join("log");
        let id = ChildId { attempt: 0, local_rank: 0 };
        let written = |stream, start| OpenStream { start, ..OpenStream::new(stream, path.clone()) };
        routing.follow(id, &written(Stream::Stdout, 2));
        assert_eq!(routing.unshown(), 0);
        std::fs::write(&path, "1 lines").unwrap();
        assert_eq!(routing.unshown(), 5);
        routing.follow(id, &written(Stream::Stderr, 0));
        assert_eq!(routing.unshown(), 5, "stderr is not shown");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// How many inotify instances this process has, and how many files they watch.
    fn inotify_instances() -> (usize, usize) {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let is_inotify = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|of| of.ends_with("anon_inode:inotify"));
        let instances: Vec<PathBuf> = open.map(|entry| entry.path()).filter(is_inotify).collect();
        let info = |path: &PathBuf| path.to_string_lossy().replace("/fd/", "/fdinfo/");
        let watches = |path| std::fs::read_to_string(info(path)).unwrap_or_default().matches("inotify wd:").count();
        (instances.len(), instances.iter().map(watches).sum())
    }

    #[test]
    fn a_thousand_attempts_share_one_inotify_instance() {
        let (plan, folder) =
            (no_ranks(), std::env::temp_dir().join(format!("rlaunch-attempts-{}", std::process::id())));
        std::fs::create_dir(&folder).unwrap();
        let launch = launch(&plan, folder.clone());
        let path = folder.join("log");
        let spec = LogRotationSpec { max_size: 1 << 20, backups: 1, until_shown: None };
        for round in 0..10 {
            let poll = Arc::new(Poller::new().unwrap());
            let mut routing = OutputRouting::new(&launch, poll.clone()).unwrap();
            let mut rotation = LogRotation::new(spec).unwrap();
            for attempt in 100 * round..100 * (round + 1) {
                std::fs::write(&path, "").unwrap();
                let rotated = Some(rotation.add(0, &path, false).unwrap());
                let log = OpenStream { rotates: true, rotated, ..OpenStream::new(Stream::Stdout, path.clone()) };
                routing.follow(ChildId { attempt, local_rank: 0 }, &log);
                routing.end_attempt();
                routing.followers().for_each(|follower| follower.copy(&poll).unwrap());
                rotation.finish();
                std::fs::remove_file(&path).unwrap();
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
        let (instances, watches) = inotify_instances();
        assert_eq!(instances, 1);
        assert!(watches < 100, "{watches} files are still watched");
    }
}
