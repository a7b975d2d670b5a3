//! The nodes of a job from the variables of a scheduler that started a launcher on each: Slurm, Open MPI or Kubernetes.
//! Options override it. A launcher inside a rank must not use it.

use crate::model::Endpoint;
use crate::spec::error::SpecError;
use crate::spec::options::{EnvVars, SchedulerValue};
use crate::spec::scheduler::hostlist::expand;
use std::collections::BTreeSet;
use std::fmt;

/// The nodes of a job, from a scheduler's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerNodes {
    /// The scheduler's name.
    pub by: &'static str,
    /// Number of nodes, 2 or more; `None`: the scheduler sets only this node's number, which counts only if the user
    /// gives several nodes.
    pub nnodes: Option<usize>,
    /// This node's number, below `nnodes`.
    pub rank: Option<usize>,
    /// The name or address of node 0, if known; with Open MPI that of mpirun's machine.
    pub master_host: Option<String>,
    /// A name of the job that is the same on all nodes and unique to this job; a requeued job keeps it.
    pub job: Option<String>,
    /// The variables with these values.
    pub from: Vec<&'static str>,
}

impl fmt::Display for SchedulerNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has started launchers on ", self.by)?;
        match self.nnodes {
            Some(number) => write!(f, "{number} nodes ({})", self.from.join(", ")),
            None => write!(f, "several nodes ({})", self.from.join(", ")),
        }
    }
}

impl SchedulerNodes {
    /// Where node 0 serves the master, if its host is known.
    pub fn master(&self) -> Option<Endpoint> {
        let host = self.master_host.as_ref()?;
        Some(Endpoint::new(host, port_of(self.job.as_deref().unwrap_or_default())))
    }

    /// Whether nodes of this scheduler usually have the folder of the job in common.
    pub fn shares_folders(&self) -> bool {
        self.by != KUBERNETES
    }
}

/// Reads the variables of the scheduler that started this process; `None` if it did not start it on several nodes. `alone`: the option
/// by which each launcher runs a job of its own.
///
/// # Errors
/// If it started several launchers on this node, or its variables are invalid.
pub fn found(vars: &EnvVars, alone: &str) -> Result<Option<SchedulerNodes>, SpecError> {
    match read(vars, alone)? {
        Some(Launchers { several: Some(refusal), .. }) => Err(refusal),
        launchers => Ok(launchers.map(|launchers| launchers.nodes)),
    }
}

/// The launchers that a scheduler has started on several nodes.
struct Launchers {
    nodes: SchedulerNodes,
    /// Why they cannot be one job: a node has several.
    several: Option<SpecError>,
}

fn read(vars: &EnvVars, alone: &str) -> Result<Option<Launchers>, SpecError> {
    let has = |names: &[&str]| names.iter().all(|name| vars.contains_key(*name));
    // The innermost first: mpirun starts its daemons with srun. PMIX_NAMESPACE tells Open MPI from rlaunch, which sets
    // the OMPI variables for jax.
    if has(&OPEN_MPI) {
        open_mpi(vars, alone)
    } else if has(&SLURM) {
        slurm(vars, alone)
    } else if has(&[INDEX]) {
        kubernetes(vars)
    } else {
        Ok(None)
    }
}

/// Whether launchers on several nodes were started by one command, which exits with one of their statuses: srun or mpirun.
pub fn have_one_exit_status(vars: &EnvVars) -> bool {
    // Launchers that are refused as one job of all nodes may be one by options.
    matches!(read(vars, ""), Ok(Some(Launchers { nodes, .. })) if nodes.by != KUBERNETES)
}

/// The options that the scheduler sets, given the user's `--nnodes`.
pub fn fills(found: &SchedulerNodes, nnodes: Option<&str>) -> Vec<SchedulerValue> {
    let var = found.from.first().copied().unwrap_or("a scheduler");
    let mut filled = fills_nodes(found, nnodes);
    if nnodes.is_none() && filled.is_empty() {
        return filled;
    }
    if let Some(rank) = found.rank {
        filled.push(("rank", rank.to_string(), var));
    }
    if let Some(master) = found.master() {
        filled.push(("master", master.to_string(), var));
    }
    filled
}

/// The number of nodes, unless the user gives it.
pub fn fills_nodes(found: &SchedulerNodes, nnodes: Option<&str>) -> Vec<SchedulerValue> {
    let var = found.from.first().copied().unwrap_or("a scheduler");
    let number = found.nnodes.filter(|_| nnodes.is_none());
    number.map(|number| ("nnodes", number.to_string(), var)).into_iter().collect()
}

/// A port that is the same on all nodes of a job, below the kernel's range of free ports, and rarely another job's.
fn port_of(job: &str) -> u16 {
    // FNV-1a (draft-eastlake-fnv).
    let hash = job.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    20_000 + (hash % 10_000) as u16
}

/// Open MPI's documentation, "Environment variables set for MPI applications"; the namespace is PMIx's (4.1 and 5.0).
const OPEN_MPI: [&str; 4] =
    ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"];

fn open_mpi(vars: &EnvVars, alone: &str) -> Result<Option<Launchers>, SpecError> {
    let [size, rank, local, namespace] = OPEN_MPI;
    let (nnodes, here) = (count(vars, size)?, count(vars, local)?);
    // All on this node: each launcher runs a job of its own, as without mpirun.
    if nnodes == here {
        return Ok(None);
    }
    let several = (here > 1).then(|| several(vars, local, ("mpirun --map-by ppr:1:node", alone)));
    let own = below(vars, rank, nnodes)?;
    // In a Slurm allocation mpirun may run outside of it, on the machine where salloc was called.
    let (source, master_host) = match vars.get("SLURM_JOB_NODELIST").and_then(|list| expand(list).ok()) {
        Some(hosts) => (Some("SLURM_JOB_NODELIST"), hosts.into_iter().next()),
        None => match vars.get("OMPI_MCA_orte_hnp_uri").and_then(|uri| host_of_uri(uri)) {
            Some(host) => (Some("OMPI_MCA_orte_hnp_uri"), Some(host)),
            None => (None, host_of_namespace(&vars[namespace])),
        },
    };
    let nodes = SchedulerNodes {
        by: "Open MPI",
        nnodes: Some(nnodes),
        rank: Some(own),
        master_host,
        job: Some(vars[namespace].clone()),
        from: OPEN_MPI.into_iter().chain(source).collect(),
    };
    Ok(Some(Launchers { nodes, several }))
}

/// Open MPI 4: `232325120.0;tcp://10.0.0.1,172.17.0.1:41133`, the addresses of mpirun's machine.
fn host_of_uri(uri: &str) -> Option<String> {
    let (_, addresses) = uri.split_once(";tcp")?;
    let (hosts, _port) = addresses.trim_start_matches('6').strip_prefix("://")?.split(';').next()?.rsplit_once(':')?;
    let first = hosts.split(',').next()?.trim_start_matches('[').trim_end_matches(']');
    (!first.is_empty()).then(|| first.to_owned())
}

/// Open MPI 5: `prterun-HOST-PID@1`, where mpirun runs.
fn host_of_namespace(namespace: &str) -> Option<String> {
    let (host, _pid) = namespace.strip_prefix("prterun-")?.rsplit_once('-')?;
    (!host.is_empty()).then(|| host.to_owned())
}

/// The variables of a step (srun(1), "OUTPUT ENVIRONMENT VARIABLES"). A batch script and salloc's shell have only those of
/// the allocation, and run a single launcher; salloc's shell on a node is a step of one node.
const SLURM: [&str; 6] = [
    "SLURM_STEP_NUM_NODES",
    "SLURM_NODEID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
];

fn slurm(vars: &EnvVars, alone: &str) -> Result<Option<Launchers>, SpecError> {
    let [nodes, id, list, job, step, tasks] = SLURM;
    let nnodes = count(vars, nodes)?;
    if nnodes == 1 {
        return Ok(None);
    }
    // The step may have fewer nodes than the allocation.
    let rank = below(vars, id, nnodes)?;
    let hosts = expand(&vars[list]).map_err(|why| SpecError::new(list, &vars[list], why.to_string(), HINT))?;
    if hosts.len() != nnodes {
        let why = format!("has {} host(s), but {nodes} is {nnodes}", hosts.len());
        return Err(SpecError::new(list, &vars[list], why, HINT));
    }
    // A batch job that was submitted within a step inherits that step's variables. It may run on one of that step's nodes.
    let of_job = vars.get("SLURM_JOB_NODELIST").and_then(|list| expand(list).ok());
    let of_job: Option<BTreeSet<String>> = of_job.map(|hosts| hosts.into_iter().collect());
    let is_elsewhere = vars.get("SLURMD_NODENAME").is_some_and(|own| *own != hosts[rank]);
    if is_elsewhere || of_job.is_some_and(|of_job| hosts.iter().any(|host| !of_job.contains(host))) {
        return Ok(None);
    }
    let is_more = number(vars, tasks)? > nnodes;
    let several = is_more.then(|| several(vars, tasks, ("srun --ntasks-per-node=1", alone)));
    let nodes = SchedulerNodes {
        by: "Slurm",
        nnodes: Some(nnodes),
        rank: Some(rank),
        master_host: hosts.into_iter().next(),
        job: Some(format!("{}.{}", vars[job], vars[step])),
        from: SLURM.into(),
    };
    Ok(Some(Launchers { nodes, several }))
}

const KUBERNETES: &str = "Kubernetes";
/// Kubernetes' documentation, "Indexed Job for Parallel Processing": the number of this pod.
pub const INDEX: &str = "JOB_COMPLETION_INDEX";
/// The number of pods, which Kubernetes has no variable for: `completions` of the job.
pub const NNODES: &str = "RLAUNCH_NNODES";
/// The headless service that resolves the pods' names, which Kubernetes has no variable for: `subdomain` of the pods.
pub const SERVICE: &str = "RLAUNCH_SERVICE";

/// A pod's hostname is JOB-NUMBER, and HOSTNAME.SERVICE resolves to its address (Kubernetes' documentation, "Job with
/// Pod-to-Pod Communication").
fn kubernetes(vars: &EnvVars) -> Result<Option<Launchers>, SpecError> {
    let nnodes = if vars.contains_key(NNODES) { Some(count(vars, NNODES)?) } else { None };
    let rank = below(vars, INDEX, nnodes.unwrap_or(usize::MAX))?;
    if nnodes == Some(1) {
        return Ok(None);
    }
    let job = vars.get("HOSTNAME").and_then(|own| own.strip_suffix(&format!("-{rank}")));
    let service = vars.get(SERVICE).filter(|service| !service.is_empty());
    let master_host = job.zip(service).map(|(job, service)| format!("{job}-0.{service}"));
    let used =
        [Some(INDEX), nnodes.and(Some(NNODES)), job.and(Some("HOSTNAME")), master_host.as_ref().and(Some(SERVICE))];
    let from = used.into_iter().flatten().collect();
    let (by, job) = (KUBERNETES, job.map(str::to_owned));
    let nodes = SchedulerNodes { by, nnodes, rank: Some(rank), master_host, job, from };
    Ok(Some(Launchers { nodes, several: None }))
}

/// What to do about invalid variables.
const HINT: &str = "give the options --nnodes, --rank and --master instead";

fn number(vars: &EnvVars, name: &str) -> Result<usize, SpecError> {
    let text = &vars[name];
    text.trim().parse().map_err(|_| SpecError::new(name, text, "is not a number", HINT))
}

fn count(vars: &EnvVars, name: &str) -> Result<usize, SpecError> {
    match number(vars, name)? {
        0 => Err(SpecError::new(name, "0", "is less than 1", HINT)),
        number => Ok(number),
    }
}

fn below(vars: &EnvVars, name: &str, nnodes: usize) -> Result<usize, SpecError> {
    let number = number(vars, name)?;
    if number < nnodes {
        return Ok(number);
    }
    let why = format!("is not the number of a node: there are {nnodes}, numbered from 0");
    Err(SpecError::new(name, number.to_string(), why, HINT))
}

/// The error about several launchers on a node: each would use all of the node's devices.
fn several(vars: &EnvVars, name: &str, (instead, alone): (&str, &str)) -> SpecError {
    let hint = format!(
        "start them with {instead}: a launcher starts all ranks of its node; or give {alone} if each runs a job of its own"
    );
    SpecError::new(name, &vars[name], "is more than one launcher a node", hint)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    /// Variables from `NAME=VALUE` words.
    fn vars(text: &str) -> EnvVars {
        text.split_whitespace()
            .map(|word| word.split_once('=').unwrap())
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect()
    }

    fn with(text: &str, more: &str) -> EnvVars {
        vars(&format!("{text} {more}"))
    }

    /// `by nodes rank master job`, `-` for what is not known; or the error.
    fn describe(vars: &EnvVars) -> String {
        fn shown<T: ToString>(value: Option<T>) -> String {
            value.map_or("-".to_owned(), |value| value.to_string())
        }
        match found(vars, "--nnodes 1") {
            Ok(None) => "nothing".into(),
            Ok(Some(SchedulerNodes { by, nnodes, rank, master_host, job, from })) => {
                assert!(!from.is_empty() && from.iter().all(|name| vars.contains_key(*name)), "{from:?}");
                format!("{by}: {} {} {} {}", shown(nnodes), shown(rank), shown(master_host), shown(job))
            }
            Err(error) => error.to_string(),
        }
    }

    // The variables in these tests are those of Slurm 22.05 and Open MPI 4.1.8 and 5.0.11, on two nodes a and b.

    const ALLOCATION: &str = "SLURM_JOB_ID=4 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=a,b \
        SLURM_TASKS_PER_NODE=1(x2)";
    const BATCH: &str = "SLURM_GTIDS=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_NTASKS=2 SLURMD_NODENAME=a";
    const STEP: &str = "SLURM_JOB_ID=4 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=a,b SLURM_LOCALID=0 \
        SLURM_NODEID=1 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=a,b SLURM_STEP_NUM_NODES=2 \
        SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURMD_NODENAME=b";

    #[test]
    fn a_step_of_slurm_is_a_job_on_its_nodes() {
        assert_eq!(describe(&vars(STEP)), "Slurm: 2 1 a 4.0");
        // salloc's shell leaves the port of its terminal to what is started in it.
        assert_eq!(describe(&with(STEP, "SLURM_PTY_PORT=33319")), "Slurm: 2 1 a 4.0");
        let wide = "SLURM_JOB_NODELIST=tux[01-11] SLURM_STEP_NODELIST=tux[08-11] SLURM_STEP_NUM_NODES=4 SLURM_STEP_NUM_TASKS=4 SLURM_NODEID=3 \
                    SLURM_STEP_ID=7 SLURMD_NODENAME=tux11";
        assert_eq!(describe(&with(STEP, wide)), "Slurm: 4 3 tux08 4.7");
    }

    #[test]
    fn one_launcher_in_an_allocation_is_alone() {
        assert_eq!(describe(&vars("")), "nothing");
        assert_eq!(describe(&vars(ALLOCATION)), "nothing", "salloc's command");
        assert_eq!(describe(&with(ALLOCATION, BATCH)), "nothing", "sbatch's script");
        let shell = "SLURM_STEP_ID=4294967290 SLURM_STEP_NODELIST=a SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 \
                     SLURM_PTY_PORT=33099";
        assert_eq!(describe(&with(&format!("{ALLOCATION} {BATCH}"), shell)), "nothing", "salloc's shell");
        let second =
            "SLURM_NNODES=1 SLURM_NODEID=0 SLURM_STEP_NODELIST=b SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1";
        assert_eq!(describe(&with(STEP, second)), "nothing", "srun -N1");
        let submitted = "SLURM_JOB_ID=11 SLURM_NNODES=1 SLURM_JOB_NODELIST=b SLURM_NODEID=0 SLURM_PROCID=0";
        assert_eq!(describe(&with(STEP, submitted)), "nothing", "sbatch within a step");
        let on_its_first = format!("{} SLURMD_NODENAME=a", submitted.replace('b', "a"));
        assert_eq!(describe(&with(STEP, &on_its_first)), "nothing", "sbatch within a step, on its first node");
    }

    #[test]
    fn several_launchers_a_node_are_refused_where_there_are_several_nodes() {
        assert_eq!(
            describe(&with(STEP, "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2)")),
            "SLURM_STEP_NUM_TASKS 4: is more than one launcher a node; start them with srun --ntasks-per-node=1: a \
             launcher starts all ranks of its node; or give --nnodes 1 if each runs a job of its own"
        );
        assert_eq!(
            describe(&with(MPI_5, "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2")),
            "OMPI_COMM_WORLD_LOCAL_SIZE 2: is more than one launcher a node; start them with mpirun --map-by ppr:1:node: \
             a launcher starts all ranks of its node; or give --nnodes 1 if each runs a job of its own"
        );
        let on_one = "SLURM_STEP_NODELIST=b SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=4 SLURM_NODEID=0";
        assert_eq!(describe(&with(STEP, on_one)), "nothing");
        assert_eq!(describe(&with(MPI_5, "OMPI_COMM_WORLD_LOCAL_SIZE=2")), "nothing");
    }

    #[test]
    fn launchers_of_one_command_have_one_exit_status() {
        let two_a_node = "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2)";
        let of_two_nodes = [vars(STEP), with(STEP, two_a_node), vars(MPI_5)];
        assert!(of_two_nodes.iter().all(have_one_exit_status), "{of_two_nodes:?}");
        let submitted = "SLURM_JOB_ID=11 SLURM_NNODES=1 SLURM_JOB_NODELIST=b SLURM_NODEID=0 SLURM_PROCID=0";
        let one_node = "SLURM_STEP_NODELIST=b SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_NODEID=0";
        for (why, vars) in [
            ("sbatch within a step", with(STEP, submitted)),
            ("a step of its own for each node", with(STEP, one_node)),
            ("mpirun on one node", with(MPI_5, "OMPI_COMM_WORLD_LOCAL_SIZE=2")),
            ("invalid variables", with(STEP, "SLURM_STEP_NUM_NODES=x")),
            ("a pod", vars("JOB_COMPLETION_INDEX=1 RLAUNCH_NNODES=2")),
            ("no scheduler", vars("")),
        ] {
            assert!(!have_one_exit_status(&vars), "{why}");
        }
    }

    const MPI_5: &str = "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_RANK=1 \
        OMPI_COMM_WORLD_SIZE=2 PMIX_HOSTNAME=b PMIX_NAMESPACE=prterun-node-a.lan-10548@1";
    const MPI_4: &str = "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_RANK=1 \
        OMPI_COMM_WORLD_SIZE=2 OMPI_MCA_orte_hnp_uri=232325120.0;tcp://10.91.0.1,172.17.0.1:41133 \
        OMPI_MCA_orte_local_daemon_uri=232325120.1;tcp://10.91.0.2:60011 OMPI_MCA_orte_num_nodes=2 PMIX_HOSTNAME=b \
        PMIX_NAMESPACE=232325121";

    #[test]
    fn mpirun_starts_a_job_on_its_nodes() {
        assert_eq!(describe(&vars(MPI_5)), "Open MPI: 2 1 node-a.lan prterun-node-a.lan-10548@1");
        assert_eq!(describe(&vars(MPI_4)), "Open MPI: 2 1 10.91.0.1 232325121");
        let ipv6 = "OMPI_MCA_orte_hnp_uri=7.0;tcp6://[fd00::1]:41133";
        assert_eq!(describe(&with(MPI_4, ipv6)), "Open MPI: 2 1 fd00::1 232325121");
        assert_eq!(describe(&with(MPI_4, "OMPI_MCA_orte_hnp_uri=nonsense")), "Open MPI: 2 1 - 232325121");
        // Its daemons are steps of Slurm, of a node each.
        let daemon = "SLURM_NODEID=0 SLURM_STEP_NODELIST=b SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1";
        let both = format!("{STEP} {daemon} {MPI_5}");
        assert_eq!(describe(&vars(&both)), "Open MPI: 2 1 a prterun-node-a.lan-10548@1");
        let jax = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                   OMPI_MCA_orte_hnp_uri=rlaunch";
        assert_eq!(describe(&vars(jax)), "nothing", "what rlaunch sets for jax");
    }

    #[test]
    fn pods_of_an_indexed_job_are_its_nodes() {
        let pod = "KUBERNETES_SERVICE_HOST=10.96.0.1 JOB_COMPLETION_INDEX=3 HOSTNAME=train-3";
        assert_eq!(
            describe(&with(pod, "RLAUNCH_NNODES=4 RLAUNCH_SERVICE=nodes")),
            "Kubernetes: 4 3 train-0.nodes train"
        );
        assert_eq!(describe(&vars(pod)), "Kubernetes: - 3 - train");
        assert_eq!(describe(&with(pod, "RLAUNCH_NNODES=4 HOSTNAME=worker")), "Kubernetes: 4 3 - -");
        let alone = "JOB_COMPLETION_INDEX=0 HOSTNAME=train-0 RLAUNCH_NNODES=1";
        assert_eq!(describe(&vars(alone)), "nothing");
        assert_eq!(describe(&vars("KUBERNETES_SERVICE_HOST=10.96.0.1 HOSTNAME=train-3")), "nothing");
    }

    #[test]
    fn invalid_variables_are_named() {
        for (vars, begins) in [
            (with(STEP, "SLURM_STEP_NUM_NODES=x"), "SLURM_STEP_NUM_NODES x: is not a number; give the options"),
            (with(STEP, "SLURM_STEP_NUM_NODES=0"), "SLURM_STEP_NUM_NODES 0: is less than 1"),
            (with(STEP, "SLURM_NODEID=2"), "SLURM_NODEID 2: is not the number of a node: there are 2"),
            (with(STEP, "SLURM_STEP_NODELIST=a[1"), "SLURM_STEP_NODELIST a[1: has brackets that do not match"),
            (with(STEP, "SLURM_STEP_NODELIST=a[1-3]"), "SLURM_STEP_NODELIST a[1-3]: has 3 host(s), but SLURM_STEP_"),
            (with(MPI_5, "OMPI_COMM_WORLD_RANK=2"), "OMPI_COMM_WORLD_RANK 2: is not the number of a node"),
            (with(MPI_5, "OMPI_COMM_WORLD_SIZE="), "OMPI_COMM_WORLD_SIZE: is not a number"),
            (
                vars("JOB_COMPLETION_INDEX=4 RLAUNCH_NNODES=4"),
                "JOB_COMPLETION_INDEX 4: is not the number of a node: there are 4",
            ),
            (vars("JOB_COMPLETION_INDEX=-1"), "JOB_COMPLETION_INDEX -1: is not a number"),
            (vars("JOB_COMPLETION_INDEX=1 RLAUNCH_NNODES=2:4"), "RLAUNCH_NNODES 2:4: is not a number"),
        ] {
            let text = describe(&vars);
            assert!(text.starts_with(begins), "{text}");
        }
    }
}
