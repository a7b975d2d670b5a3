//! What the ranks used while they ran: the samples of `--sample`, as curves.

pub(super) mod chart;
pub(super) mod curves;
