//! What the detectors of hangs ask of the ranks, and their reports.

use super::RankProcesses;
use crate::model::plain_text::escape;
use crate::model::{Exit, ProcessLabel};
use crate::plan::SeenOutput;
use crate::report::cause::uncaught::{ThreadError, UncaughtException};
use crate::report::stacks::{HangFacts, RankLine, conclude, find_odd_ranks, group, render_hang, render_stuck_exit};
use crate::report::wording::lasted;
use crate::run::hangs::exit_detector::StuckExit;
use crate::run::hangs::hang_detector::FoundHang;
use crate::run::rank_state::RankState;
use crate::run::record::journal_event::JournalEvent;
use crate::run::stacks::look::RankTarget;
use crate::spec::hang::OnHang;
use crate::supervise::{AbortReason, Lifecycle};
use crate::sys::clock;
use crate::sys::process::procfs::stat::ProcStat;
use std::path::PathBuf;
use std::time::Duration;

impl RankProcesses<'_> {
    pub(super) fn logs_of(&self, local_rank: usize, attempt: u32) -> Vec<PathBuf> {
        let logs = self.launch.plan.ranks[local_rank].output.logs(attempt);
        logs.into_iter().map(|log| self.launch.log_dir.join(log)).collect()
    }

    /// The living ranks, for the reader of stacks.
    pub fn stack_targets(&self) -> Vec<RankTarget> {
        // Servers wait for their clients by design.
        let is_main = |local: &usize| Lifecycle::of(self.launch.plan.ranks[*local].role) == Lifecycle::Main;
        (0..self.processes.len()).filter(is_main).filter_map(|local_rank| self.stack_target(local_rank)).collect()
    }

    /// A rank for the reader of stacks, if it lives.
    pub fn stack_target(&self, local_rank: usize) -> Option<RankTarget> {
        let process = self.processes.get(local_rank)?;
        let pid = process.pid.filter(|_| process.exit.is_none())?;
        let started = ProcStat::of(pid)?.started;
        let logs = self.logs_of(local_rank, process.attempt);
        let all_seen = self.launch.plan.ranks[local_rank].output.seen() == SeenOutput::All;
        let heartbeat = self.uncaught_files[local_rank].as_ref().map(|file| file.path().into());
        Some(RankTarget { all_seen, heartbeat, ..RankTarget::new(local_rank, (pid, started), logs) })
    }

    /// Returns true if an exception has ended the program of this rank, or it has left with an exit status other than 0.
    pub fn has_failed(&self, local_rank: usize) -> bool {
        self.describe_own_end(local_rank).is_some()
    }

    /// By what the program of a rank has failed that may still run.
    fn describe_own_end(&self, local_rank: usize) -> Option<String> {
        match self.read_notes(local_rank) {
            (UncaughtException::Raised(noted), _) => Some(noted.fault.in_a_line()),
            (_, notes) => {
                let call = notes.exit_call.filter(|_| notes.has_left);
                call.map(|(status, place)| format!("sys.exit({status}) at {place}"))
            }
        }
    }

    /// Reports a rank that has failed and does not exit, and is aborted because of it. Returns how long ago it failed.
    pub fn report_stuck_exit(&mut self, stuck: &StuckExit) -> Duration {
        let label = self.launch.plan.ranks[stuck.local_rank].label();
        let what = self.describe_own_end(stuck.local_rank).unwrap_or_default();
        let late = clock::now().saturating_sub(stuck.failed_at);
        let text = render_stuck_exit(label, &what, late, &stuck.dump, stuck.state);
        self.journal.write_later(JournalEvent::StuckExit {
            role: label.role,
            rank: label.number,
            local_rank: stuck.local_rank,
            seconds: late.as_secs_f64(),
            report: &text,
        });
        self.listener.stuck_exit(&text);
        late
    }

    /// Notes that these ranks are aborted, and why.
    pub(super) fn note_aborted(&mut self, ranks: &[usize], reason: &AbortReason) {
        let (option, why) = match reason {
            AbortReason::Hang { why, .. } => ("--on_hang abort", why.clone()),
            AbortReason::StuckExit(late) => {
                ("--exit_timeout", format!("it had failed {} before and did not exit", lasted(*late)))
            }
            AbortReason::Straggler { first, limit } => {
                let (limit, first) = (limit.as_secs_f64(), self.launch.plan.ranks[*first].label());
                ("--straggler_timeout", format!("it still ran {limit} s after {first} had exited successfully"))
            }
        };
        let together = match reason {
            AbortReason::Hang { silent_since, .. } if ranks.len() > 1 => Some(*silent_since),
            _ => None,
        };
        for local_rank in ranks {
            self.processes[*local_rank].aborted_together = together;
            self.processes[*local_rank].aborted = Some(format!("rlaunch sent it SIGABRT ({option}): {why}"));
        }
    }

    /// Whether this rank is aborted already.
    pub fn is_aborted(&self, local_rank: usize) -> bool {
        self.processes[local_rank].aborted.is_some()
    }

    /// The ranks of the present attempt, as reports name them.
    pub fn rank_lines(&self) -> Vec<RankLine> {
        let line = |(local_rank, process): (usize, &RankState)| RankLine {
            local_rank,
            label: self.launch.plan.ranks[local_rank].label(),
            place: None,
            has_ended: process.exit.is_some_and(Exit::is_success),
        };
        self.processes.iter().enumerate().map(line).collect()
    }

    /// Reports a hang, and returns the reason in a sentence. `is_spared`: no rank is aborted, although the user wants it.
    pub fn report_hang(&mut self, found: &FoundHang, is_spared: bool) -> String {
        let ranks = self.rank_lines();
        let plan = self.launch.plan;
        // The stream of all ranks that is seen in each: they are planned alike.
        let seen = plan.ranks.iter().map(|rank| rank.output.seen()).find(|seen| *seen != SeenOutput::All);
        let facts = HangFacts {
            silence: found.silence,
            watched: found.watched,
            seen: seen.unwrap_or(SeenOutput::All),
            has_other_nodes: plan.nnodes > 1,
        };
        let mut text = render_hang(&found.dump, &ranks, facts);
        if is_spared {
            text += "\nno rank is aborted: the odd one uses a CPU, or ranks of other nodes may be at work";
        }
        let thread = self.first_thread_error();
        let described = thread.as_ref().map(|(local, thread)| self.describe_thread_error(*local, thread));
        if let Some(thread) = &described {
            text += &format!("\n{thread}");
        }
        let mut next = "`rlaunch stacks` shows the stacks again, `rlaunch stop` ends the job".to_owned();
        if self.launch.hang.on_hang == OnHang::Report {
            next += "; --on_hang abort ends such a job by itself";
        }
        let label = |local: &usize| self.launch.plan.ranks[*local].label();
        let odd = find_odd_ranks(&group(&found.dump), &[]);
        let labels: Vec<ProcessLabel> = odd.ranks().iter().map(label).collect();
        self.journal.write_later(JournalEvent::Hang {
            silent_seconds: found.silence.as_secs_f64(),
            odd: labels.iter().map(|label| label.number).collect(),
            odd_roles: labels.iter().map(|label| label.role).collect(),
            report: &text,
        });
        self.listener.hang_found(&format!("{text}\n{next}"));
        let silent_since = clock::now().saturating_sub(found.silence);
        let decides = thread.is_some_and(|(local, thread)| {
            thread.ended_shortly_before(silent_since) && (odd.ranks().is_empty() || odd.ranks().contains(&local))
        });
        let silent = || format!("no rank had written anything for {}, and none stands out", lasted(found.silence));
        let conclusion = conclude(&found.dump, &ranks);
        match (described.filter(|_| decides), conclusion) {
            (Some(thread), Some(conclusion)) => format!("{thread}; {conclusion}"),
            (thread, conclusion) => thread.or(conclusion).unwrap_or_else(silent),
        }
    }

    /// The first thread that an exception has ended in any rank, which may be why the others wait.
    fn first_thread_error(&self) -> Option<(usize, ThreadError)> {
        let living = (0..self.processes.len()).filter(|local| self.processes[*local].exit.is_none());
        let errors = living.filter_map(|local| Some((local, self.read_notes(local).1.thread?)));
        errors.min_by_key(|(_, thread)| thread.at)
    }

    fn describe_thread_error(&self, local: usize, thread: &ThreadError) -> String {
        let (label, ago) = (self.launch.plan.ranks[local].label(), lasted(clock::now().saturating_sub(thread.at)));
        let (name, error) = (escape(&thread.name), escape(&thread.fault.in_a_line()));
        format!("{label}'s thread {name} ended {ago} before by {error}")
    }
}
