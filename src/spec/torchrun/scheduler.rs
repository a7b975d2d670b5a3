//! Options of `python -m rlaunch.run` from the scheduler that started a launcher on each node. torchrun reads no scheduler: without
//! options each of its launchers runs a job of its own.

use crate::spec::error::SpecError;
use crate::spec::options::{EnvVars, OptValues, SchedulerValue};
use crate::spec::scheduler::detect::{self, SchedulerNodes};
use crate::spec::torchrun::values;

/// The nodes of the job, and the options that are to be filled in; `None`: the options decide alone.
///
/// # Errors
/// If the options say that there is one node and the scheduler has started several launchers; if it has started several on this node;
/// if its variables are invalid, or give no host of node 0.
pub fn ask(values: &OptValues, vars: &EnvVars) -> Result<Option<(SchedulerNodes, Vec<SchedulerValue>)>, SpecError> {
    let is_given = |name: &str| values.given(name).is_some_and(|text| !text.trim().is_empty());
    let is_placed = is_given("rdzv-endpoint") || is_given("master-addr");
    let nnodes = values.given("nnodes").map(str::trim);
    let is_one = nnodes.is_some_and(|text| matches!(text, "1" | "1:1"));
    let is_complete = is_placed && nnodes.is_some() && !is_one;
    if values::flag(values, "standalone")? || is_complete && (is_given("rdzv-backend") || is_given("node-rank")) {
        return Ok(None);
    }
    let Some(found) = detect::found(vars, "--standalone")? else { return Ok(None) };
    let var = found.from.first().copied().unwrap_or("a scheduler");
    match found.nnodes {
        Some(number) if is_one => {
            let why = format!(
                "is one node, but {} has started launchers on {number} ({var}), and each would run a job of its own",
                found.by
            );
            let hint = "leave it out for one job on all of them; give --standalone if each is to run its own";
            return Err(values.error("nnodes", &why, hint));
        }
        None if is_one || nnodes.is_none() => return Ok(None),
        _ => {}
    }
    let mut filled = detect::fills_nodes(&found, nnodes);
    filled.extend(found.job.clone().map(|job| ("rdzv-id", job, var)));
    // With a port or an address of node 0 and nothing else torchrun's rendezvous is static.
    let default = if is_placed || is_given("master-port") { "static" } else { "c10d" };
    let backend = values.given("rdzv-backend").map_or(default, str::trim);
    if !is_placed && matches!(backend, "c10d" | "static") {
        let Some(master) = found.master() else {
            let why = format!("is missing, and the variables of {} do not name the host of node 0", found.by);
            let hint = "give HOST:PORT, the same on all nodes, or --standalone if each node is to run its own job";
            return Err(SpecError::new("--rdzv-endpoint", "", why, hint));
        };
        filled.push(("rdzv-backend", backend.to_owned(), var));
        match is_given("master-port") {
            true => filled.push(("master-addr", master.host, var)),
            false => filled.push(("rdzv-endpoint", master.to_string(), var)),
        }
    }
    filled.extend(found.rank.filter(|_| backend == "static").map(|rank| ("node-rank", rank.to_string(), var)));
    Ok(Some((found, filled)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::spec::torchrun::options;

    /// The variables of a step on two nodes.
    const STEP: &str = "SLURM_JOB_ID=4 SLURM_NODEID=1 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=a,b SLURM_STEP_NUM_NODES=2 \
        SLURM_STEP_NUM_TASKS=2 SLURMD_NODENAME=b";
    const JOB: &str = "rdzv-id=4.0 rdzv-backend=c10d rdzv-endpoint=a:28501";

    /// What is filled in for a command line of `--NAME=VALUE` words, `alone`, or the error.
    fn filled(options: &str) -> String {
        let pair = |word: &str| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let vars = STEP.split_whitespace().map(|word| pair(word).unwrap()).collect();
        let name = |name: &str| options::OPTIONS.iter().map(|opt| opt.name).find(|known| *known == name).unwrap();
        let flags = options.split_whitespace().map(|word| pair(word).unwrap());
        let values = options::merge(&flags.map(|(key, value)| (name(&key), value)).collect(), &vars, true);
        match ask(&values, &vars) {
            Ok(None) => "alone".to_owned(),
            Ok(Some((_, filled))) => {
                filled.iter().map(|(name, value, _)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn launchers_that_a_scheduler_starts_without_options_are_one_job() {
        assert_eq!(filled(""), format!("nnodes=2 {JOB}"));
        assert_eq!(filled("nproc-per-node=8 max-restarts=3"), format!("nnodes=2 {JOB}"));
        assert_eq!(filled("nnodes=2"), JOB);
        assert_eq!(filled("nnodes=1:2"), JOB);
        assert_eq!(filled("rdzv-backend=c10d"), format!("nnodes=2 {JOB}"), "fill leaves what is given");
        assert_eq!(filled("rdzv-backend=static"), format!("nnodes=2 {} node-rank=1", JOB.replace("c10d", "static")));
        assert_eq!(filled("rdzv-endpoint=c:1"), "nnodes=2 rdzv-id=4.0 node-rank=1", "torchrun's default is static");
        assert_eq!(filled("nnodes=2 master-addr=a"), "rdzv-id=4.0 node-rank=1");
        assert_eq!(filled("rdzv-backend=c10d rdzv-endpoint=c:1"), "nnodes=2 rdzv-id=4.0");
        let by_port = "nnodes=2 rdzv-id=4.0 rdzv-backend=static master-addr=a node-rank=1";
        assert_eq!(filled("master-port=29501"), by_port);
        assert_eq!(filled("node-rank=1"), format!("nnodes=2 {JOB}"));
    }

    #[test]
    fn options_that_say_where_nodes_meet_decide() {
        assert_eq!(filled("nnodes=2 rdzv-backend=c10d rdzv-endpoint=c:1"), "alone");
        assert_eq!(filled("nnodes=2 node-rank=1 master-addr=a"), "alone");
        assert_eq!(filled("standalone=1"), "alone");
    }

    #[test]
    fn one_node_among_several_is_refused() {
        for options in ["nnodes=1", "nnodes=1:1 rdzv-endpoint=c:1"] {
            let error = filled(options);
            assert!(
                error.contains("is one node, but Slurm has started launchers on 2 (SLURM_STEP_NUM_NODES)"),
                "{error}"
            );
            assert!(error.contains("give --standalone if each is to run its own"), "{error}");
        }
    }
}
