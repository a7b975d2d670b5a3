//! Files and ports of a legacy job: cluster files, rank mapping, `endpoints.log`, port leases.

use crate::model::Endpoint;
use crate::plan::legacy::RankLayout;
use crate::plan::rank_mapping::MappingFile;
use crate::run::output::log_files;
use crate::run::prepare::preflight;
use crate::spec::{SpecError, shown};
use crate::sys::io::ports::PortLease;
use std::io;
use std::path::Path;

/// Reads a file that describes a cluster.
pub fn read(file: &MappingFile<'_>) -> Result<String, SpecError> {
    preflight::read(file.field, file.path)
}

/// Renames the rank mapping of an earlier job to `NAME.old`, so that ranks do not read it as this job's.
pub fn set_aside(path: &str) -> Result<(), SpecError> {
    match std::fs::rename(path, format!("{path}.old")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            // The path is part of the reason, because values are shortened.
            let why = format!(
                "{} belongs to an earlier job and cannot be renamed: {}",
                shown(path),
                log_files::plain(&error)
            );
            Err(SpecError::new("PADDLE_RANK_MAPPING_PATH", "", why, "remove it"))
        }
        _ => Ok(()),
    }
}

/// Leases the ports of this node, and chooses free ones where none are fixed.
pub fn lease_ports(site: &mut RankLayout) -> Result<Vec<PortLease>, SpecError> {
    let from = if site.ports_from.is_empty() { "ports" } else { &site.ports_from };
    let take = |endpoint: &Endpoint| match endpoint.port {
        0 => PortLease::any()
            .map_err(|e| SpecError::new("ports", "", log_files::plain(&e), "stop programs that hold ports")),
        port => PortLease::fixed(port)
            .map_err(|busy| SpecError::new(from, "", busy.to_string(), "choose others, the same on each node")),
    };
    let held: Vec<PortLease> =
        site.own_ranks().iter().map(|member| take(&member.endpoint)).collect::<Result<_, _>>()?;
    let ports: Vec<u16> = held.iter().map(PortLease::port).collect();
    site.listen_on(&ports);
    Ok(held)
}

/// Writes `endpoints.log`, which users' scripts read.
pub fn write_endpoints(folder: &Path, endpoints: &[Endpoint]) -> io::Result<()> {
    let lines: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
    log_files::replace(&folder.join("endpoints.log"), &format!("PADDLE_TRAINER_ENDPOINTS: \n{}", lines.join("\n")))
}
