//! Messages between the nodes of a static rendezvous, through node 0's store: each is a key with the next number. A thread waits
//! for that key without a time limit, so an idle job wakes up for nothing. Messages to node 0 alone have keys of their own, which
//! no other node reads.

use crate::net::{tcp, thread};
use crate::rendezvous::questions::{MAX_QUESTION, QuestionEvent, QuestionListener, QuestionMessage};
use crate::rendezvous::torch_static::codec;
use crate::rendezvous::torch_static::nodes::{REQUEST, StaticPeers, patience};
use crate::rendezvous::torch_store::client::{StoreClient, wire_key};
use crossbeam_channel::{Sender, bounded};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use tracing::debug;

/// Messages that may wait for the store.
const MOST_WAITING: usize = 64;
/// How long a sender may take to write a message whose number it has taken.
const WRITE: Duration = Duration::from_secs(1);
/// How many numbers before its own a sender looks at for gaps.
const LOOKED_AT: i64 = 64;
/// The value at the number of a sender that has not written its message in time.
const NO_MESSAGE: &[u8] = b"null";
/// How many numbers a sender takes for one message: it may be found slow each time.
const MOST_ATTEMPTS: u32 = 3;
/// The pause before another connection to the store.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// A message at the store.
#[derive(Serialize, Deserialize)]
struct NodeMessage {
    /// The number of the node that has sent it.
    node: usize,
    text: String,
}

/// Where the messages of a job are.
#[derive(Clone)]
struct MessageStore {
    host: String,
    port: u16,
    run_id: String,
    node: usize,
}

impl StaticPeers {
    /// Sends messages (`QuestionMessage::Tell`) to node 0 or to the other nodes, and receives theirs from now on. To be called
    /// once, while the store is served. Node 0 receives only what is sent to it alone.
    pub fn connect_messages(&self, listener: QuestionListener) -> io::Result<Sender<QuestionMessage>> {
        let (host, port) = self.address.clone();
        let store = MessageStore { host, port, run_id: self.run_id.clone(), node: self.node };
        let (sender, messages) = bounded(MOST_WAITING);
        let receiving = store.clone();
        thread::spawn("rlaunch-hear", move || receiving.receive(&listener))?;
        thread::spawn("rlaunch-tell", move || {
            let mut client = None;
            for message in messages {
                if let QuestionMessage::Tell { to, text, .. } = message {
                    // Node 0 receives only what is sent to it alone.
                    let families: &[&str] = match to {
                        Some(_) => &[codec::MESSAGES_TO_FIRST],
                        None if store.node == 0 => &[codec::MESSAGES],
                        None => &[codec::MESSAGES, codec::MESSAGES_TO_FIRST],
                    };
                    for family in families {
                        // What cannot be sent is lost; the next message needs another connection.
                        client = store.send(client.take(), family, &text).ok();
                    }
                }
            }
        })?;
        Ok(sender)
    }
}

impl MessageStore {
    fn connect(&self) -> io::Result<StoreClient> {
        StoreClient::connect(&self.host, self.port, &mut patience(REQUEST))
    }

    fn key(&self, family: &str, number: i64) -> Vec<u8> {
        wire_key(&self.run_id, &format!("{family}{number}"))
    }

    fn send(&self, client: Option<StoreClient>, family: &str, text: &str) -> io::Result<StoreClient> {
        let mut client = client.map_or_else(|| self.connect(), Ok)?;
        let message = NodeMessage { node: self.node, text: text.to_owned() };
        // Serialization of this type cannot fail.
        let message = serde_json::to_vec(&message).unwrap_or_default();
        let count = wire_key(&self.run_id, &format!("{family}count"));
        for _ in 0..MOST_ATTEMPTS {
            let number = client.add(&count, 1, &mut patience(REQUEST))?;
            let stored = client.set_if_missing(&self.key(family, number), &message, &mut patience(REQUEST))?;
            self.fill_gaps(&mut client, (family, number))?;
            if stored == message {
                break;
            }
        }
        Ok(client)
    }

    /// A sender that dies between taking a number and writing its message leaves a gap, at which receivers would wait for ever. Each
    /// later sender looks for such gaps among the last numbers, because the next one may die as well.
    fn fill_gaps(&self, client: &mut StoreClient, (family, number): (&str, i64)) -> io::Result<()> {
        let before: Vec<Vec<u8>> =
            (number.saturating_sub(LOOKED_AT).max(1)..number).map(|at| self.key(family, at)).collect();
        if before.is_empty() {
            return Ok(());
        }
        match client.wait(&before.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut patience(WRITE)) {
            // They were taken before this wait began, so each has had that time.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => before
                .iter()
                .try_for_each(|key| client.set_if_missing(key, NO_MESSAGE, &mut patience(REQUEST)).map(drop)),
            other => other,
        }
    }

    /// Receives until the store cannot be reached any more.
    fn receive(&self, listener: &QuestionListener) {
        let family = if self.node == 0 { codec::MESSAGES_TO_FIRST } else { codec::MESSAGES };
        let mut number = 1;
        let ended = loop {
            // Not for longer than a request may take: another job's store may be there later.
            let mut client = match self.connect() {
                Ok(client) => client,
                Err(error) => break error,
            };
            while self.receive_one(&mut client, (family, number), listener).is_ok() {
                number += 1;
            }
            // It cannot fail while there is time.
            let _ = tcp::pause(RECONNECT_PAUSE, &mut patience(REQUEST));
        };
        debug!("no messages of other nodes are received any more: {ended}");
    }

    fn receive_one(
        &self,
        client: &mut StoreClient,
        (family, number): (&str, i64),
        listener: &QuestionListener,
    ) -> io::Result<()> {
        let key = self.key(family, number);
        client.begin_wait(&key, &mut patience(REQUEST))?;
        while poll(&mut [PollFd::new(client.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) == Err(nix::Error::EINTR) {
        }
        client.end_wait(&mut patience(REQUEST))?;
        let text = client.get(&key, &mut patience(REQUEST))?;
        // Any process that reaches the store may have written it.
        let message = serde_json::from_slice(&text).ok();
        let message = message.filter(|message: &NodeMessage| message.text.len() <= MAX_QUESTION);
        if let Some(NodeMessage { node, text }) = message.filter(|message| message.node != self.node) {
            listener(QuestionEvent::Asked { asker: node.to_string(), id: number.to_string(), text });
        }
        Ok(())
    }
}
