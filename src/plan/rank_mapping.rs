//! JSON files that place ranks: the topology and rank mapping of the legacy launcher, and Ascend's rank table.
//! Other programs write them, so each error names the file, the place in it and the value found there.

use crate::spec::SpecError;
use crate::spec::paddle::nodes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// One machine of a rank mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedMachine {
    /// Address.
    pub host: String,
    /// The ranks on it, in ascending order, each with its device.
    pub ranks: Vec<(usize, String)>,
}

/// A file, and the option or variable that names it.
#[derive(Clone, Copy, Debug)]
pub struct MappingFile<'a> {
    /// The option or variable.
    pub field: &'a str,
    /// Path of the file.
    pub path: &'a str,
}

impl MappingFile<'_> {
    fn refuse(&self, why: impl Into<String>, hint: &str) -> SpecError {
        SpecError::new(self.field, self.path, why, hint)
    }

    fn read<T: DeserializeOwned>(&self, text: &str, hint: &str) -> Result<T, SpecError> {
        serde_json::from_str(text).map_err(|error| self.refuse(format!("cannot be read: {error}"), hint))
    }

    /// The address at `place`, without the brackets of an IPv6 address.
    fn host(&self, place: &str, text: &str, known: &[String]) -> Result<String, SpecError> {
        // A comma would make it two addresses.
        let found = (!text.contains(',')).then(|| nodes::hosts(self.field, text, 1).ok()?.pop()).flatten();
        let shown = crate::spec::shown(text);
        let Some(found) = found.map(|host| host.name) else {
            return Err(
                self.refuse(format!("{place} is '{shown}', which is not an address"), "give an address or a name")
            );
        };
        if known.contains(&found) {
            return Err(self.refuse(format!("{place} is '{shown}' again"), "name each machine once"));
        }
        Ok(found)
    }
}

#[derive(Deserialize)]
struct Topology {
    machines: Vec<TopologyMachine>,
}

#[derive(Deserialize)]
struct TopologyMachine {
    addr: String,
}

/// Parses a topology: the addresses of its machines.
pub fn topology(file: &MappingFile<'_>, text: &str) -> Result<Vec<String>, SpecError> {
    let hint = r#"it should be {"machines": [{"addr": "10.0.0.1"}, ...]}"#;
    let read: Topology = file.read(text, hint)?;
    let mut hosts = Vec::new();
    for (at, machine) in read.machines.iter().enumerate() {
        hosts.push(file.host(&format!("machines[{at}].addr"), &machine.addr, &hosts)?);
    }
    if hosts.is_empty() {
        return Err(file.refuse("machines is []", hint));
    }
    Ok(hosts)
}

#[derive(Deserialize)]
struct MappingEntry {
    addr: String,
    ranks: BTreeMap<String, Value>,
}

/// Parses a rank mapping. Its ranks are numbered from 0 without a gap.
pub fn mapping(file: &MappingFile<'_>, text: &str) -> Result<Vec<MappedMachine>, SpecError> {
    let hint = r#"it should be [{"addr": "10.0.0.1", "ranks": {"0": [0], "1": [1]}}, ...]"#;
    let read: Vec<MappingEntry> = file.read(text, hint)?;
    let (mut hosts, mut machines) = (Vec::new(), Vec::new());
    let mut known = BTreeSet::new();
    for (at, one) in read.iter().enumerate() {
        let host = file.host(&format!("[{at}].addr"), &one.addr, &hosts)?;
        let mut ranks = Vec::new();
        for (key, devices) in &one.ranks {
            let place = format!("[{at}].ranks");
            let shown = crate::spec::shown(key);
            let Ok(rank) = key.parse::<usize>() else {
                return Err(file.refuse(format!("{place} has '{shown}', which is not a rank"), hint));
            };
            if !known.insert(rank) {
                return Err(file.refuse(
                    format!("{place} has '{shown}', which another machine or entry already has"),
                    "name each rank once",
                ));
            }
            ranks.push((rank, device(file, &format!("{place}['{shown}']"), devices)?));
        }
        ranks.sort();
        hosts.push(host.clone());
        machines.push(MappedMachine { host, ranks });
    }
    if known.is_empty() {
        return Err(file.refuse("has no rank", hint));
    }
    if let Some(gap) = (0..known.len()).find(|rank| !known.contains(rank)) {
        let last = known.last().copied().unwrap_or_default();
        return Err(file.refuse(format!("has a rank {last}, but no rank {gap}"), "number ranks from 0 without a gap"));
    }
    Ok(machines)
}

/// A list of exactly one device, whose number is a JSON number or a string.
fn device(file: &MappingFile<'_>, place: &str, devices: &Value) -> Result<String, SpecError> {
    let refuse = |why: &str| {
        let shown = crate::spec::shown(&devices.to_string());
        file.refuse(format!("{place} is {shown}, and {why}"), "give a list of one device's number, such as [0]")
    };
    match devices.as_array().map(Vec::as_slice) {
        Some([Value::Number(number)]) if number.is_u64() => Ok(number.to_string()),
        Some([Value::String(text)]) if text.trim().parse::<u32>().is_ok() => Ok(text.trim().to_owned()),
        Some([_]) => Err(refuse("that is not a device")),
        _ => Err(refuse("Only support one process to one device mapping")),
    }
}

#[derive(Deserialize)]
struct RankTableFile {
    server_list: Vec<RankTableServer>,
}

#[derive(Deserialize)]
struct RankTableServer {
    server_id: String,
    device: Vec<Value>,
}

/// Parses a rank table: the addresses of its servers, and the number of devices of each.
pub fn rank_table(file: &MappingFile<'_>, text: &str) -> Result<(Vec<String>, usize), SpecError> {
    let hint = r#"it should be {"server_list": [{"server_id": "10.0.0.1", "device": [{"device_id": "0"}, ...]}, ...]}"#;
    let read: RankTableFile = file.read(text, hint)?;
    let mut hosts = Vec::new();
    for (at, server) in read.server_list.iter().enumerate() {
        hosts.push(file.host(&format!("server_list[{at}].server_id"), &server.server_id, &hosts)?);
    }
    let counts: Vec<usize> = read.server_list.iter().map(|server| server.device.len()).collect();
    match counts.iter().position(|count| *count != counts[0] || *count == 0) {
        _ if counts.is_empty() => Err(file.refuse("server_list is []", hint)),
        Some(at) => {
            let why =
                format!("server_list[{at}].device has {} device(s), and the first server {}", counts[at], counts[0]);
            Err(file.refuse(why, "give each server as many, and at least one"))
        }
        None => Ok((hosts, counts[0])),
    }
}
