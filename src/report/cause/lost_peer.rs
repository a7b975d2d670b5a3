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
