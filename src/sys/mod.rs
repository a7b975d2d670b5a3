//! System calls: clocks, descriptors, processes, random numbers, signals. The only folder with `unsafe`.

pub mod clock;
pub mod deferred_term;
pub mod denied_calls;
pub mod io;
pub mod process;
pub mod random;
pub mod signals;
