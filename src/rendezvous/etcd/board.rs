//! The board as a node knows it, and whether it is still that of the node's job. Pure.

use super::client::Fault;
use super::words::{Keys, Kv, Posted};

/// What is on the board.
#[derive(Default)]
pub(super) struct Board {
    pub(super) leader: Option<Kv>,
    pub(super) state: Option<Kv>,
    /// No change up to this revision is news.
    pub(super) revision: i64,
    /// The lease of the job whose members have been seen; 0: there were none yet. A job has the same from its first state to
    /// its end, and etcd gives none twice.
    job: i64,
}

impl Board {
    /// All that is on it at that revision.
    pub(super) fn read(&mut self, keys: &Keys, kvs: &[Kv], revision: i64) {
        let find = |key: String| kvs.iter().find(|kv| kv.key == key).cloned();
        (self.leader, self.state, self.revision) = (find(keys.leader()), find(keys.state()), revision);
    }

    /// The state of who leads, and by which revision; another's is that of an earlier run.
    pub(super) fn posted(&mut self) -> Result<Option<(i64, Posted)>, Fault> {
        let (Some(leader), Some(state)) = (&self.leader, &self.state) else { return Ok(None) };
        let Ok(posted) = serde_json::from_str::<Posted>(&state.value) else { return Ok(None) };
        if posted.term != leader.created {
            return Ok(None);
        }
        let (job, written) = (state.lease, state.written);
        self.check(job)?;
        if posted.members.is_some() {
            self.job = job;
        }
        Ok(Some((written, posted)))
    }

    /// Whether this may be the job that the node is part of, by its lease.
    pub(super) fn check(&self, job: i64) -> Result<(), Fault> {
        if self.job == 0 || job == self.job {
            return Ok(());
        }
        let why = "etcd: the job that this node was part of is not there any more: it has ended without it, or etcd has lost its data";
        Err(Fault::Refused(why.to_owned()))
    }
}
