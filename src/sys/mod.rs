//! Floor 5: the operating system. The only folder with `unsafe`.

pub mod affinity;
pub mod cgroup;
pub mod child;
pub mod clock;
mod clone3;
pub mod console;
pub mod fd;
pub mod inotify;
pub mod lifeline;
pub mod limits;
pub mod mark;
pub mod packet;
pub mod pidfd;
pub mod poll;
pub mod ports;
pub mod process;
pub mod signals;
pub mod spawn;
pub mod tree;
