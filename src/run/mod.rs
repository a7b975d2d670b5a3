//! Floor 6: the loop that acts on what the supervisor says, and what it acts with.

pub mod console;
pub mod engine;
pub mod front;
pub mod journal;
pub mod launch;
pub mod legacy;
pub mod logs;
pub mod preflight;
pub mod request;
pub mod result;
pub mod rotate;
pub mod scratch;
pub mod start;
pub mod sweep;
