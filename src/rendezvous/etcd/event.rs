//! What a tie's worker hears.

use super::watch::Seen;
use crossbeam_channel::Sender;
use std::io;
use std::time::Duration;

/// What the worker hears.
pub(super) enum Event {
    /// The node's record is this now.
    Put(String),
    /// It leaves.
    Close { patience: Duration, done: Sender<io::Result<()>> },
    /// It has left without a word.
    Stop,
    /// There is a new lease.
    Lease(i64),
    /// The lease has run out.
    Expired,
    /// There is contact again.
    Contact,
    /// There is none.
    Lost(String),
    /// It is of no use.
    Refused(String),
    /// On the board.
    Board(Seen),
    /// Among the nodes, in that term.
    Nodes(i64, Seen),
}
