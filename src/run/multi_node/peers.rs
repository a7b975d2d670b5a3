//! The other nodes of a static rendezvous (`--rdzv-backend=static`): their failures while ranks run here, and the wait for
//! them afterwards. Node 0 has to serve the store until the ranks of all nodes have ended.

use crate::rendezvous::torch_static::StaticPeers;
use crate::rendezvous::torch_static::codec::format_nodes;
use crate::rendezvous::torch_static::nodes::PeerEvent;
use crate::run::launcher_process::SupervisorSide;
use crate::run::multi_node::job_outcome::JobOutcome;
use crate::run::stop_requests::{SignalRoute, StopRequests};
use crate::supervise::SupervisorEvent;
use crate::sys::clock;
use crate::sys::io::poll::Poller;
use crate::sys::process::tree;
use crate::sys::signals::Signals;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;
use tracing::warn;

/// When the wait for other nodes is announced.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(2);

/// Handles the events of other nodes. Whether node 0's store is lost.
pub fn is_store_lost(nodes: &mut StaticPeers) -> bool {
    let mut gone = false;
    for event in nodes.take_events() {
        match event {
            PeerEvent::StoreGone => {
                warn!("node 0's store is lost, because its launcher has ended or is unreachable; this node stops");
                gone = true;
            }
            PeerEvent::Lost(node, Some(why)) => warn!("node {node} failed: {why}"),
            PeerEvent::Lost(node, None) => {
                warn!("node {node} is lost: its launcher ended before its workers did")
            }
        }
    }
    gone
}

/// Waits without a limit until no other node needs this node's store.
pub fn wait_for_others(
    nodes: &mut StaticPeers,
    supervisor: &SupervisorSide,
    signals: &Signals,
    requests: &mut StopRequests,
    notify: &BTreeSet<i32>,
) -> io::Result<JobOutcome> {
    const NODES: u64 = 0;
    const SIGNALS: u64 = 1;
    const LAUNCHER: u64 = 2;
    const REQUESTS: u64 = 3;
    let poll = Poller::new()?;
    poll.readable(&*nodes, NODES)?;
    poll.readable(signals, SIGNALS)?;
    poll.readable(&supervisor.launcher, LAUNCHER)?;
    poll.readable(&supervisor.requests, REQUESTS)?;
    let mut next = clock::now() + ANNOUNCE_AFTER;
    loop {
        is_store_lost(nodes);
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
        let tokens = poll.wait((next != Duration::MAX).then(|| next.saturating_sub(clock::now())))?;
        if tokens.contains(&LAUNCHER) {
            return Ok(JobOutcome::LauncherKilled);
        }
        let mut came: Vec<(i32, SignalRoute)> =
            signals.drain().into_iter().map(|signal| (signal, SignalRoute::Directly)).collect();
        tree::reap_orphans(|_| false);
        if tokens.contains(&REQUESTS) {
            match supervisor.requested() {
                Some(requested) => came.extend(requested.into_iter().map(|signal| (signal, SignalRoute::Requested))),
                None => return Ok(JobOutcome::LauncherKilled),
            }
        }
        let stop = came.into_iter().find_map(|(signal, way)| match requests.event(signal, way, notify) {
            Some(SupervisorEvent::Stop(signal)) => Some(signal),
            _ => None,
        });
        if let Some(signal) = stop {
            warn!("stopped while serving the store for {}, which loses it", format_nodes(&others));
            return Ok(JobOutcome::Stopped(signal));
        }
    }
}
