//! The endpoints of processes that nodes send each other.

use crate::cli::common::error::CliError;
use crate::cli::elastic::error::RendezvousError;
use crate::model::Endpoint;
use crate::protocol::{NodeInfo, RoundMember};

/// Reads the endpoints of a node's processes.
pub fn read(member: &RoundMember) -> Result<Vec<Endpoint>, CliError> {
    let all: Option<Vec<Endpoint>> = member.info.endpoints.iter().map(|text| Endpoint::parse(text)).collect();
    all.ok_or_else(|| unusable(&member.info))
}

/// The same where each rank has one.
pub fn read_for_ranks(member: &RoundMember) -> Result<Vec<Endpoint>, CliError> {
    let all = read(member)?;
    if all.len() == member.info.ranks { Ok(all) } else { Err(unusable(&member.info)) }
}

/// The error about a node whose endpoints cannot be used.
pub fn unusable(node: &NodeInfo) -> CliError {
    RendezvousError::BadEndpoints { host: node.host.clone(), address: node.address.clone() }.into()
}
