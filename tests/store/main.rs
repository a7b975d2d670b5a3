//! The store of torch's processes: its wire format, its meaning, its server and its client.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

mod frames;
mod meaning;
mod served;
