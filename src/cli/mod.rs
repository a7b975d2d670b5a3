//! The command-line front ends: parse the options, build a plan, run it, report, exit.

pub mod common;
pub mod control;
pub mod doctor;
pub mod elastic;
pub mod legacy;
pub mod node;
pub mod paddle;
pub mod reference;
pub mod torchrun;
