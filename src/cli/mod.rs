//! Floor 7: doors for people.

pub mod argparse;
pub mod command;
pub mod conclude;
pub mod door;
pub mod dry_run;
mod ends;
pub mod exit_code;
pub mod grammar;
pub mod lay_out;
pub mod legacy;
pub mod message;
mod node;
pub mod notes;
pub mod paddle;
mod paddle_meeting;
pub mod policy;
pub mod record;
pub mod refusal;
mod rounds;
mod tie;
pub mod torch_events;
pub mod torch_grammar;
pub mod torch_meeting;
pub mod torch_node;
pub mod torch_report;
pub mod torchrun;
mod waiting;
