//! How a job ends, as its nodes report it at node 0's store before that store is gone.

use crate::model::plain_text::read_document;
use crate::net::deadline::TimeLeft;
use crate::net::tcp::wait;
use crate::protocol::JobEnd;
use crate::rendezvous::torch_static::codec;
use crate::rendezvous::torch_static::nodes::{DISCONNECT, PeerEvent, REQUEST, StaticPeers, patience};
use crate::rendezvous::torch_store::client::StoreClient;
use nix::poll::PollFlags;
use std::io;
use std::os::fd::AsFd;

impl StaticPeers {
    /// Learns from now on how the job ends, before node 0's store is gone. Best effort: node 0's launcher may be torchrun's.
    pub fn listen(&mut self, (host, port): (&str, u16)) {
        if self.host.is_some() {
            return;
        }
        let left: TimeLeft<'_> = &mut patience(REQUEST);
        let (end, listens) = (self.key(codec::END), self.key(&format!("{}{}", codec::LISTENS, self.node)));
        let mut begin = || {
            let mut listener = StoreClient::connect(host, port, left)?;
            listener.begin_wait(&end, left)?;
            self.client.set(&listens, b"1", left)?;
            io::Result::Ok(listener)
        };
        self.listener = begin().ok();
        self.is_waiting = self.listener.is_some();
    }

    /// On another node, once its connection is readable: the end of the job was reported, or the store is gone.
    pub(super) fn learn_end(&mut self) -> Vec<PeerEvent> {
        let listener = self.listener.as_mut().filter(|_| std::mem::take(&mut self.is_waiting));
        if listener.is_none_or(|listener| listener.end_wait(&mut patience(REQUEST)).is_err()) {
            return vec![PeerEvent::StoreGone];
        }
        let end = self.read_end();
        let learned = self.key(&format!("{}{}", codec::LEARNED, self.node));
        let _ = self.client.set(&learned, b"1", &mut patience(REQUEST));
        end.map(PeerEvent::JobEnded).into_iter().collect()
    }

    /// The end of the job as the first node has reported it, unless it is known.
    pub(super) fn read_end(&mut self) -> Option<JobEnd> {
        if self.end.is_some() {
            return None;
        }
        let text = self.client.get(&self.key(codec::END), &mut patience(REQUEST)).ok()?;
        let text = std::str::from_utf8(&text).ok().filter(|text| text.len() <= codec::MAX_END)?;
        self.end = read_document(text).ok().filter(is_possible).map(Box::new);
        self.end().cloned()
    }

    /// How the job ended, as far as a node has reported it.
    pub fn end(&self) -> Option<&JobEnd> {
        self.end.as_deref()
    }

    /// Reports to the others how the job ends, unless another node has done so.
    pub fn report_job_end(&mut self, end: &JobEnd) {
        if self.end.is_none() {
            self.end = Some(Box::new(end.clone()));
            // Serialization of these types cannot fail.
            let text = serde_json::to_string(end).unwrap_or_default();
            let _ = self.client.set(&self.key(codec::END), text.as_bytes(), &mut patience(REQUEST));
        }
    }

    /// On node 0, before its store ends: waits a moment until the others know how the job ended.
    pub fn wait_until_learned(&mut self) {
        let mut left = patience(DISCONNECT);
        while let Some(host) = &self.host
            && self.end.is_some()
            && host.registry.has_listeners()
        {
            if wait(host.events_ready.as_fd(), PollFlags::POLLIN, &mut left).is_err() {
                return;
            }
            self.take_changes();
        }
    }
}

/// Whether a launcher reports this. The store has no password, so any process that reaches it may have written it.
fn is_possible(end: &JobEnd) -> bool {
    match end {
        JobEnd::Failed { failure, .. } => (1..=255).contains(&failure.status),
        JobEnd::Stopped { signal, .. } => (1..=64).contains(signal),
        JobEnd::Completed | JobEnd::Lost { .. } | JobEnd::TooFew { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::RankFailure;

    #[test]
    fn ends_that_no_launcher_reports_are_ignored() {
        let failed = |status| {
            let failure = RankFailure { status, ..RankFailure::default() };
            is_possible(&JobEnd::Failed { failure, no_restart: None })
        };
        let stopped = |signal| is_possible(&JobEnd::Stopped { host: "a".into(), signal });
        assert!(failed(1) && failed(255) && stopped(15));
        assert!(!failed(0) && !failed(256) && !stopped(i32::MAX) && !is_possible(&JobEnd::Completed));
    }
}
