//! How long the ranks of a node may run after it has lost contact with the rendezvous backend. The other nodes continue
//! without it once its lease has expired, and two rounds of one job must never run at once. But an etcd that is down must not
//! end a job.

use crate::probe::net;
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use std::time::Duration;

/// How often the answers of other nodes are checked.
const INTERVAL: Duration = Duration::from_millis(50);
/// How many rounds of probes have to fail: a packet may be lost.
const PROBES: u32 = 2;
/// How many other nodes are probed.
const PROBED_NODES: usize = 8;

/// Where the job's state is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// In the embedded master of one node, whose end ends the job.
    Master,
    /// In etcd: its addresses, and the time that ranks keep running while it is unreachable.
    Etcd(Vec<(String, u16)>, Duration),
}

impl BackendKind {
    /// When the job is given up, if contact was lost at `since`.
    pub fn gives_up_at(&self, since: Duration) -> Option<Duration> {
        match self {
            BackendKind::Master => None,
            BackendKind::Etcd(_, patience) => Some(since + *patience),
        }
    }
}

/// The state of a node without contact to the rendezvous backend.
#[derive(Debug)]
pub struct Disconnected {
    /// When contact was lost.
    pub since: Duration,
    /// The error.
    pub why: String,
    probe: Option<Receiver<bool>>,
    /// When the last probe ended, and whether any node answered.
    answered: Option<(Duration, bool)>,
    /// Probes in a row without an answer.
    unanswered: u32,
}

/// What follows from the lost contact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionDecision {
    /// Nothing until this time.
    Until(Duration),
    /// The ranks have to end within this time: no other node answers, so this node is the one that is cut off.
    CutOff(Duration),
    /// Contact has been lost for too long.
    TooLong,
}

impl Disconnected {
    /// Contact was lost at `since`, with the error `why`.
    pub fn new(since: Duration, why: String) -> Self {
        Self { since, why, probe: None, answered: None, unanswered: 0 }
    }

    /// What follows at `now`. A backend reports a loss at the latest after two thirds of a lease without an answer (etcd), or
    /// half of one (master). `others`: addresses of other nodes.
    pub fn decide(
        &mut self,
        now: Duration,
        kind: &BackendKind,
        lease: Duration,
        others: &[(String, u16)],
    ) -> PartitionDecision {
        let (witnesses, patience) = match kind {
            // The remaining tenth is the heartbeat interval: the master counts from the last heartbeat.
            BackendKind::Master if now >= self.since + lease * 3 / 10 => return PartitionDecision::CutOff(lease / 10),
            BackendKind::Master => return PartitionDecision::Until(self.since + lease * 3 / 10),
            BackendKind::Etcd(witnesses, patience) => (witnesses, *patience),
        };
        if now >= self.since + patience {
            return PartitionDecision::TooLong;
        }
        match self.probe.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return PartitionDecision::Until(now + INTERVAL),
            Some(answer) => {
                self.probe = None;
                // A probe that failed itself says nothing about the other nodes.
                let answered = answer.unwrap_or(true);
                self.unanswered = if answered { 0 } else { self.unanswered + 1 };
                self.answered = Some((now, answered));
            }
            None => {}
        }
        match self.answered {
            Some((_, false)) if self.unanswered >= PROBES => {
                PartitionDecision::CutOff((self.since + lease / 3).saturating_sub(now))
            }
            Some((at, true)) if now < at + lease / 3 => {
                PartitionDecision::Until((at + lease / 3).min(self.since + patience))
            }
            _ => {
                let addresses = others.iter().take(PROBED_NODES).chain(witnesses).cloned().collect();
                self.probe = Some(probe(addresses, lease / 10));
                PartitionDecision::Until(now + INTERVAL)
            }
        }
    }
}

/// Tests in threads whether any of these addresses answers.
fn probe(addresses: Vec<(String, u16)>, limit: Duration) -> Receiver<bool> {
    let (result, answered) = bounded(1);
    std::thread::spawn(move || {
        let (some, any) = bounded(addresses.len().max(1));
        for (host, port) in addresses {
            let some = some.clone();
            std::thread::spawn(move || {
                if net::answers(&host, port, limit) {
                    let _ = some.send(());
                }
            });
        }
        drop(some);
        // Disconnected once all threads have ended.
        let _ = result.send(any.recv_timeout(limit * 2).is_ok());
    });
    answered
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::sys::clock;
    use std::net::TcpListener;

    const LEASE: Duration = Duration::from_secs(3);

    fn settled(lost: &mut Disconnected, kind: &BackendKind, others: &[(String, u16)]) -> PartitionDecision {
        loop {
            let now = clock::now();
            match lost.decide(now, kind, LEASE, others) {
                PartitionDecision::Until(at) if at <= now + INTERVAL => std::thread::park_timeout(INTERVAL),
                decision => return decision,
            }
        }
    }

    #[test]
    fn ranks_keep_running_while_another_node_answers() {
        let here = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = here.local_addr().unwrap().port();
        let etcd = BackendKind::Etcd(vec![("127.0.0.1".into(), port)], 20 * LEASE);
        let since = clock::now();
        let mut lost = Disconnected::new(since, "gone".into());
        assert!(matches!(settled(&mut lost, &etcd, &[]), PartitionDecision::Until(_)));
        drop(here);
        let refuses = [("127.0.0.1".to_owned(), port)];
        let nowhere = BackendKind::Etcd(Vec::new(), 20 * LEASE);
        assert!(matches!(
            settled(&mut Disconnected::new(since, "gone".into()), &nowhere, &refuses),
            PartitionDecision::Until(_)
        ));
        assert_eq!(lost.decide(since + 20 * LEASE, &etcd, LEASE, &[]), PartitionDecision::TooLong);
    }

    #[test]
    fn without_an_answer_the_node_is_cut_off_before_its_lease_expires() {
        // TCP cannot connect to the broadcast address.
        let nowhere = [("255.255.255.255".to_owned(), 9)];
        let etcd = BackendKind::Etcd(nowhere.to_vec(), 20 * LEASE);
        let mut lost = Disconnected::new(clock::now(), "gone".into());
        match settled(&mut lost, &etcd, &nowhere) {
            PartitionDecision::CutOff(within) => assert!(within < LEASE / 3),
            other => assert_eq!(other, PartitionDecision::CutOff(Duration::ZERO)),
        }
    }

    #[test]
    fn ranks_end_before_the_master_considers_their_node_lost() {
        let mut lost = Disconnected::new(LEASE, "gone".into());
        let halt = LEASE + LEASE * 3 / 10;
        assert_eq!(lost.decide(LEASE, &BackendKind::Master, LEASE, &[]), PartitionDecision::Until(halt));
        assert_eq!(lost.decide(halt, &BackendKind::Master, LEASE, &[]), PartitionDecision::CutOff(LEASE / 10));
    }
}
