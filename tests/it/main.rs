//! The integration tests of the Rust core: one binary, one module for each part of `src/`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

mod architecture;
mod engine;
mod plan;
mod process;
mod protocol;
mod reference;
mod rendezvous;
mod report;
mod supervise;
