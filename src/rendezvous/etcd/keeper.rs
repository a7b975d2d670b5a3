//! A thread that has a lease and keeps it, whatever else is slow; so it is the first to know when there is no contact.

use super::client::{Caller, Fault, NOT_FOUND};
use super::event::Event;
use super::words::number;
use crossbeam_channel::Sender;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// An attempt lasts so long at least, however late it comes.
const LEAST: Duration = Duration::from_millis(200);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long to wait before the next attempt: longer each time, and never the same on all nodes.
#[derive(Clone, Debug)]
pub(super) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl Backoff {
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        pause.mul_f64(0.75 + fastrand::f64() / 2.0)
    }
}

/// Keeps a node's lease, and the job's while the node leads.
pub(super) struct Keeper {
    pub(super) caller: Caller,
    pub(super) time: Duration,
    pub(super) events: Sender<Event>,
    /// The job's lease; 0: another node keeps it.
    pub(super) jobs: Arc<AtomicI64>,
}

impl Keeper {
    pub(super) fn run(self) {
        let client = &self.caller.client;
        let (mut lease, mut lost, mut backoff) = (0, false, Backoff::default());
        // Until when contact holds. A node that is cut off has to know when two thirds of its lease are over, so that its ranks
        // have ended when all are: a sixtieth is for telling it.
        let mut holds_until = Duration::ZERO;
        loop {
            let sent = client.now();
            let until = if lost || lease == 0 { sent + self.time / 3 } else { holds_until.max(sent + LEAST) };
            let done = if lease == 0 { grant(&self.caller, until, self.time) } else { self.keep(lease, until) };
            let pause = match done {
                Ok(0) => {
                    lease = 0;
                    self.say(Event::Expired);
                    continue;
                }
                Ok(kept) => {
                    holds_until = sent + self.time * 13 / 20;
                    client.hold_until(holds_until);
                    if kept != lease {
                        self.say(Event::Lease(kept));
                    } else if lost {
                        self.say(Event::Contact);
                    }
                    (lease, lost, backoff) = (kept, false, Backoff::default());
                    let next = sent + self.time / 3;
                    self.keep_jobs(next.max(client.now() + self.time / 12));
                    next.saturating_sub(client.now())
                }
                Err(Fault::Closed) => return,
                Err(Fault::Refused(why)) => return self.say(Event::Refused(why)),
                Err(Fault::Contact(why) | Fault::No { message: why, .. }) => {
                    lost = true;
                    self.say(Event::Lost(why));
                    // All are back within a lease of etcd.
                    backoff.next().min(self.time / 3)
                }
            };
            if self.caller.line.rest(pause) {
                return;
            }
        }
    }

    /// Who is told may have gone; then this thread is about to.
    fn say(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// The lease, or 0 if it has run out.
    fn keep(&self, lease: i64, until: Duration) -> Result<i64, Fault> {
        match self.caller.call_until(until, "/v3/lease/keepalive", &json!({ "ID": lease.to_string() })) {
            Ok(answer) if number(&answer["result"]["TTL"]) > 0 => Ok(lease),
            Ok(Value::Object(answer)) if answer.contains_key("error") => {
                Err(Fault::Contact(answer["error"]["message"].as_str().unwrap_or("the lease was not kept").to_owned()))
            }
            Ok(_) | Err(Fault::No { code: NOT_FOUND, .. }) => Ok(0),
            Err(fault) => Err(fault),
        }
    }

    fn keep_jobs(&self, until: Duration) {
        let jobs = self.jobs.load(Ordering::Relaxed);
        if jobs != 0 {
            // It is long: the next time is early enough.
            let _ = self.keep(jobs, until);
        }
    }
}

/// A new lease, for so long.
pub(super) fn grant(caller: &Caller, until: Duration, time: Duration) -> Result<i64, Fault> {
    // In whole seconds.
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let answer = caller.call_until(until, "/v3/lease/grant", &json!({ "TTL": seconds.to_string() }))?;
    match number(&answer["ID"]) {
        0 => Err(Fault::Contact("the lease was not granted".to_owned())),
        lease => Ok(lease),
    }
}
