//! A node's session at etcd: its identity, and the requests that the session thread and the leader make.

use super::config::EtcdConfig;
use super::event::SessionEvent;
use super::gateway::client::{EtcdCaller, EtcdError, NOT_FOUND};
use super::gateway::codec::{self, JobKeys, MemberList};
use super::gateway::watch::{WatchEvent, WatchHandle};
use crossbeam_channel::Sender;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

/// The job's lease as a multiple of a node's: another leader takes it over long before it expires.
const JOB_LEASE_FACTOR: u32 = 12;
const MIN_JOB_LEASE: Duration = Duration::from_secs(60);
/// When there is no leader, nodes campaign at random times within a span that grows with the number of nodes, so that a few do
/// before all others see that there is one. The first of N nodes campaigns after an Nth of the span.
const CAMPAIGN_SPREAD: Duration = Duration::from_millis(50);
const MAX_CAMPAIGN_SPREAD: Duration = Duration::from_secs(1);
const CAMPAIGN_SPREAD_OF_A_NODE: Duration = Duration::from_micros(500);

/// The times of a node's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTimes {
    /// The time without a heartbeat before contact is considered lost.
    pub heartbeat: Duration,
    /// The time to live of a node's lease: not shorter.
    pub ttl: Duration,
    /// The time to live of the job's lease: the state is still there when all nodes return from an outage that their ranks survive.
    pub job_ttl: Duration,
    /// Nodes campaign at random times within this span when there is no leader.
    pub campaign_spread: Duration,
}

impl SessionTimes {
    /// The times of a node of this job.
    pub fn of(config: &EtcdConfig) -> Self {
        let ttl = config.lease + config.extra_time_to_live;
        let outage = config.lease + config.loss_timeout;
        let spread = CAMPAIGN_SPREAD_OF_A_NODE.saturating_mul(u32::try_from(config.nodes).unwrap_or(u32::MAX));
        Self {
            heartbeat: config.lease,
            ttl,
            job_ttl: (ttl * JOB_LEASE_FACTOR).max(MIN_JOB_LEASE).max(outage * 2),
            campaign_spread: spread.clamp(CAMPAIGN_SPREAD, MAX_CAMPAIGN_SPREAD),
        }
    }
}

pub struct EtcdSession {
    pub caller: EtcdCaller,
    pub keys: JobKeys,
    pub id: String,
    pub times: SessionTimes,
    /// The job's lease, for the keep-alive thread; 0: another node keeps it.
    pub job_lease: Arc<AtomicI64>,
    /// Receives what watches see.
    pub events: Sender<SessionEvent>,
}

impl EtcdSession {
    pub fn own_key(&self) -> String {
        self.keys.node(&self.id)
    }

    pub fn call(&self, method: &str, request: &Value) -> Result<Value, EtcdError> {
        self.caller.call(&format!("/v3/kv/{method}"), request)
    }

    /// Watches keys with this prefix for changes after that revision. One that fails for a heartbeat timeout reports that.
    pub fn watch(
        &self,
        prefix: String,
        revision: i64,
        on_event: impl Fn(WatchEvent) + Send + 'static,
    ) -> Result<WatchHandle, EtcdError> {
        let started =
            WatchHandle::start_checked(&self.caller.client, prefix, (revision, self.times.heartbeat), on_event);
        started.map_err(|error| EtcdError::Unreachable(error.to_string()))
    }

    /// Reads a members' list; `None`: it has been replaced.
    pub fn read_members(&self, list: &MemberList) -> Result<Option<String>, EtcdError> {
        let mut text = String::new();
        for number in 0..list.pieces {
            let response = self.call("range", &codec::get(&self.keys.piece(&list.version, number)))?;
            let Some(piece) = codec::key_values(&response).pop() else { return Ok(None) };
            text.push_str(&piece.value);
        }
        Ok(Some(text))
    }

    /// Whether a node had said that it leaves when its keys went, in this revision (0: unknown).
    pub fn had_left(&self, id: &str, gone: i64) -> bool {
        let before = codec::get_at(&self.keys.node(id), gone - 1);
        let record = if gone > 1 { self.call("range", &before).ok() } else { None };
        record.is_some_and(|record| codec::key_values(&record).iter().any(|kv| kv.value.is_empty()))
    }

    /// Revokes the node's lease. If no node is left, deletes all keys and revokes the job's lease.
    pub fn clear(&self, lease: i64, job_lease: i64) -> Result<(), EtcdError> {
        clear(&self.caller, &self.keys, lease, job_lease)
    }
}

/// Says for a node that it leaves, by an empty record, and revokes its lease.
pub fn leave(caller: &EtcdCaller, keys: &JobKeys, id: &str, lease: i64) -> Result<(), EtcdError> {
    match caller.call("/v3/kv/put", &codec::put(&keys.node(id), "", lease)) {
        Ok(_) => clear(caller, keys, lease, 0),
        // The lease has lapsed.
        Err(EtcdError::Status { code: NOT_FOUND, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn clear(caller: &EtcdCaller, keys: &JobKeys, lease: i64, job_lease: i64) -> Result<(), EtcdError> {
    revoke(caller, lease)?;
    let delete_all = json!({ "request_delete_range": codec::range(&keys.base) });
    let no_nodes = codec::is_empty(&keys.nodes());
    let response = caller.call("/v3/kv/txn", &json!({ "compare": [no_nodes], "success": [delete_all] }))?;
    if codec::has_succeeded(&response) && job_lease != 0 {
        revoke(caller, job_lease)?;
    }
    Ok(())
}

fn revoke(caller: &EtcdCaller, lease: i64) -> Result<(), EtcdError> {
    match caller.call("/v3/lease/revoke", &json!({ "ID": lease.to_string() })) {
        Ok(_) | Err(EtcdError::Status { code: NOT_FOUND, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(lease: u64, loss_timeout: u64, nodes: usize) -> SessionTimes {
        let seconds = Duration::from_secs;
        let config = EtcdConfig::new(Vec::new(), "job");
        SessionTimes::of(&EtcdConfig { lease: seconds(lease), loss_timeout: seconds(loss_timeout), nodes, ..config })
    }

    #[test]
    fn the_jobs_lease_outlives_each_outage_that_ranks_survive() {
        for (lease, loss_timeout, at_least) in [(10, 0, 120), (2, 60, 124), (10, 60, 140), (10, 3600, 7220)] {
            assert_eq!(times(lease, loss_timeout, 2).job_ttl, Duration::from_secs(at_least));
        }
    }

    #[test]
    fn elections_of_more_nodes_spread_over_a_longer_time() {
        for (nodes, spread_ms) in [(1, 50), (100, 50), (1000, 500), (9000, 1000), (usize::MAX, 1000)] {
            assert_eq!(times(10, 0, nodes).campaign_spread, Duration::from_millis(spread_ms));
        }
    }
}
