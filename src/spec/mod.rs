//! What the user asked for: option tables, values with their source, typed and checked requests.

pub mod console;
pub mod endpoints;
pub mod error;
pub mod forwarded_signals;
pub mod frameworks;
pub mod hang;
pub mod legacy;
pub mod no_sweep;
pub mod options;
pub mod paddle;
pub mod preload;
pub mod records;
pub mod rendezvous;
pub mod restarts;
pub mod scheduler;
pub mod spawn;
pub mod torchrun;

pub use crate::spec::error::{SpecError, shown};
pub use crate::spec::paddle::launch::{LaunchSpec, Script};
