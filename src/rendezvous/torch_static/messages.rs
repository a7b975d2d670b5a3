//! Messages from one node of a static rendezvous to all others, through node 0's store: each is a key with the next number. A thread
//! waits for that key without a time limit, so an idle job wakes up for nothing.

use crate::net::thread;
use crate::rendezvous::questions::{MAX_QUESTION, QuestionEvent, QuestionListener, QuestionMessage};
use crate::rendezvous::torch_static::codec;
use crate::rendezvous::torch_static::nodes::{REQUEST, StaticPeers, patience};
use crate::rendezvous::torch_store::client::{StoreClient, wire_key};
use crossbeam_channel::{Sender, bounded};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::AsFd;
use tracing::debug;

/// Messages that may wait for the store.
const MOST_WAITING: usize = 64;

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
    /// Sends messages (`QuestionMessage::Tell`) to all other nodes and receives theirs from now on. To be called once, while the store is
    /// served.
    pub fn connect_messages(&self, listener: QuestionListener) -> io::Result<Sender<QuestionMessage>> {
        let (host, port) = self.address.clone();
        let store = MessageStore { host, port, run_id: self.run_id.clone(), node: self.node };
        let (sender, messages) = bounded(MOST_WAITING);
        let receiving = store.clone();
        thread::spawn("rlaunch-hear", move || receiving.receive(&listener))?;
        thread::spawn("rlaunch-tell", move || {
            let mut client = None;
            for message in messages {
                if let QuestionMessage::Tell { text, .. } = message {
                    // What cannot be sent is lost; the next message needs another connection.
                    client = store.send(client.take(), &text).ok();
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

    fn key(&self, number: i64) -> Vec<u8> {
        wire_key(&self.run_id, &format!("{}{number}", codec::MESSAGES))
    }

    fn send(&self, client: Option<StoreClient>, text: &str) -> io::Result<StoreClient> {
        let mut client = client.map_or_else(|| self.connect(), Ok)?;
        let message = NodeMessage { node: self.node, text: text.to_owned() };
        let number = client.add(&wire_key(&self.run_id, codec::MESSAGE_COUNT), 1, &mut patience(REQUEST))?;
        // Serialization of this type cannot fail.
        let text = serde_json::to_vec(&message).unwrap_or_default();
        client.set(&self.key(number), &text, &mut patience(REQUEST))?;
        Ok(client)
    }

    /// Receives until the store is gone.
    fn receive(&self, listener: &QuestionListener) {
        let ended = self.connect().and_then(|mut client| {
            for number in 1.. {
                self.receive_one(&mut client, number, listener)?;
            }
            Ok(())
        });
        if let Err(error) = ended {
            debug!("no messages of other nodes are received any more: {error}");
        }
    }

    fn receive_one(&self, client: &mut StoreClient, number: i64, listener: &QuestionListener) -> io::Result<()> {
        let key = self.key(number);
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
