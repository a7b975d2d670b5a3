//! What the master answers to requests, and to what nodes say.

use super::connection::Speaks;
use super::frame::{self, Body, FromMaster, FromNode, Lines};
use super::http::{self, Message};
use super::hub::{Hub, say};
use super::seal::{self, Seal, Side};
use std::time::Duration;
use tracing::warn;

/// How many things are warned of.
const MOST_WARNINGS: usize = 64;
/// Bodies that are sent together with their heads.
const SMALL: usize = 16 * 1024;

impl Hub {
    pub(super) fn request(&mut self, client: u64, message: Message, now: Duration) {
        let [method, path, _] = &message.first;
        if method == "GET" && path == frame::PATH && message.upgrades_to(frame::PROTOCOL) {
            return self.upgrade(client, &message);
        }
        let (mut more, mut challenge) = (String::new(), None);
        if let Some(key) = self.config.key.as_deref()
            && !(method == "GET" && path == "/healthy")
        {
            let given = message.header("authorization").and_then(|text| text.strip_prefix("RLAUNCH "));
            let (nonce, proof) = given.and_then(|text| text.split_once(' ')).unwrap_or_default();
            if !seal::proves(key, method, path, nonce, &message.body, proof) || !self.challenges.take(nonce, now) {
                more = format!("WWW-Authenticate: RLAUNCH {}\r\n", self.challenges.give(now));
                let why = b"this job has a key, and Paddle's own launchers cannot prove that they have it\n";
                return self.answer(client, &message, 401, why.to_vec(), &more);
            }
            challenge = Some(nonce.to_owned());
        }
        let (status, body) = self.key_value(&message, now);
        if let (Some(key), Some(challenge)) = (self.config.key.as_deref(), challenge) {
            more = format!("Authentication-Info: {}\r\n", seal::answer(key, &challenge, status, &body));
        }
        self.answer(client, &message, status, body, &more);
    }

    fn answer(&mut self, client: u64, message: &Message, status: u16, body: Vec<u8>, more: &str) {
        let Some(connection) = self.clients.get_mut(&client) else { return };
        let keep = message.keeps();
        let body = if message.first[0] == "HEAD" { Vec::new() } else { body };
        let mut head = http::answer(status, body.len(), keep, more);
        if body.len() <= SMALL {
            head.extend_from_slice(&body);
            connection.push(head);
        } else {
            connection.push(head);
            connection.push(body);
        }
        connection.ends = !keep;
    }

    /// Paddle's protocol.
    fn key_value(&mut self, message: &Message, now: Duration) -> (u16, Vec<u8>) {
        let path = &message.first[1];
        let (status, change) = match message.first[0].as_str() {
            "GET" => {
                let found = self.kv.get(path, &self.decide.shown_to_paddle());
                return found.map_or((404, Vec::new()), |body| (200, body));
            }
            "POST" | "PUT" => self.kv.put(path, message.body.clone(), now),
            "DELETE" => self.kv.delete(path),
            "HEAD" => (405, None),
            _ => (501, None),
        };
        if status == 409 {
            let key = path.rsplitn(3, '/').collect::<Vec<_>>();
            let name = key.get(1).copied().unwrap_or_default();
            self.warn_once(format!(
                "{name}, a node that Paddle's own launcher has started, has come too late: the job runs without it"
            ));
        }
        let Some(change) = change else { return (status, Vec::new()) };
        self.change(change.clone(), now);
        self.kv.sweep(now).into_iter().for_each(|gone| self.change(gone, now));
        self.decide(now);
        match self.kv.refused(&change) {
            Some(why) => {
                let text = format!("a node that Paddle's own launcher has started cannot take part: {why}");
                self.warn_once(text);
                (409, Vec::new())
            }
            None => (status, Vec::new()),
        }
    }

    /// Its launcher tries again ten times a second.
    fn warn_once(&mut self, text: String) {
        if self.warned.len() < MOST_WARNINGS && !self.warned.contains(&text) {
            warn!("{text}");
            self.warned.insert(text);
        }
    }

    fn upgrade(&mut self, client: u64, message: &Message) {
        let Some(connection) = self.clients.get_mut(&client) else { return };
        let (Some(theirs), Ok(own)) = (message.header(frame::NONCE), seal::nonce()) else {
            connection.ends = true;
            return connection.push(http::answer(400, 0, false, ""));
        };
        let mut seal = Seal::new(self.config.key.as_deref(), theirs, &own, Side::Master);
        let keyed = if self.config.key.is_some() { "yes" } else { "no" };
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {}\r\n{}: {own}\r\n{}: {keyed}\r\n\r\n",
            frame::PROTOCOL,
            frame::NONCE,
            frame::KEYED
        );
        connection.push(head.into_bytes());
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let lease_ms = u64::try_from(self.config.lease.as_millis()).unwrap_or(u64::MAX);
        let (job, instance) = (self.config.job.clone(), self.instance.clone());
        connection.push(Body::of(&FromMaster::Hello { version, job, instance, lease_ms }).line(&mut seal));
        let mut lines = Lines::default();
        if let Speaks::Http(parser) =
            std::mem::replace(&mut connection.speaks, Speaks::Http(http::Parser::of_requests()))
        {
            lines.feed(&parser.rest());
        }
        connection.speaks = Speaks::Link { lines, seal, id: None, kept: 0 };
    }

    /// A node says something.
    pub(super) fn hear(&mut self, client: u64, said: FromNode, now: Duration) {
        let Some(connection) = self.clients.get_mut(&client) else { return };
        let own = connection.id().map(str::to_owned);
        match (own, said) {
            (None, FromNode::Hello { job, .. }) if job != self.config.job => {
                let why = format!("it is of job {job}, and this is the master of job {}", self.config.job);
                self.refuse(client, &why);
            }
            (None, FromNode::Hello { id, .. }) if !frame::is_id(&id) => self.refuse(client, "its id is no id"),
            (_, FromNode::Hello { record, .. } | FromNode::Record { record }) if record.len() > frame::MAX_RECORD => {
                self.refuse(client, "its record is too long");
            }
            (None, FromNode::Hello { id, record, .. }) => {
                if let Speaks::Link { id: own, .. } = &mut connection.speaks {
                    *own = Some(id.clone());
                }
                if let Some(told) = &self.told {
                    say(connection, told);
                }
                connection.keep(record.len());
                self.is_here(&id);
                self.guests.remove(&client);
                self.sweep = self.sweep.min(now + self.config.lease);
                // It has come back before its old connection was seen to end.
                if let Some(old) = self.links.insert(id.clone(), client) {
                    self.close(old);
                }
                self.decide.record(&id, &record, now);
            }
            (Some(id), FromNode::Record { record }) => {
                connection.keep(record.len());
                self.decide.record(&id, &record, now);
            }
            (Some(_), FromNode::Ping) => say(connection, &Body::of(&FromMaster::Pong)),
            (Some(_), FromNode::Leave) => connection.ends = true,
            (Some(_), FromNode::Hello { .. }) | (None, _) => connection.ends = true,
        }
    }

    /// Hangs up for good, and says why.
    pub(super) fn refuse(&mut self, client: u64, why: &str) {
        let Some(connection) = self.clients.get_mut(&client) else { return };
        say(connection, &Body::of(&FromMaster::Refused { why: why.to_owned() }));
        connection.ends = true;
    }
}
