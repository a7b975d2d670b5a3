//! Lease keep-alive: a thread that obtains a lease and keeps it, however slow other requests are. So it is the first to notice that
//! contact is lost.

use super::event::SessionEvent;
use super::gateway::client::{EtcdCaller, EtcdError, NOT_FOUND};
use super::gateway::codec::number;
use super::retry::RetryDelay;
use crate::rendezvous::lease::{NodeLease, next_number};
use crate::sys::clock;
use crossbeam_channel::Sender;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The shortest time for an attempt, however late it is.
const MIN_ATTEMPT: Duration = Duration::from_millis(200);

/// Keeps a node's lease, and the job's lease while the node leads.
pub struct LeaseKeepAlive {
    pub caller: EtcdCaller,
    /// The time without a heartbeat before contact is considered lost.
    pub heartbeat: Duration,
    /// The lease's time to live: not shorter.
    pub ttl: Duration,
    pub node_lease: Arc<NodeLease>,
    pub to_session: Sender<SessionEvent>,
    /// The job's lease; 0: another node keeps it.
    pub job_lease: Arc<AtomicI64>,
    /// The node's lease in etcd; 0: none.
    pub own_lease: Arc<AtomicI64>,
}

impl LeaseKeepAlive {
    pub fn run(self) {
        let client = &self.caller.client;
        let (mut lease, mut is_lost, mut retry) = (0, false, RetryDelay::default());
        // Contact holds until then: lost contact is reported before it ends the ranks (`LeaseTerms::ranks_run_for`).
        let mut holds_until = Duration::ZERO;
        let mut number = 0_u16;
        loop {
            let (sent, sent_boot) = (client.now(), clock::boot());
            let until =
                if is_lost || lease == 0 { sent + self.heartbeat / 3 } else { holds_until.max(sent + MIN_ATTEMPT) };
            let kept = if lease == 0 { grant(&self.caller, until, self.ttl) } else { self.keep(lease, until) };
            let pause = match kept {
                Ok(0) => {
                    lease = 0;
                    self.own_lease.store(0, Ordering::Relaxed);
                    self.node_lease.set_name(0);
                    self.send(SessionEvent::Expired);
                    continue;
                }
                Ok(kept) => {
                    holds_until = sent + self.heartbeat * 13 / 20;
                    client.hold_until(holds_until);
                    if kept != lease {
                        number = next_number(number);
                        self.own_lease.store(kept, Ordering::Relaxed);
                        self.node_lease.set_name(kept);
                    }
                    self.node_lease.renewed(number, sent_boot);
                    if kept != lease {
                        self.send(SessionEvent::Lease(kept, number));
                    } else if is_lost {
                        self.send(SessionEvent::Contact);
                    }
                    (lease, is_lost, retry) = (kept, false, RetryDelay::default());
                    let next = sent + self.heartbeat / 3;
                    self.keep_job_lease(next.max(client.now() + self.heartbeat / 12));
                    next.saturating_sub(client.now())
                }
                Err(EtcdError::Closed) => return,
                Err(EtcdError::Refused(why) | EtcdError::Superseded(why)) => {
                    return self.send(SessionEvent::Refused(why));
                }
                Err(error @ (EtcdError::Unreachable(_) | EtcdError::Denied(_) | EtcdError::Status { .. })) => {
                    is_lost = true;
                    self.send(SessionEvent::Lost(error.to_string()));
                    // All nodes are back within a lease after etcd.
                    retry.next().min(self.heartbeat / 3)
                }
            };
            if self.caller.wire.pause(pause) {
                return;
            }
        }
    }

    fn send(&self, event: SessionEvent) {
        // The session may have ended; then this thread is about to end.
        let _ = self.to_session.send(event);
    }

    /// Renews a lease. Returns the lease, or 0 if it has expired.
    fn keep(&self, lease: i64, until: Duration) -> Result<i64, EtcdError> {
        match self.caller.call_until(until, "/v3/lease/keepalive", &json!({ "ID": lease.to_string() })) {
            Ok(response) if number(&response["result"]["TTL"]) > 0 => Ok(lease),
            Ok(Value::Object(response)) if response.contains_key("error") => Err(EtcdError::Unreachable(
                response["error"]["message"].as_str().unwrap_or("the lease was not renewed").to_owned(),
            )),
            Ok(_) | Err(EtcdError::Status { code: NOT_FOUND, .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn keep_job_lease(&self, until: Duration) {
        let lease = self.job_lease.load(Ordering::Relaxed);
        if lease != 0 {
            // This lease is long: if the renewal fails, the next one is early enough.
            let _ = self.keep(lease, until);
        }
    }
}

/// Obtains a new lease.
pub fn grant(caller: &EtcdCaller, until: Duration, ttl: Duration) -> Result<i64, EtcdError> {
    // In whole seconds.
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    let response = caller.call_until(until, "/v3/lease/grant", &json!({ "TTL": seconds.to_string() }))?;
    match number(&response["ID"]) {
        0 => Err(EtcdError::Unreachable("the lease was not granted".to_owned())),
        lease => Ok(lease),
    }
}
