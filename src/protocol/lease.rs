//! The times of a node's lease: how long the rendezvous backend keeps the node without a renewal, and how long its ranks may run
//! without one where the job goes on without a lost node. They end before another round can begin. All times count from the
//! sending of the last renewal that the backend has confirmed, on a clock that also counts while the machine sleeps.

use crate::protocol::record::OnNodeLoss;
use std::time::Duration;

/// The times of a node's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The time without a renewal after which the other nodes consider a node lost.
    pub heartbeat_timeout: Duration,
    /// How much longer ranks may run while the backend cannot be reached.
    pub loss_timeout: Duration,
    /// What follows from the loss of a node.
    pub on_loss: OnNodeLoss,
}

impl LeaseTerms {
    /// How long the backend keeps a node without a renewal. Where the job goes on without a lost node, the others wait for the end
    /// of its ranks. Where the job ends, no round can begin beside them.
    pub fn time_to_live(&self) -> Duration {
        match self.on_loss {
            OnNodeLoss::End => self.heartbeat_timeout,
            OnNodeLoss::Regroup => self.heartbeat_timeout + self.loss_timeout,
        }
    }

    /// How long ranks may run without a renewal where the job goes on: then the supervisor process kills them.
    pub fn ranks_run_for(&self) -> Duration {
        self.heartbeat_timeout * 8 / 10 + self.loss_timeout
    }

    /// How long after the last renewal ranks may begin. A node that was stopped for longer may have been given up, and reads what it
    /// has received before it hears of that.
    pub fn ranks_begin_within(&self) -> Duration {
        self.heartbeat_timeout * 8 / 10
    }

    /// How much later the launcher process kills the ranks, if the supervisor process has not.
    pub fn enforced_after(&self) -> Duration {
        self.heartbeat_timeout / 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_killed_twice_before_a_job_goes_on_without_them() {
        for heartbeat_ms in [100, 2_000, 10_000, 3_600_000] {
            for loss_ms in [0, 1, 60_000] {
                let terms = LeaseTerms {
                    heartbeat_timeout: Duration::from_millis(heartbeat_ms),
                    loss_timeout: Duration::from_millis(loss_ms),
                    on_loss: OnNodeLoss::Regroup,
                };
                // A tenth of the timeout is left for the signal to arrive, and for clocks of different speed.
                let last = terms.ranks_run_for() + terms.enforced_after();
                assert_eq!(last + terms.heartbeat_timeout / 10, terms.time_to_live(), "{terms:?}");
            }
        }
    }

    #[test]
    fn where_the_job_ends_with_a_lost_node_no_other_waits_longer() {
        let (heartbeat_timeout, loss_timeout) = (Duration::from_secs(10), Duration::from_secs(60));
        let terms = LeaseTerms { heartbeat_timeout, loss_timeout, on_loss: OnNodeLoss::End };
        assert_eq!(terms.time_to_live(), heartbeat_timeout);
    }

    #[test]
    fn ranks_begin_within_four_fifths_of_the_heartbeat_timeout() {
        let (heartbeat_timeout, loss_timeout) = (Duration::from_secs(10), Duration::from_secs(60));
        for on_loss in [OnNodeLoss::End, OnNodeLoss::Regroup] {
            let terms = LeaseTerms { heartbeat_timeout, loss_timeout, on_loss };
            let times = [terms.ranks_begin_within(), terms.ranks_run_for(), terms.enforced_after()];
            assert_eq!(times, [8, 68, 1].map(Duration::from_secs), "{on_loss:?}");
        }
    }
}
