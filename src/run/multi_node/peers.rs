//! The other nodes of a static rendezvous (`--rdzv-backend=static`): their failures while ranks run here, what they learn of this
//! node's end, and the wait for them afterwards. Node 0 has to serve the store until the ranks of all nodes have ended.

use crate::model::exit::signal_label;
use crate::plan::Plan;
use crate::probe::net;
use crate::protocol::JobEnd;
use crate::rendezvous::torch_static::StaticPeers;
use crate::rendezvous::torch_static::codec::format_nodes;
use crate::rendezvous::torch_static::nodes::PeerEvent;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::signal_inbox::SignalInbox;
use crate::run::stop_requests::Arrival;
use crate::run::sweep;
use crate::supervise::NodeOutcome;
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use std::io;
use std::time::Duration;
use tracing::warn;

/// When the wait for other nodes is announced.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(2);

/// What other nodes have reported.
#[derive(Default)]
pub struct PeerNews {
    /// The outcome with which the ranks of this node stop, if they do: node 0 has ended, whose store they need.
    pub stop: Option<JobOutcome>,
    /// Node 0's store is gone, and with it all reports.
    pub is_store_gone: bool,
}

/// Takes in what other nodes have reported.
pub fn hear(nodes: &mut StaticPeers) -> PeerNews {
    let mut news = PeerNews::default();
    for event in nodes.take_events() {
        match event {
            PeerEvent::StoreGone => {
                if nodes.end().is_none() {
                    warn!("node 0's store is lost, because its launcher has ended or is unreachable; this node stops");
                }
                let ended = nodes.end().map_or(JobOutcome::StoreLost, |end| JobOutcome::Ended(end.clone()));
                news = PeerNews { stop: news.stop.or(Some(ended)), is_store_gone: true };
            }
            PeerEvent::JobEnded(end) => {
                let (node, why) = match &end {
                    JobEnd::Failed { failure, .. } => {
                        (failure.node, format!("{}: {}", failure.process, failure.outcome))
                    }
                    JobEnd::Stopped { signal, .. } => (0, format!("stopped by {}", signal_label(*signal))),
                    _ => continue,
                };
                if node == 0 {
                    warn!("node 0 failed: {why}; its launcher serves the store, so this node stops");
                    news.stop = Some(JobOutcome::Ended(end));
                } else if nodes.node() != 0 {
                    warn!("node {node} failed: {why}");
                }
            }
            PeerEvent::Lost(node, Some(why)) => warn!("node {node} failed: {why}"),
            PeerEvent::Lost(node, None) => {
                warn!("node {node} is lost: its launcher ended before its workers did")
            }
        }
    }
    news
}

/// Tells the other nodes how this one ended. Whether it has to wait for them.
pub fn report_end(nodes: &mut StaticPeers, outcome: Option<&NodeOutcome>, plan: &Plan) -> bool {
    let why = match outcome {
        Some(NodeOutcome::Completed) => return nodes.report_success(),
        Some(NodeOutcome::Failed(failed)) => format!("{}: {}", plan.ranks[failed.local_rank].label(), failed.exit),
        Some(NodeOutcome::NotStarted { local_rank }) => {
            format!("{} could not be started", plan.ranks[*local_rank].label())
        }
        Some(NodeOutcome::Stopped { signal }) => format!("stopped by {}", signal_label(*signal)),
        Some(NodeOutcome::LauncherKilled | NodeOutcome::Regrouped) | None => return false,
    };
    nodes.report_failure(&why);
    false
}

/// Waits without a limit until no other node needs this node's store.
pub fn wait_for_others(nodes: &mut StaticPeers, inbox: &SignalInbox<'_>) -> io::Result<JobOutcome> {
    const NODES: u64 = 0;
    const INBOX: u64 = 1;
    const LAUNCHER: u64 = 2;
    let poll = Poller::new()?;
    poll.readable(&*nodes, NODES)?;
    inbox.watch(&poll, (INBOX, LAUNCHER))?;
    let mut next = clock::now() + ANNOUNCE_AFTER;
    loop {
        hear(nodes);
        let others = nodes.unfinished();
        if others.is_empty() {
            nodes.release();
            return Ok(JobOutcome::AsReported);
        }
        if clock::now() >= next {
            warn!(
                "the workers of this node exited successfully; it serves the store until {} has ended",
                format_nodes(&others)
            );
            next = Duration::MAX;
        }
        // A stop may have come before.
        let left = if inbox.has_read_ahead() { Duration::ZERO } else { next.saturating_sub(clock::now()) };
        let tokens = poll.wait((next != Duration::MAX || left.is_zero()).then_some(left))?;
        if tokens.contains(&LAUNCHER) {
            return Ok(JobOutcome::LauncherKilled);
        }
        let stop = inbox.take().into_iter().find(Arrival::is_stop).map(|arrival| arrival.signal);
        sweep::reap_orphans(|_| false);
        if stop.is_none() && inbox.is_closed() {
            return Ok(JobOutcome::LauncherKilled);
        }
        if let Some(signal) = stop {
            warn!("stopped while serving the store for {}, which loses it", format_nodes(&others));
            nodes.report_job_end(&JobEnd::Stopped { host: net::host_name(), signal });
            return Ok(JobOutcome::Stopped(signal));
        }
    }
}
