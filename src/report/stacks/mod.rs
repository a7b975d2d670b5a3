//! The Python stacks of a job's ranks: grouped, with the rank that the others wait for, as text.

mod dump;
mod odd_ranks;
mod packed;
mod render;

pub use dump::{ProcessStack, RankStacks, StackDump, StackFrame, ThreadStack};
pub use odd_ranks::{OddRanks, StackGroup, find_odd_ranks, group};
pub use packed::PackedDump;
pub use render::{
    ExitState, HangFacts, RankLine, conclude, describe_places, render_answered, render_hang, render_stacks,
    render_stuck_exit,
};
