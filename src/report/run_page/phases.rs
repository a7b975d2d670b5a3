//! The phases of a run on the timeline: of the job, and of each rank.

use super::fields;
use crate::model::Exit;
use serde_json::Value;

/// What a rank does, or how what it did ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhaseKind {
    /// Its process is not there yet: the launcher prepares it, or waits before a restart.
    Starting,
    /// Its program runs.
    Running,
    /// Its program ran and exited successfully.
    Succeeded,
    /// Its program ran and failed by itself, or could not be started.
    Failed,
    /// Its program ran until a stop began.
    Stopped,
    /// It has been asked to end, and has not ended yet.
    Stopping,
}

impl PhaseKind {
    /// The name of it, and of its class in the style sheet.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Stopping => "stopping",
        }
    }
}

/// A phase of a rank, in seconds since the first event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RankPhase {
    pub kind: PhaseKind,
    pub attempt: usize,
    pub begin: f64,
    /// `None`: it lasts.
    pub end: Option<f64>,
    pub pid: Option<u64>,
    pub exit: Option<Exit>,
}

/// A rank on the timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RankLane {
    pub local_rank: Option<usize>,
    pub phases: Vec<RankPhase>,
    /// The last `rank_ended` or `rank_not_started` event.
    pub last_end: Option<Value>,
    /// Processes that it left behind in all attempts.
    pub swept: usize,
}

impl RankLane {
    /// Its process has been started, or could not be.
    pub fn start(&mut self, event: &Value, since: f64, at: f64) {
        self.local_rank = fields::count(event, "local_rank");
        let attempt = fields::count(event, "attempt").unwrap_or_default();
        let (pid, is_there) = (event["pid"].as_u64(), event["event"] == "rank_started");
        let phase = |kind, begin, end| RankPhase { kind, attempt, begin, end, pid, exit: None };
        if let Some(open) = self.phases.last_mut().filter(|phase| phase.end.is_none()) {
            // The end of the attempt before is not recorded.
            open.end = Some(at);
        }
        if is_there {
            self.phases.extend((since < at).then(|| phase(PhaseKind::Starting, since, Some(at))));
            self.phases.push(phase(PhaseKind::Running, at, None));
            self.last_end = None;
        } else {
            self.phases.push(phase(PhaseKind::Failed, since.min(at), Some(at)));
            self.last_end = Some(event.clone());
        }
    }

    /// It has ended. Whether it failed by itself.
    pub fn end(&mut self, event: &Value, is_stopping: bool, at: f64) -> bool {
        let exit = fields::exit(&event["exit"]);
        self.local_rank = fields::count(event, "local_rank").or(self.local_rank);
        self.swept += fields::count(event, "swept").unwrap_or_default();
        self.last_end = Some(event.clone());
        let is_success = exit.is_some_and(Exit::is_success);
        let has_failed = !is_success && !is_stopping;
        if let Some(open) = self.phases.last_mut().filter(|phase| phase.end.is_none()) {
            (open.end, open.exit) = (Some(at), exit);
            if open.kind == PhaseKind::Running {
                open.kind = match (is_success, has_failed) {
                    (true, _) => PhaseKind::Succeeded,
                    (false, true) => PhaseKind::Failed,
                    (false, false) => PhaseKind::Stopped,
                };
            } else {
                return false;
            }
        }
        has_failed
    }

    /// It did not fail by itself.
    pub fn revoke_failure(&mut self) {
        if let Some(last) = self.phases.last_mut().filter(|phase| phase.kind == PhaseKind::Failed) {
            last.kind = PhaseKind::Stopped;
        }
    }

    /// It failed by itself, though the stop seems to have begun before. Returns its exit, if it has ended so.
    pub fn declare_failure(&mut self) -> Option<Exit> {
        let last = self.phases.last().filter(|phase| phase.kind == PhaseKind::Stopping)?.clone();
        let exit = last.exit?;
        self.phases.pop();
        let ran = self.phases.last_mut()?;
        (ran.kind, ran.end, ran.exit) = (PhaseKind::Failed, last.end, last.exit);
        Some(exit)
    }

    /// It is asked to end, if it runs.
    pub fn stop(&mut self, at: f64) {
        let Some(open) = self.phases.last_mut().filter(|phase| phase.end.is_none()) else { return };
        if open.kind == PhaseKind::Running {
            (open.kind, open.end) = (PhaseKind::Stopped, Some(at));
            let next = RankPhase { kind: PhaseKind::Stopping, begin: at, end: None, ..open.clone() };
            self.phases.push(next);
        }
    }
}

/// A phase of the job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JobPhase {
    pub name: String,
    pub begin: f64,
    pub end: Option<f64>,
    /// The attempt whose ranks run.
    attempt: Option<usize>,
}

/// The phases of the job, one after another.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct JobPhases {
    pub phases: Vec<JobPhase>,
    round: Option<usize>,
    /// When the ranks of the present attempt began to be started.
    since: f64,
}

impl JobPhases {
    pub fn begin(&mut self, name: &str, at: f64) {
        self.next(name.to_owned(), None, at);
        self.since = at;
    }

    /// The nodes have agreed on a round.
    pub fn begin_round(&mut self, round: usize, at: f64) {
        if let Some(open) = self.phases.last_mut().filter(|phase| phase.end.is_none() && phase.name == "starting") {
            "rendezvous".clone_into(&mut open.name);
        }
        self.round = Some(round);
        self.begin("starting", at);
    }

    /// A rank of this attempt is started. Returns since when the launcher has prepared that.
    pub fn begin_attempt(&mut self, attempt: usize, at: f64) -> f64 {
        let is_new = self.phases.last().is_none_or(|open| open.attempt != Some(attempt) || open.end.is_some());
        if is_new {
            let name = match self.round {
                Some(round) => format!("round {round}, attempt {attempt}"),
                None => format!("attempt {attempt}"),
            };
            self.next(name, Some(attempt), at);
        }
        self.since
    }

    /// The attempt whose ranks run.
    pub fn attempt(&self) -> Option<usize> {
        self.phases.last()?.attempt
    }

    pub fn end(&mut self, at: f64) {
        if let Some(open) = self.phases.last_mut().filter(|phase| phase.end.is_none()) {
            open.end = Some(at);
        }
    }

    fn next(&mut self, name: String, attempt: Option<usize>, at: f64) {
        self.end(at);
        self.phases.push(JobPhase { name, begin: at, end: None, attempt });
    }
}
