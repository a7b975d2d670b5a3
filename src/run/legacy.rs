//! What a job in the older launcher's ways needs of the machine: its files, its ports.

use super::{logs, preflight};
use crate::model::Endpoint;
use crate::plan::legacy::Site;
use crate::plan::mapping::File;
use crate::spec::SpecError;
use crate::sys::ports::Lease;
use std::io;
use std::path::Path;

/// The text of a file that describes a cluster.
pub fn read(file: &File<'_>) -> Result<String, SpecError> {
    preflight::read(file.field, file.path)
}

/// Renames an earlier job's rank mapping to `NAME.old`, lest it be taken for this job's.
pub fn set_aside(path: &str) -> Result<(), SpecError> {
    match std::fs::rename(path, format!("{path}.old")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            // Among the words, which are never cut short.
            let why =
                format!("{} is of an earlier job and cannot be renamed: {}", path.escape_debug(), logs::plain(&error));
            Err(SpecError::new("PADDLE_RANK_MAPPING_PATH", "", why, "remove it"))
        }
        _ => Ok(()),
    }
}

/// This node's ports, free ones where none are fixed, held until the leases are dropped.
pub fn lease(site: &mut Site) -> Result<Vec<Lease>, SpecError> {
    let from = if site.ports_from.is_empty() { "ports" } else { &site.ports_from };
    let take = |endpoint: &Endpoint| match endpoint.port {
        0 => Lease::any().map_err(|e| SpecError::new("ports", "", logs::plain(&e), "end what has taken them all")),
        port => Lease::fixed(port)
            .map_err(|busy| SpecError::new(from, "", busy.to_string(), "choose others, the same on each node")),
    };
    let held: Vec<Lease> = site.here().iter().map(|member| take(&member.endpoint)).collect::<Result<_, _>>()?;
    let ports: Vec<u16> = held.iter().map(Lease::port).collect();
    site.listen_on(&ports);
    Ok(held)
}

/// Writes `endpoints.log`, which users' scripts read.
pub fn write_endpoints(folder: &Path, endpoints: &[Endpoint]) -> io::Result<()> {
    let lines: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
    logs::replace(&folder.join("endpoints.log"), &format!("PADDLE_TRAINER_ENDPOINTS: \n{}", lines.join("\n")))
}
