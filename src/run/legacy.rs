//! What a job in the older launcher's ways needs of the machine: its files, its ports.

use super::logs;
use crate::model::Endpoint;
use crate::plan::legacy::Site;
use crate::plan::mapping::File;
use crate::spec::SpecError;
use crate::sys::ports::Lease;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// No description of a cluster is longer.
const LONGEST: u64 = 64 << 20;

/// The text of a file. Nobody who has yet to write it is waited for.
pub fn read(file: &File<'_>) -> Result<String, SpecError> {
    let read = || -> io::Result<String> {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file.path)?;
        if !opened.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut text = String::new();
        opened.take(LONGEST).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| {
        let why = format!("cannot be read: {}", logs::plain(&error));
        SpecError::new(file.field, file.path, why, "check the name of the file")
    })
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
