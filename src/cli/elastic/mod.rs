//! Jobs whose nodes rendezvous: backends, rounds, waiting, the outcome of the job.

pub mod advertise;
pub mod backend;
pub mod endpoints;
pub mod error;
mod find_master;
pub mod fingerprint;
pub mod outcome_text;
pub mod participants;
pub mod round_frontend;
pub mod rounds;
pub mod wait_for_round;
