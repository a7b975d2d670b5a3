//! The plan of each kind of job, against tables that are kept as snapshots.

mod affinity;
mod devices;
mod frameworks;
mod legacy;
mod legacy_elastic;
mod nodes;
mod ps;
mod ps_nodes;
mod torchrun;
mod torchrun_nodes;
