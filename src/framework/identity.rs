//! Identity of a rank, independent of the framework.

use crate::model::Endpoint;
use std::sync::Arc;

/// The devices that one rank may use, as its framework names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// No device: CPU, with gloo between the ranks.
    Cpu,
    /// `FLAGS_selected_{kind}s`, with these indices.
    Selected {
        /// `gpu`, `xpu`, `npu`, ...
        kind: String,
        /// Comma-separated indices into the visible list.
        indices: String,
    },
}

/// Identity of a rank, from which each framework's variables are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankIdentity {
    /// Rank in the job.
    pub rank: usize,
    /// Rank on its node.
    pub local_rank: usize,
    /// Number of ranks on its node.
    pub local_size: usize,
    /// Number of nodes.
    pub nnodes: usize,
    /// Endpoints of all ranks, by rank.
    pub endpoints: Arc<[Endpoint]>,
    /// Endpoint of the store in rank 0, for frameworks that pass it.
    pub master: Option<Endpoint>,
    /// Its devices.
    pub binding: Binding,
}
