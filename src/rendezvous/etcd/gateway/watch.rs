//! A thread that watches keys with a prefix. It reports every change once, in order, whichever endpoint it comes from.

use super::client::{EtcdCaller, EtcdClient, EtcdError};
use super::codec;
use super::codec::{KeyValue, WatchChange, changes, number};
use super::watch_check::WatchCheck;
use super::wire::WireHandle;
use crate::net::thread;
use crate::rendezvous::etcd::retry::{LONGEST_PAUSE, RetryTimer};
use crate::sys::clock;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Longer messages are not etcd's: it sends fragments of about 1.5 MiB, which base64 makes a third longer.
const MAX_MESSAGE: u64 = 16 << 20;

/// What a watch reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// Changes.
    Changes(Vec<WatchChange>),
    /// All keys at a revision: etcd has compacted the changes before.
    All(Vec<KeyValue>, i64),
    /// Keys may have changed before the watch has_begun: they have to be read.
    Behind,
    /// The keys cannot be watched.
    Refused(String),
    /// They could not be watched for longer than the patience, with the last reason. Reported again with each attempt.
    Failing(String),
    /// They can be watched again.
    Works,
}

/// A watch. Dropping it ends it.
pub struct WatchHandle {
    wire: Arc<WireHandle>,
    /// The connection of its check.
    check: Option<Arc<WireHandle>>,
    delivered: Arc<AtomicI64>,
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        self.wire.close();
        self.check.iter().for_each(|check| check.close());
    }
}

impl WatchHandle {
    /// The same as `start`. It is opened again if requests find changes that it does not deliver.
    pub fn start_checked(
        client: &Arc<EtcdClient>,
        prefix: String,
        from: (i64, Duration),
        on_event: impl Fn(WatchEvent) + Send + 'static,
    ) -> std::io::Result<Self> {
        let mut watch = Self::spawn(client, prefix.clone(), from, false, on_event)?;
        let (stream, delivered) = (Arc::clone(&watch.wire), Arc::clone(&watch.delivered));
        let check = WatchCheck { caller: EtcdCaller::new(client), prefix, stream, delivered, interval: from.1 };
        watch.check = Some(check.start()?);
        Ok(watch)
    }

    /// Watches keys with this prefix for changes after that revision; reports failures that last longer than `patience`.
    pub fn start(
        client: &Arc<EtcdClient>,
        prefix: String,
        from: (i64, Duration),
        on_event: impl Fn(WatchEvent) + Send + 'static,
    ) -> std::io::Result<Self> {
        Self::spawn(client, prefix, from, false, on_event)
    }

    /// The same, but etcd itself reports the changes between that revision and the beginning of the watch. That may take it 100 ms.
    pub fn start_after(
        client: &Arc<EtcdClient>,
        prefix: String,
        from: (i64, Duration),
        on_event: impl Fn(WatchEvent) + Send + 'static,
    ) -> std::io::Result<Self> {
        Self::spawn(client, prefix, from, true, on_event)
    }

    fn spawn(
        client: &Arc<EtcdClient>,
        prefix: String,
        (revision, patience): (i64, Duration),
        has_begun: bool,
        on_event: impl Fn(WatchEvent) + Send + 'static,
    ) -> std::io::Result<Self> {
        let caller = EtcdCaller::streaming(client);
        let wire = Arc::clone(&caller.wire);
        let delivered = Arc::new(AtomicI64::new(revision));
        let noted = Arc::clone(&delivered);
        thread::spawn("etcd-watch", move || {
            let retry = RetryTimer::default();
            WatchThread {
                caller,
                prefix,
                revision,
                patience,
                delivered: noted,
                has_begun,
                retry,
                opened: None,
                token_at: None,
                is_failing: false,
                on_event,
            }
            .run()
        })?;
        Ok(Self { wire, check: None, delivered })
    }
}

struct WatchThread<T> {
    caller: EtcdCaller,
    prefix: String,
    revision: i64,
    patience: Duration,
    /// `revision`, for the check.
    delivered: Arc<AtomicI64>,
    /// Whether there was a stream before.
    has_begun: bool,
    retry: RetryTimer,
    /// When the stream that there is was opened.
    opened: Option<Duration>,
    /// When it last asked for another token.
    token_at: Option<Duration>,
    /// Whether it has reported that it fails.
    is_failing: bool,
    on_event: T,
}

/// Why a stream has ended.
enum WatchEnd {
    /// It has to be reopened.
    Broken(EtcdError),
    /// Etcd has compacted the next changes.
    Compacted,
}

impl<T: Fn(WatchEvent)> WatchThread<T> {
    fn run(mut self) {
        while !self.caller.wire.is_closed() {
            let ended = match self.stream() {
                WatchEnd::Broken(error) => error,
                WatchEnd::Compacted => match self.caller.range(&self.prefix) {
                    Ok((kvs, revision)) => {
                        self.revision = revision;
                        self.delivered.store(revision, Ordering::Release);
                        (self.on_event)(WatchEvent::All(kvs, revision));
                        continue;
                    }
                    Err(error) => error,
                },
            };
            let why = match ended {
                EtcdError::Closed => return,
                EtcdError::Refused(why) | EtcdError::Superseded(why) => {
                    return (self.on_event)(WatchEvent::Refused(why));
                }
                error @ (EtcdError::Unreachable(_) | EtcdError::Denied(_) | EtcdError::Status { .. }) => {
                    error.to_string()
                }
            };
            let now = clock::now();
            // One that ends as soon as it is open is not opened again at once for ever.
            if self.opened.take().is_some_and(|opened| now - opened >= LONGEST_PAUSE) {
                self.retry.note_success();
            }
            if self.retry.note_failure(now) >= self.patience {
                self.is_failing = true;
                (self.on_event)(WatchEvent::Failing(why));
            }
            if self.caller.wire.pause(self.retry.next().unwrap_or_default().saturating_sub(now)) {
                return;
            }
        }
    }

    /// Reports changes until the stream ends.
    fn stream(&mut self) -> WatchEnd {
        // The first stream begins now: etcd delays watches that begin in the past by up to 100 ms (its loop for watches that
        // are behind). A stream that is reopened has to miss nothing.
        let first = if self.has_begun { codec::first_after(self.revision) } else { "0".to_owned() };
        let request = json!({ "create_request": {
            "key": codec::encode(&self.prefix), "range_end": codec::encode(&codec::range_end(&self.prefix)),
            "start_revision": first, "progress_notify": true, "fragment": true,
        } });
        let response = match self.caller.stream("/v3/watch", &request) {
            Ok(response) => response,
            Err(error) => return WatchEnd::Broken(error),
        };
        let mut reader = BufReader::new(response.into_body().into_reader());
        let mut line = Vec::new();
        loop {
            line.clear();
            let ended = || WatchEnd::Broken(EtcdError::Unreachable("the watch has ended".to_owned()));
            match reader.by_ref().take(MAX_MESSAGE).read_until(b'\n', &mut line) {
                Ok(1..) if line.ends_with(b"\n") => {}
                Ok(count) if count as u64 == MAX_MESSAGE => return WatchEnd::Compacted,
                Ok(_) | Err(_) => return ended(),
            }
            let Ok(message) = serde_json::from_slice::<Value>(&line) else { return ended() };
            if let Some(error) = message["error"]["message"].as_str() {
                return WatchEnd::Broken(EtcdError::Unreachable(error.to_owned()));
            }
            let end = self.handle_message(&message["result"]);
            self.delivered.store(self.revision, Ordering::Release);
            if let Some(end) = end {
                return end;
            }
            self.opened.get_or_insert_with(clock::now);
            self.retry.note_contact();
            if std::mem::take(&mut self.is_failing) {
                (self.on_event)(WatchEvent::Works);
            }
            // From here on silence means that nothing changes. The keep-alive thread notices a server that hangs, and `WatchCheck` a
            // stream that does.
            self.caller.wire.streams.store(true, Ordering::Relaxed);
        }
    }

    fn handle_message(&mut self, result: &Value) -> Option<WatchEnd> {
        if number(&result["compact_revision"]) > 0 {
            return Some(WatchEnd::Compacted);
        }
        if result["canceled"].as_bool().unwrap_or(false) {
            let why = result["cancel_reason"].as_str().unwrap_or("the watch was canceled");
            // A token that is not valid any more looks like a user without the right (etcd issue 12385). Etcd takes its time to
            // check a password, so that it is not asked for one with each attempt.
            let now = clock::now();
            if self.token_at.is_none_or(|at| now - at >= self.patience) {
                self.token_at = Some(now);
                self.caller.renews_token.store(true, Ordering::Relaxed);
            }
            return Some(WatchEnd::Broken(EtcdError::Unreachable(why.to_owned())));
        }
        if !std::mem::replace(&mut self.has_begun, true) && codec::revision(result) > self.revision {
            self.revision = codec::revision(result);
            (self.on_event)(WatchEvent::Behind);
        }
        let changes = changes(result);
        let is_whole = !result["fragment"].as_bool().unwrap_or(false);
        // The revision of the first message may be ahead of changes that are still to be reported.
        if is_whole && !result["created"].as_bool().unwrap_or(false) {
            self.revision = self.revision.max(codec::revision(result));
        }
        if !changes.is_empty() {
            (self.on_event)(WatchEvent::Changes(changes));
        }
        None
    }
}
