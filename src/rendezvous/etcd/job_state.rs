//! The keys below `board/` as a node knows them, and the check that they are still those of the node's job. Pure.

use super::gateway::client::EtcdError;
use super::gateway::codec::{JobKeys, KeyValue, StoredState};

#[derive(Default)]
pub struct JobStateReader {
    pub leader: Option<KeyValue>,
    /// The revision in which the last leader's key went; 0: unknown.
    pub leader_gone: i64,
    pub state: Option<KeyValue>,
    /// Changes up to this revision are known.
    pub revision: i64,
    /// The lease of the job whose members have been seen; 0: none yet. A job has one lease from its first state to its end, and
    /// etcd never grants the same lease twice.
    job_lease: i64,
}

impl JobStateReader {
    /// Takes note of all keys at a revision.
    pub fn read(&mut self, keys: &JobKeys, kvs: &[KeyValue], revision: i64) {
        let find = |key: String| kvs.iter().find(|kv| kv.key == key).cloned();
        (self.leader, self.state, self.revision) = (find(keys.leader()), find(keys.state()), revision);
    }

    /// The state that the leader wrote, and the revision that wrote it. A state of another leader belongs to an earlier run.
    pub fn current(&mut self) -> Result<Option<(i64, StoredState)>, EtcdError> {
        let (Some(leader), Some(state)) = (&self.leader, &self.state) else { return Ok(None) };
        let Ok(stored) = serde_json::from_str::<StoredState>(&state.value) else { return Ok(None) };
        if stored.term != leader.created {
            return Ok(None);
        }
        let (job_lease, written) = (state.lease, state.written);
        self.check(job_lease)?;
        if stored.members.is_some() {
            self.job_lease = job_lease;
        }
        Ok(Some((written, stored)))
    }

    /// Whether there is a newer state than that of this revision. If its leader is gone, another one publishes it again.
    pub fn has_newer(&self, revision: i64) -> bool {
        self.state.as_ref().is_some_and(|state| state.written > revision)
    }

    /// Checks by its lease that this may be the job that the node takes part in.
    pub fn check(&self, job_lease: i64) -> Result<(), EtcdError> {
        if self.job_lease == 0 || job_lease == self.job_lease {
            return Ok(());
        }
        let why =
            "etcd: the job of this node does not exist any more: it ended without this node, or etcd has lost its data";
        Err(EtcdError::Superseded(why.to_owned()))
    }
}
