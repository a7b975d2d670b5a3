//! A node among others while its ranks run, and the wait for the others once they have ended well: the store that this
//! node serves has to be there as long as anybody's ranks run.

use super::front::Supervisor;
use super::membership::Halt;
use super::request::{Requests, Way};
use crate::rendezvous::torch_static::Nodes;
use crate::rendezvous::torch_static::nodes::Told;
use crate::rendezvous::torch_static::words::named;
use crate::supervise::Event;
use crate::sys::clock;
use crate::sys::poll::Poll;
use crate::sys::signals::Signals;
use crate::sys::tree;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;
use tracing::warn;

/// How this node parted from the others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one a round")]
pub enum Parting {
    /// There are none, or there was nothing to it.
    Well,
    /// Node 0's store went away while ranks ran here, so these were stopped.
    StoreGone,
    /// The round was over, or contact was, before the ranks had ended.
    Halted(Halt),
    /// This signal ended the wait for the others.
    Stopped(i32),
    /// The front's end did.
    FrontLost,
}

/// After which whoever watches is told that others are waited for.
const SOON: Duration = Duration::from_secs(2);

/// Takes in what has happened; whether the store has gone.
pub fn heard(nodes: &mut Nodes) -> bool {
    let mut gone = false;
    for told in nodes.turn() {
        match told {
            Told::StoreGone => {
                warn!("node 0's store has gone, because its launcher has ended or is lost; this node cannot go on");
                gone = true;
            }
            Told::Lost(node, Some(why)) => warn!("node {node} has failed: {why}"),
            Told::Lost(node, None) => warn!("node {node} is lost: its launcher has gone before its workers had ended"),
        }
    }
    gone
}

/// Waits until nobody needs this node's store any more, for as long as that takes.
pub fn await_others(
    nodes: &mut Nodes,
    supervisor: &Supervisor,
    signals: &Signals,
    requests: &mut Requests,
    notify: &BTreeSet<i32>,
) -> io::Result<Parting> {
    const NODES: u64 = 0;
    const SIGNALS: u64 = 1;
    const FRONT: u64 = 2;
    const REQUESTS: u64 = 3;
    let poll = Poll::new()?;
    poll.readable(&*nodes, NODES)?;
    poll.readable(signals, SIGNALS)?;
    poll.readable(&supervisor.front, FRONT)?;
    poll.readable(&supervisor.requests, REQUESTS)?;
    let mut next = clock::now() + SOON;
    loop {
        heard(nodes);
        let others = nodes.at_work();
        if others.is_empty() {
            nodes.release();
            return Ok(Parting::Well);
        }
        if clock::now() >= next {
            warn!("the workers of this node have ended well; it serves the store until {} has ended", named(&others));
            next = Duration::MAX;
        }
        let tokens = poll.wait((next != Duration::MAX).then(|| next.saturating_sub(clock::now())))?;
        if tokens.contains(&FRONT) {
            return Ok(Parting::FrontLost);
        }
        let mut came: Vec<(i32, Way)> = signals.drain().into_iter().map(|signal| (signal, Way::Directly)).collect();
        tree::reap_strays(|_| false);
        if tokens.contains(&REQUESTS) {
            match supervisor.asked() {
                Some(asked) => came.extend(asked.into_iter().map(|signal| (signal, Way::Asked))),
                None => return Ok(Parting::FrontLost),
            }
        }
        let stop = came.into_iter().find_map(|(signal, way)| match requests.event(signal, way, notify) {
            Some(Event::Stop(signal)) => Some(signal),
            _ => None,
        });
        if let Some(signal) = stop {
            warn!("stopped while it served the store for {}, which now has none", named(&others));
            return Ok(Parting::Stopped(signal));
        }
    }
}
