//! Log lines: splitting, prefixes, escape sequences, tails.

pub mod escape;
pub mod interrupts;
pub mod lines;
pub mod prefix;
pub mod tail;
