//! A node's session at etcd: its identity, and the requests that the session thread and the leader make.

use super::event::SessionEvent;
use super::gateway::client::{EtcdCaller, EtcdError, NOT_FOUND};
use super::gateway::codec::{self, JobKeys, MemberList};
use super::watch::{WatchEvent, WatchHandle};
use crossbeam_channel::Sender;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

pub struct EtcdSession {
    pub caller: EtcdCaller,
    pub keys: JobKeys,
    pub id: String,
    /// The time without a heartbeat before contact is considered lost.
    pub heartbeat: Duration,
    /// The time to live of a node's lease: not shorter.
    pub ttl: Duration,
    /// Nodes campaign at random times within this span when there is no leader.
    pub campaign_spread: Duration,
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
        let started = WatchHandle::start(&self.caller.client, prefix, (revision, self.heartbeat), on_event);
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

    /// Revokes the node's lease. If no node is left, deletes all keys and revokes the job's lease.
    pub fn clear(&self, lease: i64, job_lease: i64) -> Result<(), EtcdError> {
        self.revoke(lease)?;
        let delete_all = json!({ "request_delete_range": codec::range(&self.keys.base) });
        let no_nodes = codec::is_empty(&self.keys.nodes());
        let response = self.call("txn", &json!({ "compare": [no_nodes], "success": [delete_all] }))?;
        if codec::has_succeeded(&response) && job_lease != 0 {
            self.revoke(job_lease)?;
        }
        Ok(())
    }

    fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        match self.caller.call("/v3/lease/revoke", &json!({ "ID": lease.to_string() })) {
            Ok(_) | Err(EtcdError::Status { code: NOT_FOUND, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
