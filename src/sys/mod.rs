//! System calls: clocks, descriptors, processes, signals. The only folder with `unsafe`.

pub mod clock;
pub mod io;
pub mod process;
pub mod signals;
