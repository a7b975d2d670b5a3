//! The processes of a plan's ranks: starts each with its log and its lifeline, sweeps what it leaves behind and writes its
//! journal entries.

pub mod evidence;
mod hang_reports;
mod node_messages;
mod prepared_rank;
mod start;
pub mod start_error;

use self::prepared_rank::PreparedRank;
use crate::model::{Exit, ProcessLabel};
use crate::plan::OutputPlan;
use crate::probe::limits::rank_limits::RankLimits;
use crate::rendezvous::torch_store::StoreSockets;
use crate::report::cause::uncaught::{ProcessIdentity, RankNotes, UncaughtException};
use crate::report::cause::verdict::Verdict;
use crate::report::job_status::LaunchPhase;
use crate::report::lost_peer;
use crate::run::engine::{AttemptState, PendingExit, RankHost, RankStart, StartError};
use crate::run::launch::{Launch, LaunchListener};
use crate::run::multi_node::torch_store::ServedTorchStore;
use crate::run::output::console::LogFollower;
use crate::run::output::log_copier::RankOutput;
use crate::run::output::log_files;
use crate::run::output::log_rotation::LogRotation;
use crate::run::output::output_routing::OutputRouting;
use crate::run::output::rotated_log::RotatedLog;
use crate::run::output::uncaught_file::UncaughtFile;
use crate::run::preempt::stop_words::StopWords;
use crate::run::prepare::gloo_tmpdir;
use crate::run::prepare::preflight::store_limits;
use crate::run::rank_state::RankState;
use crate::run::record::journal::Journal;
use crate::run::record::journal_event::JournalEvent;
use crate::run::sweep;
use crate::run::sweep::Leftover;
use crate::run::sweep::after_rank::{SweepBudget, after_rank};
use crate::run::sweep::stop_watch::StopWatch;
use crate::run::sweep::{group_signal, paddle_memory, stop_recipients};
use crate::run::tokens::{SAMPLES, ZYGOTE};
use crate::run::zygote::ZygoteEvent;
use crate::supervise::{ChildId, FailedRank, Lifecycle, MainProcess, ProgressNote, SupervisorEvent};
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use crate::sys::process::cgroup::CgroupDir;
use crate::sys::process::child::Child;
use crate::sys::process::lifeline::Lifeline;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::spawn;
use crate::sys::process::tree;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// How much of a log's end is searched for the loss of a peer.
const LOST_PEER_BYTES: u64 = 4 * 1024;
/// How long the disks of logs are waited for once all ranks have ended.
const DISK_PATIENCE: Duration = Duration::from_secs(5);
/// A position after the end of any log.
const FAR: u64 = 1 << 62;

/// The ranks of a plan: what the engine acts on.
pub struct RankProcesses<'a> {
    launch: &'a Launch<'a>,
    /// The lifelines of the present processes, by local rank.
    lifelines: Vec<Option<Lifeline>>,
    base: Vec<(Vec<u8>, Vec<u8>)>,
    mask: libc::sigset_t,
    /// The folder of the cgroup that ranks start in.
    cgroup: Option<CgroupDir>,
    /// The rank whose start is pending.
    pending: Option<PreparedRank>,
    /// The present processes, by local rank.
    pub processes: Vec<RankState>,
    /// The processes that each rank left behind in all attempts, all of them killed; by local rank.
    pub swept: Vec<Vec<Leftover>>,
    /// Processes of no rank in particular that were killed between attempts.
    pub strays: Vec<Leftover>,
    /// The verdict on the last attempt in which a rank failed and whose ranks have all ended.
    pub verdict: Option<Verdict>,
    /// Where each rank's Python notes the exception that ends it; by local rank.
    uncaught_files: Vec<Option<UncaughtFile>>,
    swept_last: usize,
    sweep_budget: SweepBudget,
    signal_budget: SweepBudget,
    /// Whether a stop waits while the job is swept.
    pub stop_watch: StopWatch<'a>,
    /// What runs while ranks are killed.
    seen_at_kill: OnceCell<Snapshot>,
    /// When a rank ended last.
    last_end: Duration,
    /// The TCPStore of the ranks, if the launcher serves it.
    store: ServedTorchStore<'a>,
    /// Bytes of output that are neither on the console nor in a log, by rank.
    pub lost: BTreeMap<ProcessLabel, u64>,
    /// Log rotation, if there is any.
    rotation: Option<LogRotation>,
    /// Copies logs to the console and to filter files.
    routing: OutputRouting<'a>,
    /// The pipes and terminals of ranks in the present attempt, with the local rank.
    outputs: Vec<(usize, RankOutput)>,
    /// Whether it has been said that streams are not captured.
    said_not_captured: bool,
    poll: Arc<Poller>,
    /// Where ranks ask whether to stop; `None`: it could not be made.
    pub stop_words: Option<StopWords>,
    /// The journal of events.
    pub journal: Journal,
    listener: &'a dyn LaunchListener,
}

/// Without them a job is stopped by signals alone.
fn new_stop_words(ranks: usize) -> Option<StopWords> {
    StopWords::new(ranks).inspect_err(|error| warn!("rlaunch.should_stop has no effect: no memory: {error}")).ok()
}

impl<'a> RankProcesses<'a> {
    /// Starts no rank yet. `store`: listening sockets of the TCPStore.
    pub fn new(
        launch: &'a Launch<'a>,
        store: &'a StoreSockets,
        (poll, stop_watch): (Arc<Poller>, StopWatch<'a>),
        journal: Journal,
        listener: &'a dyn LaunchListener,
    ) -> io::Result<Self> {
        launch.samples.register(&poll, SAMPLES)?;
        Ok(Self {
            launch,
            lifelines: launch.plan.ranks.iter().map(|_| None).collect(),
            base: launch.base.iter().map(|(n, v)| (n.clone().into_vec(), v.clone().into_vec())).collect(),
            mask: spawn::empty_mask(),
            cgroup: launch.cgroup.as_ref().and_then(|cgroup| match launch.policy.first_attempt {
                0 => cgroup.create().ok(),
                // Processes of an earlier round were killed in it.
                _ => cgroup.renew(sweep::CGROUP_PATIENCE).ok(),
            }),
            pending: None,
            processes: vec![RankState::default(); launch.plan.ranks.len()],
            swept: vec![Vec::new(); launch.plan.ranks.len()],
            strays: Vec::new(),
            verdict: None,
            uncaught_files: launch.plan.ranks.iter().map(|_| None).collect(),
            swept_last: 0,
            store: ServedTorchStore::start(store, store_limits(launch.plan.ranks.len()))?,
            lost: BTreeMap::new(),
            sweep_budget: SweepBudget::default(),
            signal_budget: SweepBudget::default(),
            stop_watch,
            seen_at_kill: OnceCell::new(),
            last_end: Duration::ZERO,
            rotation: launch.rotation.map(LogRotation::new).transpose()?,
            routing: OutputRouting::new(launch, poll.clone())?,
            outputs: Vec::new(),
            said_not_captured: false,
            stop_words: new_stop_words(launch.plan.ranks.len()),
            poll,
            journal,
            listener,
        })
    }

    /// The log followers.
    pub fn followers(&mut self) -> impl Iterator<Item = &mut LogFollower> {
        self.routing.followers()
    }

    /// One log follower, by its number.
    pub fn follower(&mut self, number: usize) -> Option<&mut LogFollower> {
        self.routing.follower(number)
    }

    /// Handles that logs have grown.
    pub fn logs_have_grown(&mut self) -> io::Result<()> {
        if let Some(rotation) = &self.rotation {
            rotation.wake();
        }
        self.routing.grown()
    }

    /// Notes what the ranks use.
    pub fn note_samples(&mut self) {
        for ranks in self.launch.samples.take() {
            self.journal.write_later(JournalEvent::Sample { ranks: &ranks });
        }
    }

    /// From now on leaves out of the console the tracebacks that end in KeyboardInterrupt.
    pub fn leave_out_interrupts(&mut self) {
        self.routing.leave_out_interrupts();
    }

    /// Bytes of the logs that could not be followed.
    pub fn unshown(&self) -> u64 {
        self.routing.unshown()
    }

    /// Gives the ranks' terminals the size of the one that the user sees.
    pub fn resize_terminals(&self) {
        self.outputs.iter().for_each(|(_, output)| output.resize());
    }

    /// Removes shared memory that ranks which have ended have created. Only after the last rank: another may read it.
    pub fn remove_memory(&self) {
        paddle_memory::remove_of(&self.processes.iter().filter_map(|process| process.pid).collect());
        paddle_memory::warn_of_doubtful();
    }

    /// Closes the ranks' pipes and terminals after the last output has been copied to the logs.
    pub fn close_outputs(&mut self) {
        let deadline = clock::now().saturating_add(DISK_PATIENCE);
        for (local_rank, output) in std::mem::take(&mut self.outputs) {
            if let lost @ 1.. = output.close(deadline) {
                *self.lost.entry(self.launch.plan.ranks[local_rank].label()).or_default() += lost;
            }
        }
    }

    fn label(&self, id: ChildId) -> ProcessLabel {
        self.launch.plan.ranks[id.local_rank].label()
    }

    /// Ends log rotation, once nothing is written to the logs any more.
    pub fn finish_rotation(&mut self) {
        for log in self.rotation.as_mut().map(LogRotation::finish).unwrap_or_default() {
            let local_rank = log.local_rank;
            if log.lost > 0 {
                *self.lost.entry(self.launch.plan.ranks[local_rank].label()).or_default() += log.lost;
            }
            let process = &mut self.processes[local_rank];
            if self.launch.tail_file(local_rank, process.attempt).is_some_and(|tail| tail == log.path) {
                process.log_start = process.log_start.saturating_sub(log.removed);
                process.log_end_at_failure = process.log_end_at_failure.map(|end| end.saturating_sub(log.removed));
            }
        }
    }

    /// The rotation of the log with the end of a rank's output.
    fn rotated_tail(&self, tail: Option<&PathBuf>) -> Option<&RotatedLog> {
        self.rotation.as_ref()?.log(tail?)
    }

    /// Handles an event of the preload server, if there is one.
    pub fn check_zygote(&mut self, poll: &Poller) -> io::Result<()> {
        let Some(zygote) = &self.launch.zygote else { return Ok(()) };
        // Its failure is reported when a rank is to be started.
        if let Some(ZygoteEvent::Ready { pid, seconds }) = zygote.check(poll)? {
            self.journal.write_later(JournalEvent::ZygoteReady { pid, seconds, modules: zygote.modules() });
            if zygote.was_announced() {
                self.listener.preload_done(&zygote.names(), seconds);
            }
        }
        Ok(())
    }

    /// The ranks are to save: they wait for no console.
    pub fn wait_for_no_reader(&self) {
        self.outputs.iter().for_each(|(_, output)| output.wait_no_more());
    }

    /// Suspends and resumes the preload server while it imports. The supervisor suspends ranks only.
    pub fn suspend_or_resume_zygote(&self, event: &SupervisorEvent) {
        let Some(zygote) = self.launch.zygote.as_ref().filter(|zygote| zygote.is_importing()) else { return };
        match event {
            SupervisorEvent::Suspend => zygote.signal(libc::SIGSTOP),
            SupervisorEvent::Resume => zygote.signal(libc::SIGCONT),
            _ => {}
        }
    }

    fn read_uncaught(&self, local: usize) -> UncaughtException {
        self.read_notes(local).0
    }

    fn read_notes(&self, local: usize) -> (UncaughtException, RankNotes) {
        let RankState { pid: Some(pid), started, .. } = self.processes[local] else {
            return Default::default();
        };
        let rank = ProcessIdentity { pid, started };
        self.uncaught_files[local].as_ref().map(|file| file.read(rank)).unwrap_or_default()
    }
}

impl RankHost for RankProcesses<'_> {
    fn start(&mut self, id: ChildId) -> Result<RankStart, StartError> {
        let begun = self.begin_start(id);
        self.report_start(id, begun)
    }

    fn continue_start(&mut self, id: ChildId, attempt: AttemptState) -> Result<RankStart, StartError> {
        match self.continue_fork(id, attempt) {
            // The stop has cancelled the start: no failure to report.
            Err(error) if attempt != AttemptState::Running => Err(error.into()),
            continued => self.report_start(id, continued),
        }
    }

    fn start_due(&self) -> Option<Duration> {
        self.launch.zygote.as_ref()?.reply_due()
    }

    fn group_lingers(&self, pid: i32) -> bool {
        tree::has_living_child_in(pid)
    }

    fn group_heeds(&self, pid: i32, signal: i32) -> bool {
        stop_recipients::any_heeds(pid, signal)
    }

    fn delays_restart(&self) -> Option<Duration> {
        if self.launch.zygote.as_ref().is_some_and(|zygote| zygote.is_importing()) {
            return Some(Duration::MAX);
        }
        sweep::shm_manager_works_until(self.last_end)
    }

    fn before_reap(&mut self, end: &PendingExit<'_>) {
        self.processes[end.id.local_rank].limits = RankLimits::of(end.pid);
        let key = sweep::rank_key(&self.launch.job_key, end.id.attempt, end.id.local_rank);
        let key = (key.as_str(), self.launch.key_places());
        let found = after_rank(end, key, &self.launch.no_sweep, &mut self.sweep_budget);
        self.swept_last = found.len();
        self.swept[end.id.local_rank].extend(found);
    }

    fn reaped(&mut self, id: ChildId, child: &Child, exit: Exit, signalled: bool) {
        // What follows reads the end of its log.
        self.outputs.iter().filter(|(local, _)| *local == id.local_rank).for_each(|(_, output)| output.drain());
        let (uncaught, notes) = self.read_notes(id.local_rank);
        if !signalled {
            self.processes[id.local_rank].uncaught = uncaught;
        }
        self.processes[id.local_rank].notes = notes;
        let process = &mut self.processes[id.local_rank];
        (process.exit, process.signalled, process.ended_at) = (Some(exit), signalled, Some(clock::now()));
        process.usage = child.usage();
        self.last_end = clock::now();
        self.launch.status.rank_ended(id.local_rank, exit);
        let (pid, swept, usage) = (child.pid(), self.swept_last, process.usage.unwrap_or_default());
        let (ProcessLabel { role, number: rank }, attempt) = (self.label(id), id.attempt);
        self.journal.write_later(JournalEvent::RankEnded {
            role,
            rank,
            local_rank: id.local_rank,
            attempt,
            pid,
            exit,
            swept,
            peak_memory_bytes: usage.peak_memory,
            cpu_seconds: usage.cpu_seconds,
        });
    }

    fn has_lost_peer(&mut self, id: ChildId) -> bool {
        let start = self.processes[id.local_rank].log_start;
        // Only the end: the rank may have lost a connection earlier and recovered.
        let last = self.launch.tail_file(id.local_rank, id.attempt);
        let start = self.rotated_tail(last.as_ref()).map_or(start, |log| log.offset(start));
        last.is_some_and(|log| lost_peer(&log_files::tail(&log, start, LOST_PEER_BYTES)).is_some())
    }

    fn ask_to_stop(&mut self, child: &Child, signal: i32) -> Option<MainProcess> {
        if let Some(words) = &self.stop_words
            && signal == libc::SIGTERM
        {
            // Before the rank receives it: `rlaunch.should_stop` ignores those of Slurm.
            words.set_end(clock::now());
        }
        let main = stop_recipients::main_process(child.pid(), signal).filter(|_| child.leads_group());
        self.wait_for_no_reader();
        // It fails if the rank has changed its user.
        let _ = if main.is_some() { child.signal_leader(signal) } else { self.signal(child, signal) };
        main
    }

    fn signal(&mut self, child: &Child, signal: i32) -> io::Result<()> {
        group_signal::send(child, signal, &mut self.signal_budget, &self.seen_at_kill)
    }

    fn signal_rest(&mut self, child: &Child, signal: i32) -> io::Result<()> {
        group_signal::send_to_rest(child, signal, &mut self.signal_budget, &self.seen_at_kill)
    }

    fn before_kill(&mut self, pids: &[i32]) {
        self.seen_at_kill = OnceCell::new();
        self.signal_budget.see_memory(pids);
        sweep::await_torch_memory(pids);
    }

    fn before_stop(&mut self) {
        self.outputs.iter().for_each(|(_, output)| output.drain());
        for local in 0..self.processes.len() {
            let log = self.launch.tail_file(local, self.processes[local].attempt);
            let rotated = self.rotated_tail(log.as_ref());
            let removed = rotated.map_or(0, |log| FAR - log.offset(FAR));
            let end = log.and_then(|log| Some(std::fs::metadata(log).ok()?.len() + removed));
            self.processes[local].log_end_at_failure = end;
            // The program of a rank that lives may yet raise the exception that it has printed.
            if self.processes[local].exit.is_none()
                && let raised @ UncaughtException::Raised(_) = self.read_uncaught(local)
            {
                self.processes[local].uncaught = raised;
            }
        }
    }

    fn judge(&mut self, ended_first: (usize, Exit)) -> FailedRank {
        RankProcesses::judge(self, ended_first)
    }

    fn sweep_job(&mut self) {
        let ((kept, readers), cgroup) = (self.launch.kept_in_sweep(), self.launch.cgroup.as_ref());
        let mut is_urgent = || self.stop_watch.is_stop_waiting();
        let swept = sweep::all(&kept, &self.launch.no_sweep, cgroup, self.last_end, &mut is_urgent);
        drop(readers);
        self.strays.extend(swept.map_or_else(
            |error| {
                warn!("{error}; the next attempt may meet processes of this one");
                error.killed
            },
            |swept| swept.killed,
        ));
        self.remove_memory();
        self.cgroup = self.launch.cgroup.as_ref().and_then(|cgroup| cgroup.renew(sweep::CGROUP_PATIENCE).ok());
        let attempt = self.processes.iter().map(|p| p.attempt).max().unwrap_or(0);
        self.close_outputs();
        self.routing.end_attempt();
        self.finish_rotation();
        let backups = self.launch.rotation.map_or(0, |rotation| rotation.backups);
        let ranks = &self.launch.plan.ranks;
        let is_first = |local: usize| Lifecycle::of(ranks[local].role) == Lifecycle::First;
        let has_run = |local: usize| self.processes[local].pid.is_some() && self.processes[local].attempt == attempt;
        // A rank that ran to its end before the others started is not run again: its log stays.
        let began = (0..ranks.len()).any(|local| !is_first(local) && has_run(local));
        for local in (0..ranks.len()).filter(|&local| has_run(local) && !(began && is_first(local))) {
            if let OutputPlan::Combined(log) = &ranks[local].output {
                // If it cannot be moved, the next attempt appends to it.
                let _ = log_files::archive(&self.launch.log_dir, log, attempt, backups);
            }
        }
        // The next attempt must not read keys of this one.
        self.store.renew();
        if let Some(folder) = &self.launch.gloo_tmpdir {
            gloo_tmpdir::empty(folder);
        }
    }

    fn report_progress(&mut self, note: ProgressNote) {
        if let (ProgressNote::Restarting { .. } | ProgressNote::RestartRequested { .. }, Some(zygote)) =
            (&note, &self.launch.zygote)
        {
            // On an error the next start fails, and that is reported.
            let _ = zygote.restart_if_lost(&self.launch.preload_context(), &self.poll, ZYGOTE);
        }
        let failure = match &note {
            ProgressNote::Restarting { .. } => self.verdict.clone(),
            _ => None,
        };
        match &note {
            ProgressNote::Restarting { .. } => self.launch.status.set_phase(LaunchPhase::Restarting),
            ProgressNote::RestartRequested { .. } => {
                self.launch.status.count_restart();
                self.launch.status.set_phase(LaunchPhase::Restarting);
            }
            ProgressNote::Aborting { ranks, reason } => self.note_aborted(ranks, reason),
            // A signal may still have to end the job instead.
            ProgressNote::Killing { .. } if self.launch.status.get().phase == LaunchPhase::Restarting => {}
            ProgressNote::Finishing { .. }
            | ProgressNote::Stopping { .. }
            | ProgressNote::Forced { .. }
            | ProgressNote::Killing { .. }
            | ProgressNote::Unkillable { .. } => self.launch.status.set_phase(LaunchPhase::Stopping),
            ProgressNote::AwaitingServers { .. }
            | ProgressNote::AbortIgnored { .. }
            | ProgressNote::NotRestarting { .. } => {}
        }
        let message = failure.as_ref().map(Verdict::message).unwrap_or_default();
        self.journal.write_note(&note, &message, |local| self.launch.plan.ranks[local].label());
        self.listener.progressed(&note, failure.as_ref());
    }
}
