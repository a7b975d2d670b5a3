//! Plan of a collective job of the legacy launcher: devices in blocks, and nodes from a list, a rank mapping, a rank
//! table or a job platform.

use super::cluster::{self, LocalAddresses};
use super::{LaunchContext, Plan, RankPlan, command};
use crate::framework::paddle_legacy;
use crate::framework::paddle_legacy::{LegacyIdentity, LegacyWorld, MapperRequest, RankMappingEnv};
use crate::framework::{Binding, paddle_launch};
use crate::model::endpoint::consecutive_ports;
use crate::model::{Endpoint, EnvDelta, ProcessLabel, Role};
use crate::plan::devices::assign;
use crate::plan::devices::assign::{DeviceShare, VisibleDevices};
use crate::plan::devices::machine::DeviceQuery;
use crate::plan::env::base_env;
use crate::plan::env::base_env::PROXIES;
use crate::plan::env::nested::ExportHashes;
use crate::plan::rank_mapping;
use crate::plan::rank_mapping::{MappedMachine, MappingFile};
use crate::spec::legacy::collective::{
    CloudNodes, LegacyBackend, LegacySpec, MappingFiles, NodeSource, RankTable, StartPort,
};
use crate::spec::options::EnvVars;
use crate::spec::paddle::nodes::{FixedHost, FixedNodes, HostPorts};
use crate::spec::{LaunchSpec, SpecError};
use std::sync::Arc;

/// The backend of the ranks and the devices that they run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBackend {
    /// `gloo`, `nccl`, ...
    pub backend: &'static str,
    /// The message that announces it.
    pub message: Option<&'static str>,
    /// The visible devices; none for the kind `cpu`.
    pub visible: VisibleDevices,
}

/// Queries of the machine, which are run only when needed.
pub struct MachineQueries<'a> {
    /// Devices.
    pub machine: DeviceQuery<'a>,
    /// Addresses.
    pub addresses: LocalAddresses<'a>,
    /// Reads a file.
    pub file: &'a dyn Fn(&MappingFile<'_>) -> Result<String, SpecError>,
}

/// Placement of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyRank {
    /// Rank in the job.
    pub rank: usize,
    /// Its endpoint; port 0 stands for a free port that is not chosen yet.
    pub endpoint: Endpoint,
    /// Its devices.
    pub share: DeviceShare,
}

/// Rank placement of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLayout {
    /// Ranks by node.
    pub nodes: Vec<Vec<LegacyRank>>,
    /// Number of this node.
    pub own: usize,
    /// The option or variable with the ports.
    pub ports_from: String,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Network interface with the address of this node, if known; only on several nodes.
    pub interface: Option<String>,
}

impl RankLayout {
    /// The ranks of this node.
    pub fn own_ranks(&self) -> &[LegacyRank] {
        &self.nodes[self.own]
    }

    /// Assigns these ports to the ranks of this node, one a rank.
    pub fn listen_on(&mut self, ports: &[u16]) {
        for (member, port) in self.nodes[self.own].iter_mut().zip(ports) {
            member.endpoint.port = *port;
        }
    }

    /// Comma-separated addresses of the nodes.
    pub fn hosts(&self) -> String {
        let hosts = self.nodes.iter().filter_map(|node| Some(node.first()?.endpoint.host.as_str()));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// Endpoints of all ranks, node by node.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.nodes.iter().flatten().map(|member| member.endpoint.clone()).collect()
    }
}

/// Values of this launcher that all ranks receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LauncherInfo {
    /// Empty directory that exists for the duration of the job.
    pub gloo_dir: String,
    /// File to which a mapper writes the rank mapping.
    pub mapping: String,
    /// Arguments of the launcher, separated by blanks.
    pub args: String,
}

const CPU: VisibleDevices = VisibleDevices { kind: "cpu", from: None, devices: Vec::new(), all: false };

/// Selects the backend and the devices.
pub fn select_backend(
    spec: &LaunchSpec,
    legacy: &LegacySpec,
    vars: &EnvVars,
    machine: DeviceQuery<'_>,
) -> Result<DeviceBackend, SpecError> {
    let of = |kind| assign::visible_of(kind, vars, machine);
    let has_devices = |visible: &VisibleDevices| !visible.devices.is_empty() || spec.devices.is_some();
    let refuse = |why: String, hint: &str| {
        let (field, value) = &legacy.backend_from;
        Err(SpecError::new(field, value, why, hint))
    };
    let with = |backend, message, visible| DeviceBackend { backend, message: Some(message), visible };
    let gpus = |visible| with("nccl", "launch train in GPU mode!", visible);
    let xpus = |visible| with("bkcl", "launch train in XPU mode", visible);
    let found = match legacy.backend {
        _ if matches!(legacy.node_source, NodeSource::RankTable(_)) => {
            let visible = VisibleDevices { kind: "npu", ..CPU };
            Some(with("xccl", "launch train in ascend npu mode!", visible))
        }
        LegacyBackend::Gloo => Some(with("gloo", "launch train in CPU mode", CPU)),
        LegacyBackend::Nccl => Some(of("gpu")?).filter(has_devices).map(gpus),
        LegacyBackend::Bkcl => Some(of("xpu")?).filter(has_devices).map(xpus),
        LegacyBackend::Heter => {
            let (gpu, xpu) = (of("gpu")?, of("xpu")?);
            if gpu.devices.is_empty() && !xpu.devices.is_empty() {
                Some(with("heter", "launch train in heter mode with XPU device.", xpu))
            } else {
                Some(gpu)
                    .filter(has_devices)
                    .map(|gpu| with("heter", "launch train in heter mode with GPU device.", gpu))
            }
        }
        LegacyBackend::Auto => {
            let visible = assign::visible(vars, machine)?;
            Some(match visible.kind {
                "gpu" if has_devices(&visible) => gpus(visible),
                "xpu" if has_devices(&visible) => xpus(visible),
                _ => with("gloo", "launch train in CPU mode", CPU),
            })
        }
        LegacyBackend::Other => None,
    };
    let Some(mut selected) = found else {
        return refuse(
            "Don't supported devices".into(),
            "use auto, which selects the backend by the devices of this node",
        );
    };
    if selected.backend == "gloo" && legacy.elastic.is_none() && legacy.ips.contains(',') {
        let why = format!("CPUONLY launch only support single trainer, that is len(ips)=1, but got {}.", legacy.ips);
        return Err(SpecError::new(
            "--ips",
            &legacy.ips,
            why,
            "leave out --legacy; the current launcher supports several nodes without devices",
        ));
    }
    if matches!(legacy.node_source, NodeSource::Mapped(_)) {
        selected.message = None;
        selected.visible = of("gpu")?;
    }
    Ok(selected)
}

/// Number of ranks on this node; `None` if a file determines it.
pub fn ranks(spec: &LaunchSpec, legacy: &LegacySpec, backend: &DeviceBackend) -> Option<usize> {
    match legacy.node_source {
        NodeSource::Mapped(_) | NodeSource::RankTable(_) => None,
        _ if backend.visible.kind == CPU.kind => Some(spec.nproc_per_node.unwrap_or(1)),
        _ => Some(assign::ranks(spec, &backend.visible)),
    }
}

/// The devices of each rank of this node; empty if a file determines them.
pub fn shares(
    spec: &LaunchSpec,
    legacy: &LegacySpec,
    backend: &DeviceBackend,
    machine: DeviceQuery<'_>,
) -> Result<assign::DeviceShares, SpecError> {
    match legacy.node_source {
        NodeSource::Mapped(_) | NodeSource::RankTable(_) => Ok((Vec::new(), Vec::new())),
        _ if backend.visible.kind == CPU.kind => Ok((vec![cpu(); spec.nproc_per_node.unwrap_or(1)], Vec::new())),
        _ => assign::blocks(spec, &backend.visible, machine),
    }
}

/// Places the ranks. `shares`: the devices of the ranks of this node.
pub fn rank_layout(
    spec: &LaunchSpec,
    legacy: &LegacySpec,
    backend: &DeviceBackend,
    shares: &[DeviceShare],
    queries: &MachineQueries<'_>,
) -> Result<RankLayout, SpecError> {
    match &legacy.node_source {
        NodeSource::Nodes(list, start) => {
            let own = find_own_node(list, &queries.addresses)?;
            let node = |(node, host): (usize, &FixedHost)| uniform_node(node, &host.name, shares, start);
            let nodes = list.hosts.iter().enumerate().map(node).collect::<Result<_, SpecError>>()?;
            Ok(RankLayout { nodes, own, ports_from: list.ports_from.clone(), warnings: Vec::new(), interface: None })
        }
        NodeSource::Cloud(cloud) => layout_on_cloud(cloud, shares),
        NodeSource::Mapped(mapped) => match &mapped.mapping {
            None => layout_of_mappers(mapped, queries),
            Some((field, path)) => layout_by_mapping(spec, backend, mapped, &MappingFile { field, path }, queries),
        },
        NodeSource::RankTable(table) => layout_by_rank_table(spec, table, queries),
    }
}

fn cpu() -> DeviceShare {
    DeviceShare { binding: Binding::Cpu, lists: EnvDelta::new() }
}

/// `count` consecutive or free ports.
fn ports(start: &StartPort, count: usize) -> Result<Vec<u16>, SpecError> {
    match *start {
        StartPort::Free => Ok(vec![0; count]),
        StartPort::From(first, from) => consecutive_ports(first, count)
            .map_err(|error| SpecError::new(from, first.to_string(), error.to_string(), "give a lower one")),
    }
}

/// The ranks of a node in a job whose nodes all have the same ranks.
fn uniform_node(
    node: usize,
    host: &str,
    shares: &[DeviceShare],
    start: &StartPort,
) -> Result<Vec<LegacyRank>, SpecError> {
    let ports = ports(start, shares.len())?;
    Ok(node_ranks(node, shares, ports.into_iter().map(|port| Endpoint::new(host, port))))
}

/// The ranks of a node in a job whose nodes all have the same number of ranks.
fn node_ranks(node: usize, shares: &[DeviceShare], endpoints: impl Iterator<Item = Endpoint>) -> Vec<LegacyRank> {
    let member = |(at, (endpoint, share)): (usize, (Endpoint, &DeviceShare))| LegacyRank {
        rank: node * shares.len() + at,
        endpoint,
        share: share.clone(),
    };
    endpoints.zip(shares).enumerate().map(member).collect()
}

fn layout_on_cloud(cloud: &CloudNodes, shares: &[DeviceShare]) -> Result<RankLayout, SpecError> {
    let mut warnings = Vec::new();
    let (first, from) = match (cloud.port, cloud.start) {
        (Some(port), (start, _)) if cloud.ports >= shares.len() && port != start => {
            warnings.push(format!("Use Cloud specified port:{port}."));
            (port, "PADDLE_PORT")
        }
        (_, start) => start,
    };
    let node = |(node, host): (usize, &String)| {
        let Some(all) = &cloud.endpoints else {
            return uniform_node(node, host, shares, &StartPort::From(first, from));
        };
        let given = &all[node];
        if given.len() < shares.len() {
            let why = "current trainer_endpoints size should be greater equal than accelerators size.";
            let value = Endpoint::join(given);
            return Err(SpecError::new("DISTRIBUTED_TRAINER_ENDPOINTS", value, why, "run fewer ranks a node"));
        }
        Ok(node_ranks(node, shares, given.iter().cloned()))
    };
    let nodes = cloud.hosts.iter().enumerate().map(node).collect::<Result<_, SpecError>>()?;
    let from = if cloud.endpoints.is_some() { "DISTRIBUTED_TRAINER_ENDPOINTS" } else { from };
    Ok(RankLayout { nodes, own: cloud.own, ports_from: from.into(), warnings, interface: None })
}

/// One mapper a machine.
fn layout_of_mappers(mapped: &MappingFiles, queries: &MachineQueries<'_>) -> Result<RankLayout, SpecError> {
    let file = MappingFile { field: "--cluster_topo_path", path: &mapped.topology };
    let hosts = rank_mapping::topology(&file, &(queries.file)(&file)?)?;
    let node = |(rank, host): (usize, &String)| uniform_node(rank, host, &[cpu()], &mapped.start);
    let nodes = hosts.iter().enumerate().map(node).collect::<Result<_, SpecError>>()?;
    layout_on_machines(mapped, &file, &hosts, nodes, queries)
}

fn layout_by_mapping(
    spec: &LaunchSpec,
    backend: &DeviceBackend,
    mapped: &MappingFiles,
    file: &MappingFile<'_>,
    queries: &MachineQueries<'_>,
) -> Result<RankLayout, SpecError> {
    let machines = rank_mapping::mapping(file, &(queries.file)(file)?)?;
    let hosts: Vec<String> = machines.iter().map(|machine| machine.host.clone()).collect();
    let found = |rank: usize, id: &str| {
        let one = LaunchSpec { devices: Some(vec![id.to_owned()]), nproc_per_node: None, ..spec.clone() };
        let shares = assign::blocks(&one, &backend.visible, queries.machine);
        let share = shares.map(|(mut shares, _)| shares.pop()).map_err(|error| {
            SpecError::new(file.field, file.path, format!("rank {rank}: {}", error.why), "correct the file")
        });
        Ok(share?.unwrap_or_else(cpu))
    };
    let node = |machine: &MappedMachine| {
        let ports = ports(&mapped.start, machine.ranks.len())?;
        let member = |((rank, id), port): (&(usize, String), u16)| {
            // Another machine may have more devices than this one, so an unknown device is taken as given.
            let as_given = |_| DeviceShare {
                binding: Binding::Selected { kind: "gpu".into(), indices: id.clone() },
                lists: EnvDelta::new(),
            };
            let share = found(*rank, id).unwrap_or_else(as_given);
            LegacyRank { rank: *rank, endpoint: Endpoint::new(&machine.host, port), share }
        };
        Ok(machine.ranks.iter().zip(ports).map(member).collect())
    };
    let nodes = machines.iter().map(node).collect::<Result<_, SpecError>>()?;
    let layout = layout_on_machines(mapped, file, &hosts, nodes, queries)?;
    let (here, shown) = (&machines[layout.own], backend.visible.devices.len());
    if here.ranks.len() > shown {
        let why = "number of ranks mapped to one node should not exceed the available ones.";
        let why = format!("{why} {} has {}, and {shown} GPU(s) are visible", here.host, here.ranks.len());
        return Err(SpecError::new(file.field, file.path, why, "correct the file, or CUDA_VISIBLE_DEVICES"));
    }
    for (rank, id) in &here.ranks {
        found(*rank, id)?;
    }
    Ok(layout)
}

/// The layout of the machines of a file.
fn layout_on_machines(
    mapped: &MappingFiles,
    file: &MappingFile<'_>,
    hosts: &[String],
    nodes: Vec<Vec<LegacyRank>>,
    queries: &MachineQueries<'_>,
) -> Result<RankLayout, SpecError> {
    if hosts.len() > 1 && mapped.start == StartPort::Free {
        let why = format!("has {} machines, and each would choose other free ports", hosts.len());
        return Err(SpecError::new(file.field, file.path, why, "set FLAGS_START_PORT to the same port on each"));
    }
    let own = find_own_node(&list(hosts, mapped.own.as_ref(), file), &queries.addresses)?;
    let from = match mapped.start {
        StartPort::Free => "",
        StartPort::From(_, from) => from,
    };
    Ok(RankLayout { nodes, own, ports_from: from.into(), warnings: Vec::new(), interface: None })
}

fn list(hosts: &[String], own: Option<&String>, file: &MappingFile<'_>) -> FixedNodes {
    let host = |name: &String| FixedHost { name: name.clone(), ports: HostPorts::These(Vec::new()) };
    FixedNodes {
        hosts: hosts.iter().map(host).collect(),
        own: if hosts.len() == 1 { hosts.first().cloned() } else { own.cloned() },
        from: (file.field.into(), file.path.into()),
        ports_from: String::new(),
    }
}

fn find_own_node(list: &FixedNodes, addresses: &LocalAddresses<'_>) -> Result<usize, SpecError> {
    match &list.own {
        Some(own) => list.hosts.iter().position(|host| host.name == *own).ok_or_else(|| {
            let names: Vec<String> = list.hosts.iter().map(|host| format!("'{}'", host.name)).collect();
            let why = format!("Can't find your local ip {{{own}}} in node_ips: {{[{}]}}", names.join(", "));
            let (field, value) = &list.from;
            SpecError::new(field, value, why, "add it, or give --host (POD_IP) as in the list")
        }),
        None => {
            let names: Vec<&str> = list.hosts.iter().map(|host| host.name.as_str()).collect();
            cluster::find_own_node(&names, None, &list.from, addresses)
        }
    }
}

fn layout_by_rank_table(
    spec: &LaunchSpec,
    table: &RankTable,
    queries: &MachineQueries<'_>,
) -> Result<RankLayout, SpecError> {
    let file = MappingFile { field: "RANK_TABLE_FILE", path: &table.path };
    let (servers, count) = rank_mapping::rank_table(&file, &(queries.file)(&file)?)?;
    let hosts = table.hosts.as_ref().unwrap_or(&servers);
    if let Some(ranks) = spec.nproc_per_node.filter(|ranks| *ranks != count) {
        let why = format!("{} has {count} NPU(s) a server", table.path);
        return Err(SpecError::new("--nproc_per_node", ranks.to_string(), why, "leave it out"));
    }
    let own = match table.index {
        _ if hosts.len() == 1 => 0,
        Some(index) if index < hosts.len() => index,
        Some(index) => {
            let why = format!("there are {} nodes, numbered from 0", hosts.len());
            return Err(SpecError::new("PADDLE_TRAINER_ID", index.to_string(), why, "correct one of them"));
        }
        None => find_own_node(&list(hosts, table.own.as_ref(), &file), &queries.addresses)?,
    };
    let npu = |i: usize| Binding::Selected { kind: "npu".into(), indices: i.to_string() };
    let shares: Vec<DeviceShare> =
        (0..count).map(|i| DeviceShare { binding: npu(i), lists: EnvDelta::new() }).collect();
    let (first, from) = table.start;
    let node = |(node, host): (usize, &String)| uniform_node(node, host, &shares, &StartPort::From(first, from));
    let nodes = hosts.iter().enumerate().map(node).collect::<Result<_, SpecError>>()?;
    Ok(RankLayout { nodes, own, ports_from: from.into(), warnings: Vec::new(), interface: None })
}

/// The plan for this node.
pub fn plan(
    spec: &LaunchSpec,
    legacy: &LegacySpec,
    vars: &EnvVars,
    context: &LaunchContext,
    (layout, backend, launcher): (&RankLayout, &DeviceBackend, &LauncherInfo),
) -> Result<Plan, SpecError> {
    let mapping = match &legacy.node_source {
        NodeSource::Mapped(mapped) => {
            let request = MapperRequest { path: launcher.mapping.clone(), args: launcher.args.clone() };
            Some(RankMappingEnv {
                topology: mapped.topology.clone(),
                request: mapped.mapping.is_none().then_some(request),
            })
        }
        _ => None,
    };
    let role = match &mapping {
        Some(RankMappingEnv { request: Some(_), .. }) => Role::Mapper,
        _ => Role::Trainer,
    };
    let endpoints: Arc<str> = Endpoint::join(&layout.endpoints()).into();
    // The store connects to the first endpoint for rank 0, and does not read the file for variables that are too long.
    let is_in_env = !base_env::is_too_long("PADDLE_TRAINER_ENDPOINTS", &endpoints, vars);
    let first = layout.nodes.iter().flatten().next().is_none_or(|member| member.rank == 0);
    let leader = layout.nodes.iter().flatten().find(|member| member.rank == 0 && !(is_in_env && first));
    let world = LegacyWorld {
        size: layout.nodes.iter().map(Vec::len).sum(),
        endpoints,
        master: leader.map(|member| member.endpoint.clone()),
        devices: paddle_legacy::world_devices(layout.nodes.iter().flatten().map(|m| &m.share.binding)).into(),
        backend: backend.backend.into(),
        with_gloo: legacy.with_gloo.clone(),
        trainers: legacy.elastic.is_some().then(|| layout.hosts().into()),
        gloo_dir: launcher.gloo_dir.clone(),
        mapping,
    };
    let argv = command::argv(&spec.script, &spec.args, &context.python, vars);
    let mut hashes = ExportHashes::default();
    let ranks = layout.own_ranks().iter().enumerate().map(|(local_rank, member)| {
        let LegacyRank { rank, endpoint, share } = member.clone();
        let identity = LegacyIdentity { rank, local_rank, endpoint, binding: share.binding };
        let mut env = share.lists;
        // Unlike the current launcher, the legacy launcher does not keep them under another name.
        for name in PROXIES.into_iter().filter(|name| vars.contains_key(*name)) {
            env.unset(name);
        }
        base_env::set_openmp_threads(&mut env, vars);
        env.extend(&paddle_legacy::write(&identity, &world));
        if let Some(interface) = &layout.interface {
            base_env::set_interface(&mut env, vars, interface);
        }
        let env_overflow = base_env::complete(&mut env, vars, &context.log_dir, rank, &mut hashes)?;
        let (endpoint, binding) = (Some(identity.endpoint), identity.binding);
        let log = format!("{}.{local_rank}", role.log_prefix());
        let process = ProcessLabel { role, number: rank };
        Ok(RankPlan { endpoint, binding, ..RankPlan::with_log(process, argv.clone(), env, log, env_overflow) })
    });
    Ok(Plan {
        ranks: ranks.collect::<Result<_, _>>()?,
        nnodes: layout.nodes.len(),
        world_size: world.size,
        pod: paddle_launch::PodInfo {
            name: context.pod_name.clone(),
            log_dir: context.log_dir.clone(),
            auto_cluster: false,
        },
        job_id: spec.job_id.clone(),
        mode: if role == Role::Mapper { "rank mapping" } else { "collective" },
        awaits_servers: false,
    })
}
