//! Processes: spawning, pidfds, cgroups, /proc, process trees, lifelines, affinity, limits.

pub mod affinity;
pub mod cgroup;
pub mod child;
pub mod clone3;
pub mod current;
pub mod lifeline;
pub mod limits;
pub mod mark;
pub mod pidfd;
pub mod procfs;
pub mod spawn;
pub mod tree;
