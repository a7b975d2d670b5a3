//! A node's lease, in memory that its launcher and supervisor process share: when it was last renewed, and for how long ranks run
//! without a renewal. The threads that renew it write, and both processes read; none of that waits for anything.

use crate::protocol::LeaseTerms;
use crate::sys::clock;
use crate::sys::io::fd;
use crate::sys::io::shared_words::{ForeignWords, SharedWords};
use crate::sys::random;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

/// The lease's number (16 bits) and the time of its last renewal (48 bits, microseconds since boot).
const RENEWED: usize = 0;
/// The number of the lease that the present ranks run under, and how long they run without a renewal, in the same form; 0: there
/// are no ranks.
const HELD: usize = 1;
/// How much later the launcher process acts, microseconds.
const ENFORCED_AFTER: usize = 2;
/// The value of `HELD` for which the launcher process has killed ranks.
const ENFORCED: usize = 3;
/// The round that the present ranks run.
const ROUND: usize = 4;
/// The lease's name at the backend, where it has one; 0: none.
const NAME: usize = 5;

/// How many words there are.
const WORDS: usize = 6;

/// Letters and digits of a node's id, which no other launcher has.
const ID_LENGTH: usize = 16;

const TIME_BITS: u32 = 48;

/// The number of the lease after that of this number.
pub fn next_number(number: u16) -> u16 {
    number.checked_add(1).unwrap_or(1)
}

/// The lease of this node.
#[derive(Debug)]
pub struct NodeLease {
    node_id: String,
    words: SharedWords,
    /// Readable when ranks run under the lease that did not before.
    held: EventFd,
}

impl NodeLease {
    /// A lease that was never renewed, without ranks, of a node with a new id.
    pub fn new() -> io::Result<Self> {
        let node_id = random::alphanumeric(ID_LENGTH);
        Ok(Self {
            node_id,
            words: SharedWords::new("rlaunch-lease", WORDS)?,
            held: fd::eventfd(EfdFlags::EFD_NONBLOCK)?,
        })
    }

    /// The id of this node in its job.
    pub fn node_id(&self) -> &str {
        &self.node_id
    }

    /// The name that the backend gave this lease; `None`: it has none now.
    pub fn name(&self) -> Option<i64> {
        Some(self.words.get(NAME) as i64).filter(|name| *name != 0)
    }

    /// The backend has granted this lease under this name; 0: it has lapsed.
    pub fn set_name(&self, name: i64) {
        self.words.set(NAME, name as u64);
    }

    /// The backend has confirmed the renewal that was sent at `sent` (`clock::boot`). `number`: another for each lease that the
    /// backend grants, from 1 on (`next_number`). Ranks that run under an earlier one have to end, because it had lapsed.
    pub fn renewed(&self, number: u16, sent: Duration) {
        self.words.set(RENEWED, packed(number, sent));
    }

    /// The number of the newest lease.
    pub fn number(&self) -> u16 {
        unpacked(self.words.get(RENEWED)).0
    }

    /// Ranks of this round run from now on, under the lease of this number.
    pub fn hold(&self, round: u64, number: u16, terms: &LeaseTerms) {
        self.words.set(ROUND, round);
        self.words.set(ENFORCED, 0);
        self.words.set(ENFORCED_AFTER, micros(terms.enforced_after()));
        self.words.set(HELD, packed(number, terms.ranks_run_for().max(Duration::from_micros(1))));
        // An error means that it is readable already.
        let _ = self.held.write(1);
    }

    /// Takes note of ranks that run under the lease: the descriptor is no longer readable.
    pub fn take_changes(&self) {
        let _ = self.held.read();
    }

    /// No ranks run any more.
    pub fn release(&self) {
        self.words.set(HELD, 0);
    }

    /// The launcher process is about to kill the ranks: they cannot be saved by a later renewal.
    pub fn enforce(&self) {
        self.words.set(ENFORCED, self.words.get(HELD));
    }

    /// Until when ranks may run (`clock::boot`); zero if their lease has been replaced or enforced; `None`: there are no ranks.
    pub fn ranks_end_at(&self) -> Option<Duration> {
        ranks_end_at(|index| self.words.get(index))
    }

    /// A path by which the ranks of this process open the lease (`RankLease`).
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.words.as_fd().as_raw_fd())
    }

    /// When the launcher process kills ranks that still run.
    pub fn enforced_at(&self) -> Option<Duration> {
        Some(self.ranks_end_at()? + Duration::from_micros(self.words.get(ENFORCED_AFTER)))
    }

    /// Whether ranks still run although they should have ended.
    pub fn has_lapsed(&self) -> bool {
        self.ranks_end_at().is_some_and(|at| clock::boot() >= at)
    }

    /// The time since the last renewal was sent.
    pub fn age(&self) -> Duration {
        clock::boot().saturating_sub(unpacked(self.words.get(RENEWED)).1)
    }
}

/// See `NodeLease::ranks_end_at`; `word` reads the word at an index.
fn ranks_end_at(word: impl Fn(usize) -> u64) -> Option<Duration> {
    loop {
        let held = word(HELD);
        if held == 0 {
            return None;
        }
        let ((current, renewed), (number, run_for)) = (unpacked(word(RENEWED)), unpacked(held));
        let is_valid = current == number && word(ENFORCED) != held;
        // Another round may have begun in between, under another lease.
        if word(HELD) == held {
            return Some(if is_valid { renewed + run_for } else { Duration::ZERO });
        }
    }
}

/// The lease of its node, as a rank of one round sees it.
#[derive(Debug)]
pub struct RankLease {
    words: ForeignWords,
    round: u64,
}

impl RankLease {
    /// Opens the lease by its path (`NodeLease::path`).
    pub fn open(path: &Path, round: u64) -> io::Result<Self> {
        let words = ForeignWords::open(path)?;
        if words.count() == WORDS { Ok(Self { words, round }) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Whether the round is still its node's, and the lease has not lapsed. Costs no system call where the kernel serves the clock
    /// in user space (vdso(7)).
    pub fn is_valid(&self) -> bool {
        ranks_end_at(|index| self.words.get(index)).is_some_and(|at| clock::boot() < at)
            && self.words.get(ROUND) == self.round
    }
}

impl AsFd for NodeLease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn packed(number: u16, time: Duration) -> u64 {
    u64::from(number) << TIME_BITS | micros(time).min((1 << TIME_BITS) - 1)
}

fn unpacked(word: u64) -> (u16, Duration) {
    ((word >> TIME_BITS) as u16, Duration::from_micros(word & ((1 << TIME_BITS) - 1)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::protocol::OnNodeLoss;

    const TERMS: LeaseTerms = LeaseTerms {
        heartbeat_timeout: Duration::from_secs(10),
        loss_timeout: Duration::from_secs(5),
        on_loss: OnNodeLoss::Regroup,
    };

    #[test]
    fn ranks_run_from_renewal_to_renewal_of_one_lease() {
        let lease = NodeLease::new().unwrap();
        let now = clock::boot();
        lease.renewed(3, now);
        assert_eq!((lease.ranks_end_at(), lease.number()), (None, 3), "there are no ranks");
        lease.hold(1, 3, &TERMS);
        let micros = |time: Duration| time.as_micros();
        assert_eq!(lease.ranks_end_at().map(micros), Some(micros(now) + 13_000_000));
        assert_eq!(lease.enforced_at().map(micros), Some(micros(now) + 14_000_000));
        assert!(!lease.has_lapsed());
        lease.renewed(3, now + Duration::from_secs(2));
        assert_eq!(lease.ranks_end_at().map(micros), Some(micros(now) + 15_000_000));
        lease.release();
        assert_eq!(lease.enforced_at(), None);
    }

    #[test]
    fn ranks_of_a_lease_that_was_replaced_have_to_end_until_the_next_round() {
        let lease = NodeLease::new().unwrap();
        lease.renewed(u16::MAX, clock::boot());
        lease.hold(1, u16::MAX, &TERMS);
        let next = next_number(u16::MAX);
        lease.renewed(next, clock::boot());
        assert!(lease.has_lapsed());
        lease.renewed(next, clock::boot());
        assert!(lease.has_lapsed(), "a renewal of the new one does not bring back ranks of the old one");
        lease.release();
        lease.hold(2, next, &TERMS);
        assert!(!lease.has_lapsed());
    }

    #[test]
    fn a_renewal_does_not_save_ranks_that_are_being_killed() {
        let lease = NodeLease::new().unwrap();
        lease.renewed(1, clock::boot());
        lease.hold(1, 1, &TERMS);
        lease.enforce();
        lease.renewed(1, clock::boot());
        assert!(lease.has_lapsed());
        lease.release();
        lease.hold(1, 1, &TERMS);
        assert!(!lease.has_lapsed());
    }

    #[test]
    fn a_lease_that_was_not_renewed_lapses() {
        let lease = NodeLease::new().unwrap();
        let long_ago = clock::boot().saturating_sub(TERMS.ranks_run_for());
        lease.renewed(1, long_ago);
        lease.hold(1, 1, &TERMS);
        assert!(lease.has_lapsed());
    }

    #[test]
    fn a_rank_sees_when_its_round_is_over() {
        let lease = NodeLease::new().unwrap();
        let rank = RankLease::open(Path::new(&lease.path()), 7).unwrap();
        assert!(!rank.is_valid(), "no round runs");
        lease.renewed(1, clock::boot());
        lease.hold(7, 1, &TERMS);
        assert!(rank.is_valid());
        lease.renewed(1, clock::boot().saturating_sub(TERMS.ranks_run_for()));
        assert!(!rank.is_valid(), "it has lapsed");
        lease.release();
        lease.renewed(1, clock::boot());
        lease.hold(8, 1, &TERMS);
        assert!(!rank.is_valid(), "another round runs");
        assert!(RankLease::open(Path::new("/proc/self/cmdline"), 7).is_err());
    }

    #[test]
    fn a_time_that_is_too_long_does_not_change_the_number_of_its_lease() {
        for (time, kept) in
            [(0, 0), (7, 7), ((1 << TIME_BITS) - 1, (1 << TIME_BITS) - 1), (u64::MAX, (1 << TIME_BITS) - 1)]
        {
            let word = packed(2, Duration::from_micros(time));
            assert_eq!(unpacked(word), (2, Duration::from_micros(kept)));
        }
    }

    #[test]
    fn each_lease_has_another_number_than_the_one_before_and_none_has_0() {
        for (number, next) in [(0, 1), (1, 2), (u16::MAX - 1, u16::MAX), (u16::MAX, 1)] {
            assert_eq!(next_number(number), next);
        }
    }

    #[test]
    fn the_age_of_a_lease_counts_from_the_last_renewal() {
        let lease = NodeLease::new().unwrap();
        lease.renewed(1, clock::boot().saturating_sub(Duration::from_secs(7)));
        assert!(lease.age() >= Duration::from_secs(7), "{:?}", lease.age());
        lease.renewed(1, clock::boot());
        assert!(lease.age() < Duration::from_secs(7), "{:?}", lease.age());
    }

    #[test]
    fn its_descriptor_is_readable_from_hold_until_the_change_is_taken() {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let lease = NodeLease::new().unwrap();
        let is_readable =
            || poll(&mut [PollFd::new(lease.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1;
        assert!(!is_readable());
        lease.hold(1, 1, &TERMS);
        assert!(is_readable());
        lease.take_changes();
        assert!(!is_readable());
    }
}
