//! The state of a launch as the control socket shows it, also while the event loop waits for a disk.

use crate::model::Exit;
use crate::plan::{Plan, RankPlan, SeenOutput};
use crate::report::job_status::{CONTROL_VERSION, JobStatus, LaunchPhase, RankStatus};
use crate::sys::clock;
use crate::sys::process::procfs::stat::ProcStat;
use nix::sys::eventfd::EventFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use thiserror::Error;

/// No client has asked for a shorter grace period.
const NONE: u64 = u64::MAX;

/// Why the ranks of a launch cannot be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RestartRefused {
    /// The other nodes would not hear of it.
    #[error(
        "the launchers of this job's nodes have no rendezvous that another attempt could be agreed by; stop the job and start it \
         again on all nodes, with --nnodes and --master (rlaunch.run: --rdzv-backend) if it is to be restarted later"
    )]
    NoRendezvous,
    /// Servers keep what trainers have sent them, and are restarted with none.
    #[error("the job has parameter servers, which would lose their parameters; stop it and start it again")]
    Servers,
    /// What follows the end of this attempt is decided already, or by the policy of restarts.
    #[error(
        "the present attempt is ending, because a rank has failed or all have finished; see `rlaunch status` for what follows"
    )]
    Ending,
    /// Nothing runs that could be restarted.
    #[error("the launcher is {}, so no rank runs that could be restarted; see `rlaunch status`", .0.word())]
    NotRunning(LaunchPhase),
}

/// Another attempt that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartRequest {
    /// The grace period of the present attempt; `None`: that of the job.
    pub grace: Option<Duration>,
}

/// Whether clients may ask for another attempt, and what they and those of other nodes have asked for.
#[derive(Debug, Default)]
struct Requests {
    refused: Option<RestartRefused>,
    /// The present attempt is ending.
    is_ending: bool,
    restart: Option<RestartRequest>,
    grace_limit: Option<Duration>,
    /// How many requests have ended an attempt.
    met: u32,
}

#[derive(Debug)]
struct Shared {
    status: Mutex<JobStatus>,
    requests: Mutex<Requests>,
    /// The grace period that a client has asked for, in milliseconds, or `NONE`.
    grace: AtomicU64,
    /// A client has asked for a stop, which the event loop has not seen yet.
    stop: AtomicBool,
    /// The nodes of the job's last round, and this node's number among them.
    nodes: Mutex<(Vec<JobNode>, usize)>,
    /// Written to when what the launcher does changes.
    phases: OnceLock<Arc<EventFd>>,
}

/// A node of the job, as this one knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobNode {
    /// Its id with the rendezvous backend.
    pub id: String,
    /// The name of its machine.
    pub host: String,
    /// Whether Paddle's own launcher runs there, which knows no questions.
    pub is_paddle_launcher: bool,
}

/// The state of a launch. Clones share it.
#[derive(Clone, Debug)]
pub struct LiveStatus(Arc<Shared>);

impl Default for LiveStatus {
    fn default() -> Self {
        let status = JobStatus { version: CONTROL_VERSION, started: now(), phase_since: now(), ..JobStatus::default() };
        Self(Arc::new(Shared {
            status: Mutex::new(status),
            requests: Mutex::default(),
            grace: AtomicU64::new(NONE),
            stop: AtomicBool::new(false),
            nodes: Mutex::default(),
            phases: OnceLock::new(),
        }))
    }
}

/// The folder in which the launcher was started; empty if its name is not text, which JSON could not have.
pub fn working_dir() -> PathBuf {
    let folder = std::env::current_dir().ok();
    folder.filter(|folder| folder.to_str().is_some()).unwrap_or_default()
}

fn now() -> f64 {
    clock::wall().as_secs_f64()
}

impl LiveStatus {
    fn lock(&self) -> MutexGuard<'_, JobStatus> {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, status: &mut JobStatus, phase: LaunchPhase) {
        if status.phase != phase {
            (status.phase, status.phase_since) = (phase, now());
            if let Some(wakeup) = self.0.phases.get() {
                // It is full only if nothing reads it.
                let _ = wakeup.write(1);
            }
        }
    }

    /// Writes to this descriptor whenever what the launcher does changes. The first call counts.
    pub fn wake_at_phases(&self, wakeup: &Arc<EventFd>) {
        let _ = self.0.phases.set(Arc::clone(wakeup));
    }

    /// What a client is shown.
    pub fn get(&self) -> JobStatus {
        self.lock().clone()
    }

    /// Sets what stays the same through all attempts and rounds.
    pub fn describe(&self, (job_id, host): (&str, &str), launcher: i32, (log_dir, command): (&Path, Vec<String>)) {
        let mut status = self.lock();
        status.job_id = job_id.to_owned();
        status.host = host.to_owned();
        (status.launcher, status.supervisor) = (launcher, std::process::id() as i32);
        (status.log_dir, status.command) = (log_dir.to_owned(), command);
        status.working_dir = working_dir();
    }

    fn lock_requests(&self) -> MutexGuard<'_, Requests> {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ranks of this plan are about to be started. `refused`: why they cannot be restarted, if so.
    pub fn begin(&self, plan: &Plan, round: Option<u64>, attempt: u32, refused: Option<RestartRefused>) {
        // Locked for both: no request to the ranks of the round before may be noted in between.
        let mut status = self.lock();
        {
            let mut requests = self.lock_requests();
            *requests = Requests { refused, met: requests.met, ..Requests::default() };
        }
        status.job_id.clone_from(&plan.job_id);
        (status.nnodes, status.world_size) = (plan.nnodes, plan.world_size);
        (status.round, status.attempt) = (round, attempt);
        (status.suspended, status.hanging_since) = (false, None);
        self.enter(&mut status, LaunchPhase::Preparing);
        let rank = |(local_rank, rank): (usize, &RankPlan)| RankStatus {
            role: rank.role,
            rank: rank.rank,
            local_rank,
            attempt,
            all_output_logged: rank.output.seen() == SeenOutput::All,
            ..RankStatus::default()
        };
        status.ranks = plan.ranks.iter().enumerate().map(rank).collect();
    }

    /// These are the nodes of the round that begins, `own` of them is this one.
    pub fn set_nodes(&self, nodes: Vec<JobNode>, own: usize) {
        *self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner) = (nodes, own);
    }

    /// The nodes of the last round, and this node's number among them.
    pub fn nodes(&self) -> (Vec<JobNode>, usize) {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the launcher does has changed.
    pub fn set_phase(&self, phase: LaunchPhase) {
        self.enter(&mut self.lock(), phase);
    }

    /// Whether the job is suspended by the user, and whether it hangs, as far as is known.
    pub fn set_standstill(&self, suspended: bool, hangs: bool) {
        let mut status = self.lock();
        status.suspended = suspended;
        status.hanging_since = if hangs { status.hanging_since.or_else(|| Some(now())) } else { None };
    }

    /// A rank's process runs and writes to these files.
    pub fn rank_started(&self, local_rank: usize, (attempt, pid): (u32, i32), (logs, log_start): (Vec<PathBuf>, u64)) {
        let start_ticks = ProcStat::of(pid).map(|stat| stat.started);
        let mut status = self.lock();
        status.attempt = attempt;
        self.enter(&mut status, LaunchPhase::Running);
        if let Some(rank) = status.ranks.get_mut(local_rank) {
            (rank.attempt, rank.pid, rank.start_ticks, rank.logs) = (attempt, Some(pid), start_ticks, logs);
            (rank.since, rank.exit, rank.succeeded) = (Some(now()), None, false);
            rank.log_start = log_start;
        }
    }

    /// A rank's process has ended.
    pub fn rank_ended(&self, local_rank: usize, exit: Exit) {
        if let Some(rank) = self.lock().ranks.get_mut(local_rank) {
            rank.end(exit, now());
        }
    }

    /// When the launcher was started (seconds since 1970).
    pub fn started(&self) -> f64 {
        self.lock().started
    }

    /// A client wants another attempt. Returns the number of the present one.
    pub fn request_restart(&self, request: RestartRequest) -> Result<u32, RestartRefused> {
        let status = self.lock();
        let mut requests = self.lock_requests();
        match (requests.refused, status.phase) {
            (Some(refused), _) => Err(refused),
            (None, LaunchPhase::Running | LaunchPhase::Restarting) if requests.is_ending => Err(RestartRefused::Ending),
            (None, LaunchPhase::Running | LaunchPhase::Restarting) => {
                requests.restart = Some(request);
                Ok(status.attempt)
            }
            (None, phase) => Err(RestartRefused::NotRunning(phase)),
        }
    }

    /// Takes what `request_restart` has noted, for the event loop.
    pub fn take_restart(&self) -> Option<RestartRequest> {
        self.lock_requests().restart.take()
    }

    /// A user wants the ranks of this round, also those that are ending, to have at most this time to end. Returns whether the round is
    /// the present one; `None`: the job has no rounds.
    pub fn request_grace_limit(&self, round: Option<u64>, grace: Duration) -> bool {
        let status = self.lock();
        let is_present = status.round == round;
        if is_present {
            let mut requests = self.lock_requests();
            requests.grace_limit = Some(requests.grace_limit.map_or(grace, |before| before.min(grace)));
        }
        is_present
    }

    /// Takes what `request_grace_limit` has noted, for the event loop.
    pub fn take_grace_limit(&self) -> Option<Duration> {
        self.lock_requests().grace_limit.take()
    }

    /// Whether the supervisor takes requests for another attempt now (`Supervisor::takes_restart`).
    pub fn set_takes_restart(&self, takes_restart: bool) {
        self.lock_requests().is_ending = !takes_restart;
    }

    /// An attempt is being ended because a client has asked for another one.
    pub fn count_restart(&self) {
        self.lock_requests().met += 1;
    }

    /// How many attempts were ended because clients had asked for another one.
    pub fn requested_restarts(&self) -> u32 {
        self.lock_requests().met
    }

    /// A client wants the job to stop, in this round and for good.
    pub fn request_stop(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }

    /// Takes what `request_stop` has noted, for the signal inbox.
    pub fn take_stop(&self) -> bool {
        self.0.stop.swap(false, Ordering::SeqCst)
    }

    /// A client wants the ranks to have at most this time to end.
    pub fn limit_grace(&self, grace: Duration) {
        let millis = u64::try_from(grace.as_millis()).unwrap_or(NONE - 1);
        self.0.grace.fetch_min(millis, Ordering::SeqCst);
    }

    /// The grace period of a stop: the job's, or the shorter one that a client has asked for.
    pub fn grace(&self, of_job: Duration) -> Duration {
        Duration::from_millis(self.0.grace.load(Ordering::SeqCst)).min(of_job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::paddle_launch::PodInfo;

    #[test]
    fn what_is_asked_of_a_round_is_not_taken_in_the_next_one() {
        let pod = PodInfo { name: String::new(), log_dir: String::new(), auto_cluster: false };
        let job_id = String::new();
        let plan = Plan { ranks: Vec::new(), nnodes: 2, world_size: 2, pod, job_id, mode: "x", awaits_servers: false };
        let (status, is_over, mut wrong) = (LiveStatus::default(), AtomicBool::new(false), Vec::new());
        std::thread::scope(|scope| {
            // Asks in the rounds of even numbers.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if let round @ Some(_) = status.get().round.filter(|round| round % 2 == 0) {
                        status.request_grace_limit(round, Duration::ZERO);
                    }
                }
            });
            for round in 0..20_000 {
                status.begin(&plan, Some(round), 0, None);
                if round % 2 == 1 && status.take_grace_limit().is_some() {
                    wrong.push(round);
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(wrong, [0_u64; 0]);
    }
}
