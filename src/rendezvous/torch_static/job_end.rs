//! How a job ends, as its nodes report it at node 0's store before that store is gone.

use crate::model::plain_text::read_document;
use crate::net::deadline::{TimeLeft, until};
use crate::net::tcp::wait;
use crate::protocol::JobEnd;
use crate::rendezvous::torch_static::codec;
use crate::rendezvous::torch_static::nodes::{DISCONNECT, PeerEvent, REQUEST, StaticPeers, patience};
use crate::rendezvous::torch_store::client::StoreClient;
use crate::sys::clock;
use nix::poll::PollFlags;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// How long node 0's store may take in all to say how the job ended: the event loop waits for it while ranks run.
const LEARN: Duration = Duration::from_secs(1);

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
        let (end, learned) = (self.key(codec::END), self.key(&format!("{}{}", codec::LEARNED, self.node)));
        let left: TimeLeft<'_> = &mut until(clock::now, clock::now() + LEARN);
        let listener = self.listener.as_mut().filter(|_| std::mem::take(&mut self.is_waiting));
        let text = listener.map(|listener| listener.end_wait(left).and_then(|()| listener.get_present(&end, left)));
        let Some(Ok(text)) = text else { return vec![PeerEvent::StoreGone] };
        let end = self.note_end(&text);
        let _ = self.client.set(&learned, b"1", left);
        end.map(PeerEvent::JobEnded).into_iter().collect()
    }

    /// On node 0: the end of the job as the first node has reported it, unless it is known.
    pub(super) fn read_end(&mut self) -> Option<JobEnd> {
        let text = self.client.get(&self.key(codec::END), &mut patience(REQUEST)).ok()?;
        self.note_end(&text)
    }

    fn note_end(&mut self, text: &[u8]) -> Option<JobEnd> {
        if self.end.is_some() {
            return None;
        }
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= codec::MAX_END)?;
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
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::protocol::RankFailure;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    #[test]
    fn a_store_that_does_not_say_how_the_job_ended_is_gone() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        // A store whose machine freezes once it has answered that the key is there.
        let store = thread::spawn(move || -> Vec<TcpStream> {
            let greeted = server.incoming().take(2).map(|socket| {
                let (mut socket, mut greeting) = (socket.unwrap(), [0; 10]);
                socket.read_exact(&mut greeting).unwrap();
                socket.write_all(&greeting[6..]).unwrap();
                socket
            });
            let mut all: Vec<TcpStream> = greeted.collect();
            all[1].write_all(&[0]).unwrap();
            all
        });
        let long = Duration::from_secs(20);
        let mut one = StaticPeers::connect(("127.0.0.1", port), "run", (1, 2), &mut patience(long)).unwrap();
        one.listen(("127.0.0.1", port));
        let frozen = store.join().unwrap();
        assert_eq!(one.take_events(), [PeerEvent::StoreGone]);
        drop(frozen);
    }

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
