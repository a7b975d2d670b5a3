//! The JSON files that say where ranks run: the older launcher's topology and rank mapping, and Ascend's rank table.
//! They come from other programs, so each error says which file, where in it, and what stands there.

use crate::spec::{SpecError, nodes};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A machine of a rank mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its address.
    pub host: String,
    /// The ranks that run on it, in their order, and the device of each.
    pub ranks: Vec<(usize, String)>,
}

/// A file's name, and the option or variable that has it.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// The option or variable.
    pub field: &'a str,
    /// The name.
    pub path: &'a str,
}

impl File<'_> {
    fn refuse(&self, why: impl Into<String>, hint: &str) -> SpecError {
        SpecError::new(self.field, self.path, why, hint)
    }

    fn read<T: DeserializeOwned>(&self, text: &str, hint: &str) -> Result<T, SpecError> {
        serde_json::from_str(text).map_err(|error| self.refuse(format!("cannot be read: {error}"), hint))
    }

    /// An address that stands at `place`, without the brackets that one of IPv6 may have.
    fn host(&self, place: &str, text: &str, known: &[String]) -> Result<String, SpecError> {
        // A comma would make two of it.
        let found = (!text.contains(',')).then(|| nodes::hosts(self.field, text, 1).ok()?.pop()).flatten();
        let shown = crate::spec::shown(text);
        let Some(found) = found.map(|host| host.name) else {
            return Err(self.refuse(format!("{place} is '{shown}', which is no address"), "give an address or a name"));
        };
        if known.contains(&found) {
            return Err(self.refuse(format!("{place} is '{shown}' again"), "name each machine once"));
        }
        Ok(found)
    }
}

#[derive(Deserialize)]
struct Topology {
    machines: Vec<OfTopology>,
}

#[derive(Deserialize)]
struct OfTopology {
    addr: String,
}

/// The machines of a topology.
pub fn topology(file: &File<'_>, text: &str) -> Result<Vec<String>, SpecError> {
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
struct OfMapping {
    addr: String,
    ranks: BTreeMap<String, Value>,
}

/// The machines of a rank mapping. Ranks are numbered from 0 without a gap.
pub fn mapping(file: &File<'_>, text: &str) -> Result<Vec<Machine>, SpecError> {
    let hint = r#"it should be [{"addr": "10.0.0.1", "ranks": {"0": [0], "1": [1]}}, ...]"#;
    let read: Vec<OfMapping> = file.read(text, hint)?;
    let (mut hosts, mut machines) = (Vec::new(), Vec::new());
    let mut known = BTreeSet::new();
    for (at, one) in read.iter().enumerate() {
        let host = file.host(&format!("[{at}].addr"), &one.addr, &hosts)?;
        let mut ranks = Vec::new();
        for (key, devices) in &one.ranks {
            let place = format!("[{at}].ranks");
            let shown = crate::spec::shown(key);
            let Ok(rank) = key.parse::<usize>() else {
                return Err(file.refuse(format!("{place} has '{shown}', which is no rank"), hint));
            };
            if !known.insert(rank) {
                return Err(file.refuse(format!("{place} has '{shown}', which runs already"), "name each rank once"));
            }
            ranks.push((rank, device(file, &format!("{place}['{shown}']"), devices)?));
        }
        ranks.sort();
        hosts.push(host.clone());
        machines.push(Machine { host, ranks });
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

/// A list of exactly one device: a number, as a number or as text.
fn device(file: &File<'_>, place: &str, devices: &Value) -> Result<String, SpecError> {
    let refuse = |why: &str| {
        let shown = crate::spec::shown(&devices.to_string());
        file.refuse(format!("{place} is {shown}, and {why}"), "give a list of one device's number, such as [0]")
    };
    match devices.as_array().map(Vec::as_slice) {
        Some([Value::Number(number)]) if number.is_u64() => Ok(number.to_string()),
        Some([Value::String(text)]) if text.trim().parse::<u32>().is_ok() => Ok(text.trim().to_owned()),
        Some([_]) => Err(refuse("that is no device")),
        _ => Err(refuse("Only support one process to one device mapping")),
    }
}

#[derive(Deserialize)]
struct Table {
    server_list: Vec<Server>,
}

#[derive(Deserialize)]
struct Server {
    server_id: String,
    device: Vec<Value>,
}

/// The servers of a rank table, and how many devices each of them has.
pub fn rank_table(file: &File<'_>, text: &str) -> Result<(Vec<String>, usize), SpecError> {
    let hint = r#"it should be {"server_list": [{"server_id": "10.0.0.1", "device": [{"device_id": "0"}, ...]}, ...]}"#;
    let read: Table = file.read(text, hint)?;
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
