//! How the nodes of a job agree on the step at which all ranks stop (`rlaunch.should_stop`), without a collective of the ranks.
//!
//! Each rank writes its step to memory that it shares with its node's launcher, and then reads the *stop step* there. A launcher writes
//! the stop step, and then reads the steps of its ranks. Both are sequentially consistent, so at least one of the two sees the other's
//! write. Node 0 coordinates, in two phases:
//!
//! 1. It proposes a step that no rank has reached as far as it knows. Each node *raises* it: ranks that reach it wait from now on. Then the
//!    node reads its ranks' steps, and answers whether one had reached it before. If so, node 0 proposes a later step; each time it adds
//!    twice as many steps as before. The answers go to node 0 alone.
//! 2. When all nodes have answered that no rank had reached it, node 0 decides: all ranks stop there. Ranks that wait go on to stop.
//!
//! # Guarantees
//!
//! - All ranks that stop do so at the first call with a step that is not below the decided one. No rank has passed that step before.
//! - A rank waits only between the answer of its node and the decision: about one message to node 0 and one back. It depends on no
//!   other rank's progress.
//! - If a node does not answer, node 0 abandons the agreement after a time, and ranks that wait go on. It never does so after it
//!   has decided.
//! - A node that has answered cannot know whether node 0 has decided, until it hears of it. If contact is lost just then, its ranks wait
//!   until the time of the notice is over, and are then ended by signals. They neither pass the step nor stop alone.
//!
//! Documents are whole: what is lost, late, doubled or overtaken is corrected by the next one. Node 0 sends its own again until all
//! nodes have answered it, and they send their answer again until they hear of the decision. So does a node that knows of a
//! shorter time than the others, until that time is over (`notice_time`): to node 0, which sends it to all.

mod agreement;
mod notice_time;

pub use agreement::{
    Answer, Decision, LARGEST_STEP, Proposal, StopAgreement, StopDocument, StopEffect, StopEvent, StopRecipient,
};
