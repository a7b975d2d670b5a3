//! Whether a rank ended because the other end of its connection had died.

use crate::report::console::escape::plain;

/// The library that reported a lost peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LostPeer {
    /// gloo, under Paddle or torch.
    Gloo,
    /// NCCL or RCCL.
    Nccl,
    /// torch's TCPStore, which lives in one of the ranks.
    TorchStore,
    /// Paddle's TCPStore, which lives in one of the ranks.
    PaddleStore,
    /// A collective of gloo that a peer did not join in time.
    GlooTimeout,
    /// A collective of NCCL that a peer did not join in time.
    NcclTimeout,
    /// A key of torch's TCPStore that a peer did not set in time.
    TorchStoreTimeout,
}

impl LostPeer {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            LostPeer::Gloo | LostPeer::GlooTimeout => "gloo",
            LostPeer::Nccl | LostPeer::NcclTimeout => "NCCL",
            LostPeer::TorchStore | LostPeer::PaddleStore | LostPeer::TorchStoreTimeout => "TCPStore",
        }
    }

    /// Returns true if nothing says that the peer's process has ended. Under Paddle gloo times out also when it has.
    pub fn is_peer_alive(self) -> bool {
        matches!(self, LostPeer::NcclTimeout | LostPeer::TorchStoreTimeout)
    }

    /// Whether the peer may still be there, but did not take part in time.
    pub fn is_timeout(self) -> bool {
        matches!(self, LostPeer::GlooTimeout | LostPeer::NcclTimeout | LostPeer::TorchStoreTimeout)
    }
}

/// A line that contains all words of a row, in lower case, names the library. "Broken pipe" and "Connection reset by
/// peer" alone do not count: a download breaks like that too.
const SIGNS: [(LostPeer, &[&str]); 33] = [
    (LostPeer::Gloo, &["application timeout caused pair closure"]),
    (LostPeer::Gloo, &["gloo", "connection closed by peer"]),
    (LostPeer::Gloo, &["pair.cc", "connection closed by peer"]),
    (LostPeer::Gloo, &["error: connection closed by peer"]),
    (LostPeer::Gloo, &["gloo", "connection reset by peer"]),
    (LostPeer::Gloo, &["gloo", "read error"]),
    (LostPeer::Gloo, &["gloo", "write error"]),
    (LostPeer::Gloo, &["gloo", "broken pipe"]),
    // Under Paddle, when several peers close their connections at once: the thread of gloo aborts the process.
    (LostPeer::Gloo, &["gloo", "enforce fail at", "pair.cc", "ex_ == nullptr"]),
    (LostPeer::Nccl, &["ncclremoteerror"]),
    (LostPeer::Nccl, &["remote process exited or there was a network error"]),
    (LostPeer::Nccl, &["nccl communicator was aborted"]),
    (LostPeer::Nccl, &["connection closed by remote peer"]),
    (LostPeer::TorchStore, &["failed to recv, got 0 bytes"]),
    (LostPeer::TorchStore, &["connection was likely closed"]),
    (LostPeer::TorchStore, &["socketimpl", "broken pipe"]),
    (LostPeer::TorchStore, &["socketimpl", "connection reset by peer"]),
    (LostPeer::TorchStore, &["distnetworkerror", "broken pipe"]),
    (LostPeer::TorchStore, &["distnetworkerror", "connection reset by peer"]),
    (LostPeer::TorchStore, &["runtimeerror: broken pipe"]),
    (LostPeer::TorchStore, &["runtimeerror: connection reset by peer"]),
    (LostPeer::PaddleStore, &["tcp connection reset by peer"]),
    (LostPeer::PaddleStore, &["tcp receive error"]),
    (LostPeer::PaddleStore, &["tcp send error"]),
    (LostPeer::PaddleStore, &["connection reset by peer [errno"]),
    (LostPeer::PaddleStore, &["recv len 0"]),
    (LostPeer::PaddleStore, &["tcpstore", "wait", "timeout"]),
    // Under Paddle also when the peer has exited.
    (LostPeer::GlooTimeout, &["pair.cc", "timeout self_rank"]),
    (LostPeer::GlooTimeout, &["unbound_buffer.cc", "timeout self_rank"]),
    (LostPeer::GlooTimeout, &["gloo", "timed out waiting"]),
    (LostPeer::NcclTimeout, &["watchdog caught collective operation timeout"]),
    (LostPeer::TorchStoreTimeout, &["diststoreerror", "timed out after", "clients joined"]),
    (LostPeer::TorchStoreTimeout, &["diststoreerror", "wait timeout after"]),
];

/// The first library in `text` that reports a lost peer. `text` is the end of a rank's stderr. A culprit's may contain
/// such a report too, so the result means something only for ranks that ended after another.
pub fn lost_peer(text: &[u8]) -> Option<LostPeer> {
    text.split(|b| *b == b'\n').find_map(|line| {
        // Python colors a traceback at a terminal, from 3.13 on.
        let line = plain(line).to_ascii_lowercase();
        SIGNS.iter().find(|(_, words)| words.iter().all(|w| line.contains(w))).map(|(library, _)| *library)
    })
}

/// The rank that torch's store has waited for in vain and that a job of so many ranks does not have. A key ends in its number:
/// `wait timeout after 3000ms, keys: /default_pg/0//cpu//0/2`; or the store has counted: `1/4 clients joined`.
pub fn find_absent_rank(text: &[u8], ranks: usize) -> Option<usize> {
    text.split(|b| *b == b'\n').find_map(|line| {
        let line = plain(line);
        let of_key = || {
            let (_, keys) = line.split_once("ait timeout after ")?.1.split_once("keys: ")?;
            let key = keys.split([',', ' ']).next()?;
            if key.contains("//") { key.rsplit('/').next()?.parse().ok() } else { None }
        };
        let of_count = || {
            let (before, _) = line.split_once(" clients joined")?;
            line.contains("Timed out after")
                .then_some(before)?
                .rsplit('/')
                .next()?
                .parse::<usize>()
                .ok()?
                .checked_sub(1)
        };
        of_key().or_else(of_count).filter(|rank| *rank >= ranks)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_the_job_does_not_have_is_found() {
        let key = b"torch.distributed.DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//cpu//0/2\n";
        let count = b"DistStoreError: Timed out after 4 seconds waiting for clients. 2/4 clients joined.";
        let other = b"wait timeout after 3000ms, keys: /epoch/9";
        for (text, ranks, absent) in
            [(&key[..], 2, Some(2)), (key, 3, None), (count, 2, Some(3)), (count, 4, None), (other, 2, None)]
        {
            assert_eq!(find_absent_rank(text, ranks), absent, "{ranks}");
        }
    }
}
