//! A thread that sees what changes below a key: every change once, in order, whichever endpoint it comes from.

use super::client::{Caller, Client, Fault};
use super::keeper::Backoff;
use super::wire::Line;
use super::words::{self, Change, Kv, changes, number};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A message that is longer is not etcd's: it sends them in fragments of 1.5 MiB or so, which base64 makes a third longer.
const LONGEST: u64 = 16 << 20;

/// What a watch has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// These changes.
    Changes(Vec<Change>),
    /// This is all there was at that revision: what was before has been forgotten by etcd.
    All(Vec<Kv>, i64),
    /// Something may have changed before it began: that is to be asked for.
    Behind,
    /// It cannot be watched.
    Refused(String),
}

/// A watch, which ends with this.
pub(super) struct Watch(Arc<Line>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Watch {
    /// Watches what begins with this key after that revision.
    pub(super) fn start(
        client: &Arc<Client>,
        prefix: String,
        revision: i64,
        tell: impl Fn(Seen) + Send + 'static,
    ) -> std::io::Result<Self> {
        let caller = Caller::streaming(client);
        let line = Arc::clone(&caller.line);
        super::tie::spawn("etcd-watch", move || Watching { caller, prefix, revision, began: false, tell }.run())?;
        Ok(Self(line))
    }
}

struct Watching<T> {
    caller: Caller,
    prefix: String,
    revision: i64,
    /// Whether there was a stream before.
    began: bool,
    tell: T,
}

/// Why a stream has ended.
enum End {
    /// It is to be begun anew.
    Broken(Fault),
    /// What follows has been forgotten.
    Forgotten,
}

impl<T: Fn(Seen)> Watching<T> {
    fn run(mut self) {
        let mut backoff = Backoff::default();
        while !self.caller.line.is_closed() {
            let before = self.revision;
            let ended = match self.stream() {
                End::Broken(fault) => fault,
                End::Forgotten => match self.caller.range(&self.prefix) {
                    Ok((kvs, revision)) => {
                        self.revision = revision;
                        (self.tell)(Seen::All(kvs, revision));
                        continue;
                    }
                    Err(fault) => fault,
                },
            };
            match ended {
                Fault::Closed => return,
                Fault::Refused(why) => return (self.tell)(Seen::Refused(why)),
                Fault::Contact(_) | Fault::No { .. } => {}
            }
            if self.revision > before {
                backoff = Backoff::default();
            }
            if self.caller.line.rest(backoff.next()) {
                return;
            }
        }
    }

    /// Sees changes until the stream ends.
    fn stream(&mut self) -> End {
        // The first one begins now. Etcd keeps watches that begin in the past waiting, up to 100 ms (its loop for those that
        // are behind); a stream that is begun anew has to miss nothing.
        let first = if self.began { words::first_after(self.revision) } else { "0".to_owned() };
        let question = json!({ "create_request": {
            "key": words::coded(&self.prefix), "range_end": words::coded(&words::end(&self.prefix)),
            "start_revision": first, "progress_notify": true, "fragment": true,
        } });
        let response = match self.caller.stream("/v3/watch", &question) {
            Ok(response) => response,
            Err(fault) => return End::Broken(fault),
        };
        let mut reader = BufReader::new(response.into_body().into_reader());
        let mut line = Vec::new();
        loop {
            line.clear();
            let ended = || End::Broken(Fault::Contact("the watch has ended".to_owned()));
            match reader.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
                Ok(1..) if line.ends_with(b"\n") => {}
                Ok(count) if count as u64 == LONGEST => return End::Forgotten,
                Ok(_) | Err(_) => return ended(),
            }
            let Ok(message) = serde_json::from_slice::<Value>(&line) else { return ended() };
            if let Some(error) = message["error"]["message"].as_str() {
                return End::Broken(Fault::Contact(error.to_owned()));
            }
            if let Some(end) = self.hear(&message["result"]) {
                return end;
            }
            // From here on silence means that nothing happens; a server that hangs is noticed by who keeps the lease.
            self.caller.line.streams.store(true, Ordering::Relaxed);
        }
    }

    fn hear(&mut self, result: &Value) -> Option<End> {
        if number(&result["compact_revision"]) > 0 {
            return Some(End::Forgotten);
        }
        if result["canceled"].as_bool().unwrap_or(false) {
            let why = result["cancel_reason"].as_str().unwrap_or("the watch was canceled");
            return Some(End::Broken(Fault::Contact(why.to_owned())));
        }
        if !std::mem::replace(&mut self.began, true) && words::revision(result) > self.revision {
            self.revision = words::revision(result);
            (self.tell)(Seen::Behind);
        }
        let changes = changes(result);
        let is_whole = !result["fragment"].as_bool().unwrap_or(false);
        // A first message may be ahead of what is still to be told.
        if is_whole && !result["created"].as_bool().unwrap_or(false) {
            self.revision = self.revision.max(words::revision(result));
        }
        if !changes.is_empty() {
            (self.tell)(Seen::Changes(changes));
        }
        None
    }
}
