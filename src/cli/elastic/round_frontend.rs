//! What a front end does in a job whose nodes rendezvous: joins the backend, plans each round.

use crate::cli::common::error::CliError;
use crate::plan::Plan;
use crate::protocol::{Participants, RoundMember};
use crate::rendezvous::lease::NodeLease;
use crate::rendezvous::torch_store::StoreSockets;
use crate::run::launch::ShownRanks;
use crate::run::launch_result::LaunchResult;
use crate::run::multi_node::membership::Membership;
use crate::supervise::NoRestart;
use std::sync::Arc;
use std::time::Duration;

/// A round, as its members see it.
pub struct Round<'a> {
    /// In the order of their numbers.
    pub members: &'a [RoundMember],
    /// This node's number among them.
    pub own: usize,
    /// The number of failures that the job has had before.
    pub failures: u32,
}

/// What this node runs in a round.
pub struct NodePlan {
    /// Its plan.
    pub plan: Plan,
    /// The ranks' streams that the console shows.
    pub shown: ShownRanks,
    /// Where this node serves a store for the ranks of all nodes; may be empty.
    pub store: StoreSockets,
}

/// Waits for a stop request for at most this time. Returns false once one has come.
pub type CancelCheck<'a> = &'a mut dyn FnMut(Duration) -> bool;

/// What a front end does in a job whose nodes rendezvous.
pub trait RoundFrontend {
    /// Joins the rendezvous backend, which notes renewals in `lease`. Called in the supervisor process, so threads may be started.
    fn join(&self, lease: &Arc<NodeLease>, may_continue: CancelCheck<'_>) -> Result<JoinedBackend, CliError>;
    /// Leaves the job for this node, whose supervisor process and ranks have ended. Called in the launcher process.
    fn leave_for_supervisor(&self, lease: &NodeLease);
    /// Does what comes before a round (the pre-hook).
    fn prepare(&self, _round: &Round<'_>, _may_continue: &mut dyn FnMut() -> bool) -> Result<(), CliError> {
        Ok(())
    }
    /// Plans this node's part of a round.
    fn plan_round(&self, round: &Round<'_>) -> Result<NodePlan, CliError>;
    /// Time in which a round has to come together.
    fn join_timeout(&self) -> Duration;
    /// The delay before all ranks are started again after this failure, or why this node's options forbid that.
    fn restart_delay(&self, launched: &LaunchResult, failures: u32) -> Result<Duration, NoRestart>;
    /// Whether a node that is stopped leaves the others to go on without it.
    fn leaves_others_running(&self) -> bool {
        false
    }
    /// The notice about nodes that are missing, where the front end has its own.
    fn waiting_notice(&self, _participants: Option<&Participants>) -> Option<String> {
        None
    }
}

/// How this node joined the others.
pub enum JoinedBackend {
    /// As a member, connected to the backend.
    Member(Box<Membership>),
    /// By a list that is made once, in which this node has this number. Nothing more is heard of the others.
    FixedList(Vec<RoundMember>, usize),
    /// Not at all: this signal came first.
    Stopped(i32),
}
