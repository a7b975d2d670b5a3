//! What a launch needs beside the plan, and the interface through which a front end hears of its progress.

use crate::plan::{LineFilter, OutputPlan, Plan, ShownStream, Stream};
use crate::rendezvous::torch_store::StoreSockets;
use crate::report::cause::verdict::Verdict;
use crate::run::control::live_status::LiveStatus;
use crate::run::gpu_reader::GpuReader;
use crate::run::multi_node::membership::RoundStop;
use crate::run::preempt::link::PreemptLink;
use crate::run::sampling::queue::SampleQueue;
use crate::run::stacks::collector::StackReader;
use crate::run::sweep;
use crate::run::sweep::no_sweep::NoSweep;
use crate::run::zygote::{PreloadContext, Zygote};
use crate::spec::hang::HangSpec;
use crate::spec::no_sweep;
use crate::spec::records::log_rotation::LogRotationSpec;
use crate::spec::records::sampling::SamplingSpec;
use crate::spec::scheduler::preempt::PreemptSpec;
use crate::supervise::{ChildId, ProgressNote, SupervisionPolicy};
use crate::sys::process::cgroup::JobCgroup;
use crate::sys::process::tree::KeyPlaces;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::MutexGuard;
use std::time::Duration;

/// How long a sweep waits for the start of a reader of stacks.
const START_PATIENCE: Duration = Duration::from_millis(500);

/// Variables of the launcher that no process of it inherits: secrets, the one that spares the process that has it, and a file that a
/// launcher in a rank would overwrite.
pub const OWN_VARS: [&str; 8] = [
    "RLAUNCH_JOB_SECRET",
    "RLAUNCH_JOB_KEY",
    "RLAUNCH_ETCD_USER",
    "RLAUNCH_METRICS_FILE",
    no_sweep::VARIABLE,
    ROUND,
    LEASE,
    STOP_SLOT,
];

/// The variable with the number of a rank's round.
pub const ROUND: &str = "RLAUNCH_ROUND";
/// The variable with the path of the lease that a rank runs under.
pub const LEASE: &str = "RLAUNCH_ROUND_LEASE";
/// The variable with the path and the number of a rank's place in the memory of `rlaunch.should_stop`.
pub const STOP_SLOT: &str = "RLAUNCH_STOP_SLOT";

/// The streams of local ranks that the console shows.
pub type ShownRanks = BTreeMap<(usize, Stream), ShownStream>;

/// What the ranks are started with, beside the plan.
pub struct Launch<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The program behind `argv[0]` of every rank.
    pub program: PathBuf,
    /// The environment of this process.
    pub base: Vec<(OsString, OsString)>,
    /// Folder of the logs.
    pub log_dir: PathBuf,
    /// Listening sockets of the torch TCPStore that the launcher serves, anew in every attempt. The process that serves
    /// takes them, the other one closes them: the next job may want the port.
    pub torch_store: RefCell<StoreSockets>,
    /// Whether existing logs are emptied first.
    pub log_overwrite: bool,
    /// How logs are rotated, if they are.
    pub rotation: Option<LogRotationSpec>,
    /// What the console shows; each stream goes to the same stream of the launcher.
    pub shown: ShownRanks,
    /// Files that receive the lines with certain texts.
    pub filters: Vec<LineFilter>,
    /// Whether a terminal is shown colours (NO_COLOR).
    pub colour: bool,
    /// How long the console may take to show the rest once all ranks have ended.
    pub console_drain_timeout: Duration,
    /// When a silent job is looked at, and what follows if it hangs.
    pub hang: HangSpec,
    /// What is recorded of the ranks while they run.
    pub sampling: SamplingSpec,
    /// Notices of preemption, and what follows.
    pub preempt: PreemptSpec,
    /// What reaches the event loop about them.
    pub preempt_link: PreemptLink,
    /// The state of the launch, for the control socket.
    pub status: LiveStatus,
    /// Samples for the journal.
    pub samples: SampleQueue,
    /// Starts the processes that read the ranks' stacks.
    pub stack_reader: StackReader,
    /// Asks the driver about the GPUs.
    pub gpu_reader: GpuReader,
    /// How the job is stopped, and when the ranks are restarted.
    pub policy: SupervisionPolicy,
    /// Signals that are forwarded to the ranks and never stop the job.
    pub forwarded_signals: BTreeSet<i32>,
    /// The soft limit of open files that ranks get back, if the launcher raised its own.
    pub nofile: Option<u64>,
    /// The key that marks the job's processes.
    pub job_key: String,
    /// The cgroup that ranks start in. The supervisor process creates it, so that the launcher process can still kill
    /// its members when the supervisor is gone.
    pub cgroup: Option<JobCgroup>,
    /// Processes of ranks that no sweep ends.
    pub no_sweep: NoSweep,
    /// The round of the job, where its nodes rendezvous; `None`: every attempt is one.
    pub round: Option<LaunchRound>,
    /// The preload server that ranks are forked from. The supervisor process owns it, through all rounds.
    pub zygote: Option<Rc<Zygote>>,
    /// The folder of PADDLE_GLOO_FS_PATH, which exists while the job runs.
    pub gloo_tmpdir: Option<PathBuf>,
    /// A folder that is removed after a job that exited successfully.
    pub removed_on_success: Option<PathBuf>,
}

/// A round of a job whose nodes rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchRound {
    /// Its number.
    pub number: u64,
    /// The path by which ranks open the lease that they run under, if they do.
    pub lease: Option<String>,
}

impl Launch<'_> {
    /// The policy with the grace period that a stop has by now: `rlaunch stop` may have shortened it.
    pub fn policy_of_stop(&self) -> SupervisionPolicy {
        SupervisionPolicy { grace: self.status.grace(self.policy.grace), ..self.policy.clone() }
    }

    /// The variables of a rank that say which round it belongs to.
    pub fn round_env(&self, attempt: u32) -> impl Iterator<Item = (&'static str, String)> {
        let number = self.round.as_ref().map_or(u64::from(attempt) + 1, |round| round.number);
        let lease = self.round.as_ref().and_then(|round| round.lease.clone());
        [(ROUND, number.to_string())].into_iter().chain(lease.map(|path| (LEASE, path)))
    }

    /// The same launch with the plan of one round. `round`: the round of the job; `attempt`: the number of rounds that this
    /// node has run before.
    pub fn for_round<'b>(
        &self,
        plan: &'b Plan,
        shown: ShownRanks,
        store: StoreSockets,
        (round, attempt): (Option<LaunchRound>, u32),
    ) -> Launch<'b> {
        Launch {
            plan,
            program: self.program.clone(),
            base: self.base.clone(),
            log_dir: self.log_dir.clone(),
            torch_store: store.into(),
            log_overwrite: self.log_overwrite,
            rotation: self.rotation,
            shown,
            filters: self.filters.clone(),
            colour: self.colour,
            console_drain_timeout: self.console_drain_timeout,
            hang: self.hang,
            sampling: self.sampling.clone(),
            preempt: self.preempt.clone(),
            preempt_link: self.preempt_link.clone(),
            status: self.status.clone(),
            samples: self.samples.clone(),
            stack_reader: self.stack_reader.clone(),
            gpu_reader: self.gpu_reader.clone(),
            policy: SupervisionPolicy { first_attempt: attempt, in_rounds: round.is_some(), ..self.policy.clone() },
            forwarded_signals: self.forwarded_signals.clone(),
            nofile: self.nofile,
            job_key: self.job_key.clone(),
            cgroup: self.cgroup.clone(),
            no_sweep: self.no_sweep.clone(),
            round,
            zygote: self.zygote.clone(),
            gloo_tmpdir: self.gloo_tmpdir.clone(),
            removed_on_success: self.removed_on_success.clone(),
        }
    }

    /// Children of the supervisor process that no sweep may end. No reader of stacks is started until the second part is dropped.
    pub fn kept_in_sweep(&self) -> (BTreeSet<i32>, Option<MutexGuard<'_, BTreeSet<i32>>>) {
        let readers = self.stack_reader.pause(START_PATIENCE);
        let zygote = self.zygote.iter().filter_map(|zygote| zygote.pid());
        (zygote.chain(readers.iter().flat_map(|readers| readers.iter().copied())).collect(), readers)
    }

    /// Reaps children of the supervisor process that have ended and that nothing else waits for: orphans of ranks. None while a reader
    /// of stacks is being started: it is reaped with the next ones.
    pub fn reap_orphans(&self, is_known: impl Fn(i32) -> bool) {
        if let Some(readers) = self.stack_reader.pause(Duration::ZERO) {
            let is_zygote = |pid| self.zygote.iter().any(|zygote| zygote.pid() == Some(pid));
            sweep::reap_orphans(|pid| is_known(pid) || is_zygote(pid) || readers.contains(&pid));
        }
    }

    /// Where the keys of the ranks are: those that the preload server forks have theirs in their memory.
    pub fn key_places(&self) -> KeyPlaces {
        if self.zygote.is_some() { KeyPlaces::EnvironmentAndMemory } else { KeyPlaces::Environment }
    }

    /// The file with the end of a rank's output in an attempt: its log or what captures its stderr.
    pub fn tail_file(&self, local_rank: usize, attempt: u32) -> Option<PathBuf> {
        Some(self.log_dir.join(self.plan.ranks[local_rank].output.last_log(attempt)?))
    }

    /// Where output is that the console has not shown: the only log that it shows, or the folder.
    pub fn unshown_place(&self) -> String {
        let mut shown = self.shown.keys().map(|(local_rank, _)| *local_rank);
        let first = shown.next().filter(|first| shown.all(|other| other == *first));
        match first.map(|local_rank| &self.plan.ranks[local_rank].output) {
            Some(OutputPlan::Combined(log)) => self.log_dir.join(log).display().to_string(),
            _ => format!("the logs in {}", self.log_dir.display()),
        }
    }

    /// What the preload server is started with.
    pub fn preload_context(&self) -> PreloadContext<'_> {
        PreloadContext { program: &self.program, base: &self.base, ranks: &self.plan.ranks, nofile: self.nofile }
    }
}

/// Receives the progress of a launch.
pub trait LaunchListener {
    /// A rank runs.
    fn started(&self, id: ChildId, pid: i32);
    /// The supervisor stops the job, or restarts it after this failure.
    fn progressed(&self, note: &ProgressNote, failure: Option<&Verdict>);
    /// `rlaunch stop` has asked for the job's end.
    fn user_stops(&self) {}
    /// A stop signal came that is another than the first one, and changes nothing.
    fn other_stop_signal(&self, _signal: i32, _first: i32) {}
    /// These local ranks have not ended soon after this failure; they have this time left, if there is a limit.
    fn stop_is_slow(&self, _failure: &Verdict, _living: &[usize], _left: Option<Duration>) {}
    /// The preload server takes long to import these modules.
    fn preload_is_slow(&self, _modules: &str) {}
    /// It has imported them, after so many seconds. Called only after `preload_is_slow`.
    fn preload_done(&self, _modules: &str, _seconds: f64) {}
    /// Every rank imports for itself, for this reason.
    fn preload_abandoned(&self, _why: &str) {}
    /// A rank has failed and does not exit; it is aborted.
    fn stuck_exit(&self, _report: &str) {}
    /// The job hangs; the text says where each rank is.
    fn hang_found(&self, _report: &str) {}
    /// The round ended before the ranks did; they are stopped now.
    fn round_stopped(&self, _stop: &RoundStop) {}
}
