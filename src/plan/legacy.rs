//! A collective job in the older launcher's ways: devices in blocks, and nodes that are listed, mapped, or told by a
//! platform.

use super::cluster::{self, Addresses};
use super::devices::{self, Share, Visible};
use super::machine::Ask;
use super::mapping::{self, File, Machine};
use super::nested::Hashes;
use super::surroundings::{self, PROXIES};
use super::{HostFacts, Plan, RankPlan, command};
use crate::dialect::paddle_legacy::{self, Identity, Mapping, Wanted, World};
use crate::dialect::{Binding, paddle_launch};
use crate::model::endpoint::consecutive;
use crate::model::{Endpoint, EnvPatch, Role, Who};
use crate::spec::legacy::{Backend, Cloud, Layout, LegacySpec, Mapped, RankTable, Start};
use crate::spec::nodes::{Fixed, Host, HostPorts};
use crate::spec::options::Vars;
use crate::spec::{LaunchSpec, SpecError};
use std::sync::Arc;

/// What the ranks run on, and talk by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ground {
    /// `gloo`, `nccl`, ...
    pub backend: &'static str,
    /// The line that says so, if one does.
    pub words: Option<&'static str>,
    /// The devices to choose from; none of kind `cpu`.
    pub visible: Visible,
}

/// What is asked of a machine only when somebody has to know.
pub struct Asks<'a> {
    /// Its devices.
    pub machine: Ask<'a>,
    /// Its addresses.
    pub addresses: Addresses<'a>,
    /// The text of a file.
    pub file: &'a dyn Fn(&File<'_>) -> Result<String, SpecError>,
}

/// One rank of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number in the job.
    pub rank: usize,
    /// Where it listens; port 0 means a free one, not chosen yet.
    pub endpoint: Endpoint,
    /// Its devices.
    pub share: Share,
}

/// Who runs where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// By node.
    pub nodes: Vec<Vec<Member>>,
    /// Which node this is.
    pub own: usize,
    /// The option or variable that has the ports.
    pub ports_from: String,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// The interface that has this node's address, if that is known and other nodes are reached by it.
    pub interface: Option<String>,
}

impl Site {
    /// The ranks of this node.
    pub fn here(&self) -> &[Member] {
        &self.nodes[self.own]
    }

    /// Gives this node's ranks these ports, of which there are as many.
    pub fn listen_on(&mut self, ports: &[u16]) {
        for (member, port) in self.nodes[self.own].iter_mut().zip(ports) {
            member.endpoint.port = *port;
        }
    }

    /// The nodes' addresses, joined by commas.
    pub fn hosts(&self) -> String {
        let hosts = self.nodes.iter().filter_map(|node| Some(node.first()?.endpoint.host.as_str()));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// Where all ranks listen, node by node.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.nodes.iter().flatten().map(|member| member.endpoint.clone()).collect()
    }
}

/// What this launcher tells all ranks of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Itself {
    /// An empty folder that is there as long as the job.
    pub folder: String,
    /// Where a mapper is to write the mapping.
    pub mapping: String,
    /// Its arguments, joined by blanks.
    pub args: String,
}

const CPU: Visible = Visible { kind: "cpu", from: None, devices: Vec::new(), all: false };

/// What the ranks of a request run on.
pub fn ground(spec: &LaunchSpec, legacy: &LegacySpec, vars: &Vars, machine: Ask<'_>) -> Result<Ground, SpecError> {
    let of = |kind| devices::visible_of(kind, vars, machine);
    let there = |visible: &Visible| !visible.devices.is_empty() || spec.devices.is_some();
    let refuse = |why: String, hint: &str| {
        let (field, value) = &legacy.backend_from;
        Err(SpecError::new(field, value, why, hint))
    };
    let ground = |backend, words, visible| Ground { backend, words: Some(words), visible };
    let gpus = |visible| ground("nccl", "launch train in GPU mode!", visible);
    let xpus = |visible| ground("bkcl", "launch train in XPU mode", visible);
    let found = match legacy.backend {
        _ if matches!(legacy.layout, Layout::RankTable(_)) => {
            let visible = Visible { kind: "npu", ..CPU };
            Some(ground("xccl", "launch train in ascend npu mode!", visible))
        }
        Backend::Gloo => Some(ground("gloo", "launch train in CPU mode", CPU)),
        Backend::Nccl => Some(of("gpu")?).filter(there).map(gpus),
        Backend::Bkcl => Some(of("xpu")?).filter(there).map(xpus),
        Backend::Heter => {
            let (gpu, xpu) = (of("gpu")?, of("xpu")?);
            if gpu.devices.is_empty() && !xpu.devices.is_empty() {
                Some(ground("heter", "launch train in heter mode with XPU device.", xpu))
            } else {
                Some(gpu).filter(there).map(|gpu| ground("heter", "launch train in heter mode with GPU device.", gpu))
            }
        }
        Backend::Auto => {
            let visible = devices::visible(vars, machine)?;
            Some(match visible.kind {
                "gpu" if there(&visible) => gpus(visible),
                "xpu" if there(&visible) => xpus(visible),
                _ => ground("gloo", "launch train in CPU mode", CPU),
            })
        }
        Backend::Other => None,
    };
    let Some(mut ground) = found else {
        return refuse("Don't supported devices".into(), "auto takes what the devices that are there need");
    };
    if ground.backend == "gloo" && legacy.elastic.is_none() && legacy.ips.contains(',') {
        let why = format!("CPUONLY launch only support single trainer, that is len(ips)=1, but got {}.", legacy.ips);
        return Err(SpecError::new("--ips", &legacy.ips, why, "leave out --legacy: the newer launcher can"));
    }
    if matches!(legacy.layout, Layout::Mapped(_)) {
        ground.words = None;
        ground.visible = of("gpu")?;
    }
    Ok(ground)
}

/// How many ranks this node will have, where no file says so.
pub fn ranks(spec: &LaunchSpec, legacy: &LegacySpec, ground: &Ground) -> Option<usize> {
    match legacy.layout {
        Layout::Mapped(_) | Layout::RankTable(_) => None,
        _ if ground.visible.kind == CPU.kind => Some(spec.nproc_per_node.unwrap_or(1)),
        _ => Some(devices::ranks(spec, &ground.visible)),
    }
}

/// What each rank of this node gets, where no file says so.
pub fn shares(
    spec: &LaunchSpec,
    legacy: &LegacySpec,
    ground: &Ground,
    machine: Ask<'_>,
) -> Result<devices::Shares, SpecError> {
    match legacy.layout {
        Layout::Mapped(_) | Layout::RankTable(_) => Ok((Vec::new(), Vec::new())),
        _ if ground.visible.kind == CPU.kind => Ok((vec![cpu(); spec.nproc_per_node.unwrap_or(1)], Vec::new())),
        _ => devices::blocks(spec, &ground.visible, machine),
    }
}

/// Who runs where; `shares`: what the ranks of this node get.
pub fn site(
    spec: &LaunchSpec,
    legacy: &LegacySpec,
    ground: &Ground,
    shares: &[Share],
    asks: &Asks<'_>,
) -> Result<Site, SpecError> {
    match &legacy.layout {
        Layout::Nodes(list, start) => {
            let own = own(list, &asks.addresses)?;
            let node = |(node, host): (usize, &Host)| all_of(node, &host.name, shares, start);
            let nodes = list.hosts.iter().enumerate().map(node).collect::<Result<_, SpecError>>()?;
            Ok(Site { nodes, own, ports_from: list.ports_from.clone(), warnings: Vec::new(), interface: None })
        }
        Layout::Cloud(cloud) => on_platform(cloud, shares),
        Layout::Mapped(mapped) => match &mapped.mapping {
            None => before_mapping(mapped, asks),
            Some((field, path)) => by_mapping(spec, ground, mapped, &File { field, path }, asks),
        },
        Layout::RankTable(table) => by_table(spec, table, asks),
    }
}

fn cpu() -> Share {
    Share { binding: Binding::Cpu, lists: EnvPatch::new() }
}

/// `count` ports from the start.
fn ports(start: &Start, count: usize) -> Result<Vec<u16>, SpecError> {
    match *start {
        Start::Free => Ok(vec![0; count]),
        Start::From(first, from) => {
            consecutive(first, count).map_err(|why| SpecError::new(from, first.to_string(), why, "give a lower one"))
        }
    }
}

/// A node of which all have the same ranks.
fn all_of(node: usize, host: &str, shares: &[Share], start: &Start) -> Result<Vec<Member>, SpecError> {
    let ports = ports(start, shares.len())?;
    Ok(members(node, shares, ports.into_iter().map(|port| Endpoint::new(host, port))))
}

/// The ranks of a node, of which all have as many.
fn members(node: usize, shares: &[Share], endpoints: impl Iterator<Item = Endpoint>) -> Vec<Member> {
    let member = |(at, (endpoint, share)): (usize, (Endpoint, &Share))| Member {
        rank: node * shares.len() + at,
        endpoint,
        share: share.clone(),
    };
    endpoints.zip(shares).enumerate().map(member).collect()
}

fn on_platform(cloud: &Cloud, shares: &[Share]) -> Result<Site, SpecError> {
    let mut warnings = Vec::new();
    let (first, from) = match (cloud.port, cloud.start) {
        (Some(port), (start, _)) if cloud.ports >= shares.len() && port != start => {
            warnings.push(format!("Use Cloud specified port:{port}."));
            (port, "PADDLE_PORT")
        }
        (_, start) => start,
    };
    let node = |(node, host): (usize, &String)| {
        let Some(all) = &cloud.endpoints else { return all_of(node, host, shares, &Start::From(first, from)) };
        let given = &all[node];
        if given.len() < shares.len() {
            let why = "current trainer_endpoints size should be greater equal than accelerators size.";
            let value = Endpoint::join(given);
            return Err(SpecError::new("DISTRIBUTED_TRAINER_ENDPOINTS", value, why, "run fewer ranks a node"));
        }
        Ok(members(node, shares, given.iter().cloned()))
    };
    let nodes = cloud.hosts.iter().enumerate().map(node).collect::<Result<_, SpecError>>()?;
    let from = if cloud.endpoints.is_some() { "DISTRIBUTED_TRAINER_ENDPOINTS" } else { from };
    Ok(Site { nodes, own: cloud.own, ports_from: from.into(), warnings, interface: None })
}

/// A mapper a machine.
fn before_mapping(mapped: &Mapped, asks: &Asks<'_>) -> Result<Site, SpecError> {
    let file = File { field: "--cluster_topo_path", path: &mapped.topology };
    let hosts = mapping::topology(&file, &(asks.file)(&file)?)?;
    let node = |(rank, host): (usize, &String)| all_of(rank, host, &[cpu()], &mapped.start);
    let nodes = hosts.iter().enumerate().map(node).collect::<Result<_, SpecError>>()?;
    on_machines(mapped, &file, &hosts, nodes, asks)
}

fn by_mapping(
    spec: &LaunchSpec,
    ground: &Ground,
    mapped: &Mapped,
    file: &File<'_>,
    asks: &Asks<'_>,
) -> Result<Site, SpecError> {
    let machines = mapping::mapping(file, &(asks.file)(file)?)?;
    let hosts: Vec<String> = machines.iter().map(|machine| machine.host.clone()).collect();
    let found = |rank: usize, id: &str| {
        let one = LaunchSpec { devices: Some(vec![id.to_owned()]), nproc_per_node: None, ..spec.clone() };
        let shares = devices::blocks(&one, &ground.visible, asks.machine);
        let share = shares.map(|(mut shares, _)| shares.pop()).map_err(|error| {
            SpecError::new(file.field, file.path, format!("rank {rank}: {}", error.why), "correct the file")
        });
        Ok(share?.unwrap_or_else(cpu))
    };
    let node = |machine: &Machine| {
        let ports = ports(&mapped.start, machine.ranks.len())?;
        let member = |((rank, id), port): (&(usize, String), u16)| {
            // Another machine may show more devices than this one.
            let as_named = |_| Share {
                binding: Binding::Selected { kind: "gpu".into(), indices: id.clone() },
                lists: EnvPatch::new(),
            };
            let share = found(*rank, id).unwrap_or_else(as_named);
            Member { rank: *rank, endpoint: Endpoint::new(&machine.host, port), share }
        };
        Ok(machine.ranks.iter().zip(ports).map(member).collect())
    };
    let nodes = machines.iter().map(node).collect::<Result<_, SpecError>>()?;
    let site = on_machines(mapped, file, &hosts, nodes, asks)?;
    let (here, shown) = (&machines[site.own], ground.visible.devices.len());
    if here.ranks.len() > shown {
        let why = "number of ranks mapped to one node should not exceed the available ones.";
        let why = format!("{why} {} has {}, and {shown} GPU(s) are there", here.host, here.ranks.len());
        return Err(SpecError::new(file.field, file.path, why, "correct the file, or CUDA_VISIBLE_DEVICES"));
    }
    for (rank, id) in &here.ranks {
        found(*rank, id)?;
    }
    Ok(site)
}

/// The site of some machines of a file.
fn on_machines(
    mapped: &Mapped,
    file: &File<'_>,
    hosts: &[String],
    nodes: Vec<Vec<Member>>,
    asks: &Asks<'_>,
) -> Result<Site, SpecError> {
    if hosts.len() > 1 && mapped.start == Start::Free {
        let why = format!("has {} machines, each of which would choose ports of its own", hosts.len());
        return Err(SpecError::new(file.field, file.path, why, "set FLAGS_START_PORT, the same on each"));
    }
    let own = own(&list(hosts, mapped.own.as_ref(), file), &asks.addresses)?;
    let from = match mapped.start {
        Start::Free => "",
        Start::From(_, from) => from,
    };
    Ok(Site { nodes, own, ports_from: from.into(), warnings: Vec::new(), interface: None })
}

fn list(hosts: &[String], own: Option<&String>, file: &File<'_>) -> Fixed {
    let host = |name: &String| Host { name: name.clone(), ports: HostPorts::These(Vec::new()) };
    Fixed {
        hosts: hosts.iter().map(host).collect(),
        own: if hosts.len() == 1 { hosts.first().cloned() } else { own.cloned() },
        from: (file.field.into(), file.path.into()),
        ports_from: String::new(),
    }
}

fn own(list: &Fixed, addresses: &Addresses<'_>) -> Result<usize, SpecError> {
    match &list.own {
        Some(own) => list.hosts.iter().position(|host| host.name == *own).ok_or_else(|| {
            let names: Vec<String> = list.hosts.iter().map(|host| format!("'{}'", host.name)).collect();
            let why = format!("Can't find your local ip {{{own}}} in node_ips: {{[{}]}}", names.join(", "));
            let (field, value) = &list.from;
            SpecError::new(field, value, why, "add it, or say --host (POD_IP) as the list has it")
        }),
        None => {
            let names: Vec<&str> = list.hosts.iter().map(|host| host.name.as_str()).collect();
            cluster::own(&names, None, &list.from, addresses)
        }
    }
}

fn by_table(spec: &LaunchSpec, table: &RankTable, asks: &Asks<'_>) -> Result<Site, SpecError> {
    let file = File { field: "RANK_TABLE_FILE", path: &table.path };
    let (servers, count) = mapping::rank_table(&file, &(asks.file)(&file)?)?;
    let hosts = table.hosts.as_ref().unwrap_or(&servers);
    if let Some(ranks) = spec.nproc_per_node.filter(|ranks| *ranks != count) {
        let why = format!("{} has {count} NPU(s) a server", table.path);
        return Err(SpecError::new("--nproc_per_node", ranks.to_string(), why, "leave it out"));
    }
    let own = match table.index {
        _ if hosts.len() == 1 => 0,
        Some(index) if index < hosts.len() => index,
        Some(index) => {
            let why = format!("there are {} nodes, and the first is number 0", hosts.len());
            return Err(SpecError::new("PADDLE_TRAINER_ID", index.to_string(), why, "correct one of them"));
        }
        None => own(&list(hosts, table.own.as_ref(), &file), &asks.addresses)?,
    };
    let npu = |i: usize| Binding::Selected { kind: "npu".into(), indices: i.to_string() };
    let shares: Vec<Share> = (0..count).map(|i| Share { binding: npu(i), lists: EnvPatch::new() }).collect();
    let (first, from) = table.start;
    let node = |(node, host): (usize, &String)| all_of(node, host, &shares, &Start::From(first, from));
    let nodes = hosts.iter().enumerate().map(node).collect::<Result<_, SpecError>>()?;
    Ok(Site { nodes, own, ports_from: from.into(), warnings: Vec::new(), interface: None })
}

/// The plan for this node.
pub fn plan(
    spec: &LaunchSpec,
    legacy: &LegacySpec,
    vars: &Vars,
    facts: &HostFacts,
    (site, ground, itself): (&Site, &Ground, &Itself),
) -> Result<Plan, SpecError> {
    let mapping = match &legacy.layout {
        Layout::Mapped(mapped) => {
            let wanted = Wanted { path: itself.mapping.clone(), args: itself.args.clone() };
            Some(Mapping { topology: mapped.topology.clone(), wanted: mapped.mapping.is_none().then_some(wanted) })
        }
        _ => None,
    };
    let role = match &mapping {
        Some(Mapping { wanted: Some(_), .. }) => Role::Mapper,
        _ => Role::Trainer,
    };
    let endpoints: Arc<str> = Endpoint::join(&site.endpoints()).into();
    // The store looks for rank 0 at the first endpoint, and does not read what was too long for the environment.
    let said = !surroundings::is_too_long("PADDLE_TRAINER_ENDPOINTS", &endpoints, vars);
    let first = site.nodes.iter().flatten().next().is_none_or(|member| member.rank == 0);
    let leader = site.nodes.iter().flatten().find(|member| member.rank == 0 && !(said && first));
    let world = World {
        size: site.nodes.iter().map(Vec::len).sum(),
        endpoints,
        master: leader.map(|member| member.endpoint.clone()),
        devices: paddle_legacy::world_devices(site.nodes.iter().flatten().map(|m| &m.share.binding)).into(),
        backend: ground.backend.into(),
        with_gloo: legacy.with_gloo.clone(),
        trainers: legacy.elastic.is_some().then(|| site.hosts().into()),
        folder: itself.folder.clone(),
        mapping,
    };
    let argv = command::argv(&spec.script, &spec.args, &facts.python, vars);
    let mut hashes = Hashes::default();
    let ranks = site.here().iter().enumerate().map(|(local_rank, member)| {
        let Member { rank, endpoint, share } = member.clone();
        let who = Identity { rank, local_rank, endpoint, binding: share.binding };
        let mut env = share.lists;
        // Not kept under another name, as the newer launcher does.
        for name in PROXIES.into_iter().filter(|name| vars.contains_key(*name)) {
            env.unset(name);
        }
        env.extend(&paddle_legacy::write(&who, &world));
        if let Some(interface) = &site.interface {
            surroundings::set_interface(&mut env, vars, interface);
        }
        let backup = surroundings::complete(&mut env, vars, &facts.log_dir, rank, &mut hashes)?;
        let (endpoint, binding) = (Some(who.endpoint), who.binding);
        let log = format!("{}.{local_rank}", role.log());
        let process = Who { role, number: rank };
        Ok(RankPlan { endpoint, binding, ..RankPlan::with_log(process, argv.clone(), env, log, backup) })
    });
    Ok(Plan {
        ranks: ranks.collect::<Result<_, _>>()?,
        nnodes: site.nodes.len(),
        world_size: world.size,
        pod: paddle_launch::Pod { name: facts.pod_name.clone(), log_dir: facts.log_dir.clone(), auto_cluster: false },
        job_id: spec.job_id.clone(),
        mode: if role == Role::Mapper { "rank mapping" } else { "collective" },
        servers_end: false,
    })
}
