//! How long a node that has lost contact may let its ranks run. Others go on without it once its lease has lapsed, and
//! there must never be two of one job; but an etcd that is down ends no job.

use crate::probe::net;
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use std::time::Duration;

/// How often an answer that others are to give is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// How often nobody has to answer: a packet may be lost.
const TRIES: u32 = 2;
/// How many others are asked.
const ASKED: usize = 8;

/// Who keeps what the nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// One of the nodes, whose end is the job's.
    Master,
    /// An etcd, at these addresses; ranks run on so long without it.
    Etcd(Vec<(String, u16)>, Duration),
}

impl Keeper {
    /// When nothing more is to be waited for, if contact was lost then.
    pub fn gives_up_at(&self, since: Duration) -> Option<Duration> {
        match self {
            Keeper::Master => None,
            Keeper::Etcd(_, patience) => Some(since + *patience),
        }
    }
}

/// What is known while there is no contact.
#[derive(Debug)]
pub struct Lost {
    /// Since when there is none.
    pub since: Duration,
    /// Why, for people.
    pub why: String,
    asked: Option<Receiver<bool>>,
    /// When others were asked last, and whether any of them answered; and how often nobody has.
    answered: Option<(Duration, bool)>,
    silent: u32,
}

/// What follows now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing until then.
    Until(Duration),
    /// The ranks have to have ended within this time: nobody answers, so it is this node that is cut off.
    CutOff(Duration),
    /// It has lasted too long.
    TooLong,
}

impl Lost {
    /// Contact was lost.
    pub fn new(since: Duration, why: String) -> Self {
        Self { since, why, asked: None, answered: None, silent: 0 }
    }

    /// What follows at `now`. A tie tells of a loss at the latest when two thirds of a lease have gone by without a word
    /// (of etcd), or half of one (of the master). `others`: where other nodes can be asked.
    pub fn verdict(&mut self, now: Duration, keeper: &Keeper, lease: Duration, others: &[(String, u16)]) -> Verdict {
        let (witnesses, patience) = match keeper {
            // The tenth that is left then is the pause between two signs of life: the master counts from the last.
            Keeper::Master if now >= self.since + lease * 3 / 10 => return Verdict::CutOff(lease / 10),
            Keeper::Master => return Verdict::Until(self.since + lease * 3 / 10),
            Keeper::Etcd(witnesses, patience) => (witnesses, *patience),
        };
        if now >= self.since + patience {
            return Verdict::TooLong;
        }
        match self.asked.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return Verdict::Until(now + LOOK),
            Some(answer) => {
                self.asked = None;
                // A thread that could not say anything says nothing against the others.
                let answered = answer.unwrap_or(true);
                self.silent = if answered { 0 } else { self.silent + 1 };
                self.answered = Some((now, answered));
            }
            None => {}
        }
        match self.answered {
            Some((_, false)) if self.silent >= TRIES => Verdict::CutOff((self.since + lease / 3).saturating_sub(now)),
            Some((at, true)) if now < at + lease / 3 => Verdict::Until((at + lease / 3).min(self.since + patience)),
            _ => {
                let whom = others.iter().take(ASKED).chain(witnesses).cloned().collect();
                self.asked = Some(ask(whom, lease / 10));
                Verdict::Until(now + LOOK)
            }
        }
    }
}

/// Asks whether any of these machines is there.
fn ask(whom: Vec<(String, u16)>, limit: Duration) -> Receiver<bool> {
    let (tell, told) = bounded(1);
    std::thread::spawn(move || {
        let (some, any) = bounded(whom.len().max(1));
        for (host, port) in whom {
            let some = some.clone();
            std::thread::spawn(move || {
                if net::answers(&host, port, limit) {
                    let _ = some.send(());
                }
            });
        }
        drop(some);
        // Ends when all threads have.
        let _ = tell.send(any.recv_timeout(limit * 2).is_ok());
    });
    told
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::sys::clock;
    use std::net::TcpListener;

    const LEASE: Duration = Duration::from_secs(3);

    fn settled(lost: &mut Lost, keeper: &Keeper, others: &[(String, u16)]) -> Verdict {
        loop {
            let now = clock::now();
            match lost.verdict(now, keeper, LEASE, others) {
                Verdict::Until(at) if at <= now + LOOK => std::thread::park_timeout(LOOK),
                verdict => return verdict,
            }
        }
    }

    #[test]
    fn where_somebody_answers_the_ranks_run_on() {
        let here = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = here.local_addr().unwrap().port();
        let etcd = Keeper::Etcd(vec![("127.0.0.1".into(), port)], 20 * LEASE);
        let since = clock::now();
        let mut lost = Lost::new(since, "gone".into());
        assert!(matches!(settled(&mut lost, &etcd, &[]), Verdict::Until(_)));
        drop(here);
        let refuses = [("127.0.0.1".to_owned(), port)];
        let nowhere = Keeper::Etcd(Vec::new(), 20 * LEASE);
        assert!(matches!(settled(&mut Lost::new(since, "gone".into()), &nowhere, &refuses), Verdict::Until(_)));
        assert_eq!(lost.verdict(since + 20 * LEASE, &etcd, LEASE, &[]), Verdict::TooLong);
    }

    #[test]
    fn where_nobody_does_this_node_is_cut_off_and_ends_its_ranks_before_its_lease_lapses() {
        // No connection leads to all machines at once.
        let nobody = [("255.255.255.255".to_owned(), 9)];
        let etcd = Keeper::Etcd(nobody.to_vec(), 20 * LEASE);
        let mut lost = Lost::new(clock::now(), "gone".into());
        match settled(&mut lost, &etcd, &nobody) {
            Verdict::CutOff(within) => assert!(within < LEASE / 3),
            other => assert_eq!(other, Verdict::CutOff(Duration::ZERO)),
        }
    }

    #[test]
    fn without_the_master_ranks_end_before_it_takes_their_node_for_lost() {
        let mut lost = Lost::new(LEASE, "gone".into());
        let halt = LEASE + LEASE * 3 / 10;
        assert_eq!(lost.verdict(LEASE, &Keeper::Master, LEASE, &[]), Verdict::Until(halt));
        assert_eq!(lost.verdict(halt, &Keeper::Master, LEASE, &[]), Verdict::CutOff(LEASE / 10));
    }
}
