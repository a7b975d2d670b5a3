//! Checks of the machine before anything is started, each with one line that says the way out.

use crate::model::endpoint;
use crate::plan::cluster::{self, Addresses, Cluster};
use crate::plan::dialects::Servers;
use crate::plan::ps::{self, Layout};
use crate::probe::{memory, net};
use crate::rendezvous::torch_store::Limits;
use crate::spec::job::Job;
use crate::spec::nodes::{Nodes, Ports};
use crate::spec::places::Place;
use crate::spec::ps::Laid;
use crate::spec::{LaunchSpec, Script, SpecError};
use crate::sys::limits;
use crate::sys::ports::{Busy, Lease};
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Finds the program of a command line, as a shell would, and checks that it can be run.
pub fn find_program(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, SpecError> {
    let refuse = |why: &str, hint: &str| Err(SpecError::new("training_script", name.to_string_lossy(), why, hint));
    let executable = |p: &Path| p.is_file() && nix::unistd::access(p, nix::unistd::AccessFlags::X_OK).is_ok();
    if name.as_encoded_bytes().contains(&b'/') {
        let found = PathBuf::from(name);
        return match () {
            () if executable(&found) => Ok(found),
            () if !found.exists() => refuse("does not exist", "give the path of a program or of a .py file"),
            () => refuse("cannot be executed", "chmod +x it, or name it *.py to have Python run it"),
        };
    }
    let path = path.map_or(b"/usr/local/bin:/usr/bin:/bin".as_slice(), OsStr::as_bytes);
    for folder in path.split(|b| *b == b':') {
        let found = Path::new(OsStr::from_bytes(if folder.is_empty() { b"." } else { folder })).join(name);
        if executable(&found) {
            return Ok(found);
        }
    }
    refuse("is not a program in PATH", "give its path (./ for this folder), or a .py file for Python to run")
}

/// Checks a script that Python is to run.
pub fn check_script(script: &Script) -> Result<(), SpecError> {
    let (Script::File(name) | Script::Python(name)) = script else { return Ok(()) };
    if !script.runs_in_python() {
        return if Path::new(name).is_dir() { Err(directory(name)) } else { Ok(()) };
    }
    let refuse = |why: String, hint: &str| Err(SpecError::new("training_script", name.to_string_lossy(), why, hint));
    // Without waiting for whoever writes to a FIFO of that name.
    match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(name) {
        Ok(file) if file.metadata().is_ok_and(|m| m.is_dir()) => Err(directory(name)),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            refuse("does not exist".into(), "check the path; options of the launcher go before the script")
        }
        Err(error) => refuse(format!("cannot be read: {}", super::logs::plain(&error)), "check its permissions"),
    }
}

fn directory(name: &OsStr) -> SpecError {
    SpecError::new(
        "training_script",
        name.to_string_lossy(),
        "is a directory",
        "name the script in it, or use --module for a package",
    )
}

/// No file that the launcher itself reads is longer.
const LONGEST: u64 = 64 << 20;

/// The text of a file that the option or variable `field` names. Nobody who has yet to write it is waited for.
pub fn read(field: &str, path: &str) -> Result<String, SpecError> {
    let read = || -> io::Result<String> {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !opened.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut text = String::new();
        opened.take(LONGEST).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| {
        let why = format!("cannot be read: {}", super::logs::plain(&error));
        SpecError::new(field, path, why, "check the name of the file")
    })
}

/// execve refuses any string of 128 KiB or more.
pub fn check_lengths(argv: &[OsString]) -> Result<(), SpecError> {
    match argv.iter().enumerate().find(|(_, arg)| arg.len() >= limits::MAX_ARG_STRLEN) {
        None => Ok(()),
        Some((index, arg)) => Err(SpecError::new(
            format!("argument {index} of the ranks' command"),
            arg.to_string_lossy(),
            format!("is {} bytes long; Linux takes {} at most", arg.len(), limits::MAX_ARG_STRLEN - 1),
            "put it into a file and pass the file's name",
        )),
    }
}

/// Descriptors a rank costs the command line's launcher: its pidfd and its port's lease.
pub const FDS_OF_LAUNCH: u64 = 2;
/// Descriptors a rank costs a program that calls `spawn`: the same, the two of its outbox, and with the
/// fork server the pipe of its status and the sentinel it is given.
pub const FDS_OF_SPAWN: u64 = 6;
/// Descriptors a worker in torchrun's words costs: its pidfd, what follows its two streams, what keeps one of them short,
/// its port in Paddle's words.
const FDS_OF_WORKER: u64 = 7;
const FDS_OF_OUR_OWN: u64 = 32;

fn needed(ranks: usize, each: u64) -> u64 {
    (ranks as u64).saturating_mul(each).saturating_add(FDS_OF_OUR_OWN + limits::open_now())
}

/// Makes room for the descriptors of `ranks` ranks, `each` a rank; `field` is what asks for that many. Returns the soft limit that the ranks themselves
/// should keep, if ours had to be raised.
pub fn make_room(field: &str, ranks: usize, each: u64) -> Result<Option<u64>, SpecError> {
    let needed = needed(ranks, each);
    let (soft, hard) = limits::open_files();
    if limits::raise_open_files(needed) < needed {
        return Err(SpecError::new(
            field,
            ranks.to_string(),
            format!("needs {needed} open files, and the limit is {hard}"),
            "ask for fewer ranks, or raise the limit (ulimit -Hn)",
        ));
    }
    Ok((soft < needed).then_some(soft))
}

/// The same for workers that find each other at a store of the launcher's: how many connections come to it nobody knows,
/// so it gets all the room there is.
pub fn make_room_with_store(field: &str, workers: usize) -> Result<Option<u64>, SpecError> {
    let before = make_room(field, workers, FDS_OF_WORKER)?;
    let (soft, hard) = limits::open_files();
    Ok(before.or((limits::raise_open_files(hard) > soft).then_some(soft)))
}

/// What a store beside so many workers may hold, once there is room.
pub fn limits_of_store(workers: usize) -> Limits {
    let spare = limits::open_files().0.saturating_sub(needed(workers, FDS_OF_WORKER));
    Limits::of(memory::total(Path::new("/")), spare)
}

/// The cluster that a request asks for, with `ranks` ranks on this node, and its ports there, held until the leases
/// are dropped.
pub fn cluster(spec: &LaunchSpec, ranks: usize) -> Result<(Cluster, Vec<Lease>), SpecError> {
    match &spec.nodes {
        Nodes::Fixed(list) => {
            let addresses = Addresses { own: &net::addresses, of: &net::of, interface: &net::interface_of };
            let mut cluster = cluster::fixed(list, ranks, &addresses)?;
            if spec.job == Job::Rpc {
                cluster = cluster.with_master_apart(&list.from)?;
            }
            cluster = cluster.with_servers(&spec.dialects, &list.from)?;
            let busy = |why: String| SpecError::new(&list.ports_from, "", why, "choose others, the same on each node");
            let master = cluster.master.iter().map(|master| master.port);
            let first = master.chain(cluster.servers.ports()).filter(|_| cluster.own == 0);
            let ports = cluster.own_ports().iter().copied().chain(first);
            let held = ports.map(|port| Lease::fixed(port).map_err(|e| busy(e.to_string())));
            let held = held.collect::<Result<_, _>>()?;
            Ok((cluster, held))
        }
        Nodes::One { host, ports } => {
            let more = Servers::ports_needed(&spec.dialects);
            let held = match *ports {
                Ports::Range { low, high } => free(low, high, ranks + 1 + more)?,
                Ports::Fixed { first, low, high } => {
                    let field = "FLAGS_FIXED_PORT";
                    let hint = "choose another, or leave it out for free ports";
                    let of_ranks =
                        consecutive(first, ranks).map_err(|why| SpecError::new(field, first.to_string(), why, hint))?;
                    let mut held = free(low, high, 1 + more)?;
                    held.extend(of_ranks);
                    held
                }
            };
            let mut ports: Vec<u16> = held.iter().map(Lease::port).collect();
            let master = ports.remove(0);
            let of_ranks = ports.split_off(more);
            let mut cluster = Cluster::alone(host, of_ranks, Some(master));
            if let [torch, jax] = ports[..] {
                cluster.servers = Servers::at(&spec.dialects, host, [torch, jax]);
            }
            Ok((cluster, held))
        }
    }
}

/// Leases any free port.
pub fn any_port() -> Result<Lease, SpecError> {
    Lease::any().map_err(|error| SpecError::new("a free port", "", error.to_string(), "close some programs"))
}

/// This node's address among those of a job with parameter servers, and how many of its processes are here.
pub fn own_of(laid: &Laid) -> Result<(String, usize), SpecError> {
    let own = ps::own(laid, &Addresses { own: &net::addresses, of: &net::of, interface: &net::interface_of })?;
    let here = laid.places().filter(|place| place.host == own).count();
    Ok((own, here))
}

/// Where the processes of such a job listen, this node's ports held until the leases are dropped, and what the user
/// should know.
pub fn layout(spec: &LaunchSpec, laid: &Laid, own: &str) -> Result<(Layout, Vec<Lease>, Option<String>), SpecError> {
    let (low, high) = match &spec.nodes {
        Nodes::One { ports: Ports::Range { low, high } | Ports::Fixed { low, high, .. }, .. } => (*low, *high),
        Nodes::Fixed(_) => (1, u16::MAX),
    };
    let wanted = laid.places().chain([&laid.http]).filter(|place| place.port.is_none()).count();
    let mut held = free(low, high, wanted)?;
    let ports: Vec<u16> = held.iter().map(Lease::port).collect();
    let too_few = || SpecError::new("PORT_RANGE", format!("{low}:{high}"), "has too few ports", "widen it");
    let layout = ps::layout(laid, own, &ports).ok_or_else(too_few)?;
    let chosen = |place: &&Place| place.host == own && place.port.is_some();
    for place in laid.places().filter(chosen) {
        held.push(leased(place)?);
    }
    let mut warning = None;
    if let Some(http) = Some(&laid.http).filter(chosen) {
        match leased(http) {
            Ok(lease) => held.push(lease),
            Err(busy) if laid.http_asked => return Err(busy),
            // Most jobs do not use it.
            Err(busy) => warning = Some(format!("{busy}: only a job that uses gloo needs it (--gloo_port)")),
        }
    }
    Ok((layout, held, warning))
}

fn leased(place: &Place) -> Result<Lease, SpecError> {
    let port = place.port.unwrap_or(0);
    let hint = "choose another, the same on each node";
    let refuse = |busy: Busy| SpecError::new("the endpoint", format!("{}:{port}", place.host), busy.to_string(), hint);
    Lease::fixed(port).map_err(refuse)
}

/// Leases `count` ports from `first` on.
pub fn consecutive(first: u16, count: usize) -> Result<Vec<Lease>, String> {
    each(endpoint::consecutive(first, count).map_err(|why| format!("port {first} {why}"))?.into_iter())
}

/// Leases these very ports.
pub fn each(ports: impl Iterator<Item = u16>) -> Result<Vec<Lease>, String> {
    ports.map(|port| Lease::fixed(port).map_err(|busy: Busy| busy.to_string())).collect()
}

/// Leases `count` free ports of a range, from a random place on, wrapping round.
fn free(low: u16, high: u16, count: usize) -> Result<Vec<Lease>, SpecError> {
    let span = usize::from(high - low) + 1;
    let start = fastrand::usize(..span);
    let mut held = Vec::new();
    for step in 0..span {
        if held.len() == count {
            return Ok(held);
        }
        if let Ok(lease) = Lease::fixed(low + ((start + step) % span) as u16) {
            held.push(lease);
        }
    }
    if held.len() == count {
        return Ok(held);
    }
    Err(SpecError::new(
        "PORT_RANGE",
        format!("{low}:{high}"),
        format!("has {} free ports, and {count} are needed", held.len()),
        "widen it, or ask for fewer ranks",
    ))
}
