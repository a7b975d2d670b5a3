//! The endpoints of ranks that nodes tell each other.

use crate::cli::common::error::CliError;
use crate::cli::elastic::error::RendezvousError;
use crate::model::Endpoint;
use crate::protocol::{NodeInfo, RoundMember};

/// The endpoints of a node's processes.
pub fn of_processes(member: &RoundMember) -> Result<Vec<Endpoint>, CliError> {
    let read: Option<Vec<Endpoint>> = member.info.endpoints.iter().map(|text| Endpoint::parse(text)).collect();
    read.ok_or_else(|| unreadable(&member.info))
}

/// The same, one for each rank.
pub fn of_ranks(member: &RoundMember) -> Result<Vec<Endpoint>, CliError> {
    let all = of_processes(member)?;
    if all.len() == member.info.ranks { Ok(all) } else { Err(unreadable(&member.info)) }
}

/// The error about a node whose endpoints cannot be used.
pub fn unreadable(node: &NodeInfo) -> CliError {
    RendezvousError::BadEndpoints { host: node.host.clone(), address: node.address.clone() }.into()
}
