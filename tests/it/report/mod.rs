//! What is seen of ranks: laws over any bytes, what known texts are blamed on, the verdict as it is read.

mod blame;
mod failure_report;
mod invariants;
