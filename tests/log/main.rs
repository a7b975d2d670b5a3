//! What is seen of ranks: laws over any bytes, what known texts are blamed on, the verdict as it is read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

mod blame;
mod laws;
mod verdict;
