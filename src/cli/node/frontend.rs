//! The front end of a job: what differs between Paddle's and torchrun's output and exit statuses.

use crate::cli::common::exit_code;
use crate::cli::common::message::print_notice;
use crate::cli::elastic::outcome_text;
use crate::cli::node::build_failure_report::ReportContext;
use crate::cli::node::progress_messages;
use crate::model::exit::signal_label;
use crate::report::cause::verdict::Verdict;
use crate::report::failure_report::FailureReport;
use crate::run::launch::{Launch, LaunchListener};
use crate::run::launch_result::LaunchResult;
use crate::run::multi_node::membership::RoundStop;
use crate::supervise::{ChildId, ProgressNote};
use std::time::Duration;

/// How this node's ranks ended.
pub struct NodeEnd<'a> {
    /// The job's ranks and options.
    pub launch: &'a Launch<'a>,
    /// The ends of its ranks.
    pub launched: &'a LaunchResult,
    /// The exit status of the launcher.
    pub status: i32,
    /// The failure report, if the job failed.
    pub failure: Option<&'a FailureReport>,
    /// The text of `Frontend::render_failure` for the console.
    pub own_text: Option<&'a str>,
}

/// A failure report in a front end's own form.
pub struct OwnText {
    /// For `result.json`, without colours.
    pub record: String,
    /// For the console.
    pub console: String,
}

/// What one front end prints and how it exits.
pub trait Frontend {
    /// What failure reports need beside the node's report.
    fn report_context(&self) -> &ReportContext;
    /// The ranks, or those of a round, are about to start. The journal may not be open yet.
    fn before_ranks(&self, launch: &Launch<'_>);
    /// The journal is open; the first ranks of the job are next.
    fn before_first_rank(&self, _launch: &Launch<'_>) {}
    /// A rank's process has started.
    fn rank_started(&self, _id: ChildId, _pid: i32, _launch: &Launch<'_>) {}
    /// The job is being stopped or restarted.
    fn report_progress(&self, note: &ProgressNote, failure: Option<&Verdict>, launch: &Launch<'_>) {
        progress_messages::print_progress(note, failure, &launch.policy_of_stop(), &|local| {
            launch.plan.ranks[local].label()
        });
    }
    /// The exit status of the launcher.
    fn exit_status(&self, launched: &LaunchResult) -> i32 {
        self.map_exit_status(exit_code::of_job(
            &launched.outcome,
            &launched.report,
            self.report_context().has_one_exit_status,
        ))
    }
    /// The front end's exit status for one of `exit_code`.
    fn map_exit_status(&self, status: i32) -> i32 {
        status
    }
    /// Whether the job is over with this end; not so after the first pass of a rank mapping.
    fn is_final(&self, _launch: &Launch<'_>, _status: i32) -> bool {
        true
    }
    /// The failure report, where the front end has its own form.
    fn render_failure(
        &self,
        _launch: &Launch<'_>,
        _launched: &LaunchResult,
        _failure: &FailureReport,
    ) -> Option<OwnText> {
        None
    }
    /// Prints how this node's ranks ended.
    fn report_end(&self, end: &NodeEnd<'_>);
}

/// Passes the engine's events to a front end.
pub(crate) struct EngineListener<'a> {
    pub(crate) frontend: &'a dyn Frontend,
    pub(crate) launch: &'a Launch<'a>,
}

impl LaunchListener for EngineListener<'_> {
    fn started(&self, id: ChildId, pid: i32) {
        self.frontend.rank_started(id, pid, self.launch);
    }

    fn progressed(&self, note: &ProgressNote, failure: Option<&Verdict>) {
        self.frontend.report_progress(note, failure, self.launch);
    }

    fn user_stops(&self) {
        progress_messages::print_users_stop();
    }

    fn other_stop_signal(&self, signal: i32, first: i32) {
        let (signal, first) = (signal_label(signal), signal_label(first));
        print_notice(&format!("{signal}: the ranks are stopping since {first}, and keep their time to stop"));
    }

    fn stop_is_slow(&self, failure: &Verdict, living: &[usize], left: Option<Duration>) {
        progress_messages::print_slow_stop(failure, living, left, &|local| self.launch.plan.ranks[local].label());
    }

    fn preload_is_slow(&self, modules: &str) {
        print_notice(&format!("importing {modules} for all ranks ..."));
    }

    fn preload_done(&self, modules: &str, seconds: f64) {
        print_notice(&format!("imported {modules} in {seconds:.1} s"));
    }

    fn preload_abandoned(&self, why: &str) {
        print_notice(&format!("no preload server: {why}; every rank imports for itself"));
    }

    fn stuck_exit(&self, report: &str) {
        print_notice(report);
    }

    fn hang_found(&self, report: &str) {
        print_notice(report);
    }

    fn round_stopped(&self, stop: &RoundStop) {
        // Where this node is at fault, the outcome of the job says the same again.
        if let RoundStop::ByOthers { .. } | RoundStop::LeftBehind { .. } = stop {
            print_notice(&outcome_text::of_round_stop(stop));
        }
    }
}
