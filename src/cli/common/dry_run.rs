//! `--dry_run`: prints the plan as a table or as JSON and starts nothing.

use crate::framework::Binding;
use crate::model::env_delta::VarName;
use crate::model::{Endpoint, Role};
use crate::plan::Plan;
use crate::run::zygote::Zygote;
use crate::spec::rendezvous::{BackendSpec, RendezvousSpec};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The JSON form. `version` grows when a field changes its meaning or goes away.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    job_id: &'a str,
    nnodes: usize,
    world_size: usize,
    log_dir: &'a str,
    /// What becomes known only at the rendezvous, if there is one.
    #[serde(rename = "meeting", skip_serializing_if = "Option::is_none")]
    rendezvous: Option<String>,
    /// The modules that the zygote imports, if ranks are forked from one.
    #[serde(skip_serializing_if = "Option::is_none")]
    zygote: Option<&'a [String]>,
    ranks: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    role: String,
    rank: usize,
    local_rank: usize,
    endpoint: Option<String>,
    devices: Option<&'a str>,
    /// The CPUs that it is bound to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<String>,
    log: String,
    argv: Vec<Cow<'a, str>>,
    #[serde(rename = "env", serialize_with = "as_map")]
    in_order: &'a [(VarName, Arc<str>)],
    #[serde(skip)]
    env: BTreeMap<&'a str, &'a str>,
    unset: &'a [VarName],
}

/// Keeps the order in which variables are set.
fn as_map<S: Serializer>(vars: &&[(VarName, Arc<str>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(vars.iter().map(|(name, value)| (name, &**value)))
}

impl Row<'_> {
    fn name(&self) -> String {
        format!("{} {}", self.role, self.rank)
    }
}

/// `2 server(s), 4 rank(s)`: the number of processes by role on this node.
pub fn count_by_role(plan: &Plan) -> String {
    let mut counts: Vec<(Role, usize)> = Vec::new();
    for rank in &plan.ranks {
        match counts.iter_mut().find(|(role, _)| *role == rank.role) {
            Some((_, count)) => *count += 1,
            None => counts.push((rank.role, 1)),
        }
    }
    counts.iter().map(|(role, count)| format!("{count} {role}(s)")).collect::<Vec<_>>().join(", ")
}

/// The number of processes on this node and in all.
fn describe_size(plan: &Plan) -> String {
    let trainers = plan.ranks.iter().filter(|r| r.role == Role::Trainer).count();
    match plan.nnodes {
        1 => format!("{} on 1 node", count_by_role(plan)),
        n if trainers < plan.ranks.len() => format!("{}, on one of {n} nodes", count_by_role(plan)),
        n => format!("{trainers} of {} rank(s), on one of {n} nodes", plan.world_size),
    }
}

/// What the plan is where nodes still have to rendezvous.
fn describe_rendezvous(plan: &Plan, rendezvous: &RendezvousSpec) -> String {
    let (min, max) = rendezvous.nodes;
    let nodes = if min == max { max.to_string() } else { format!("{min} to {max}") };
    let at = match &rendezvous.backend {
        BackendSpec::Etcd(etcd) => format!("etcd at {}", Endpoint::join(&etcd.endpoints)),
        BackendSpec::Master(at) => at.to_string(),
        BackendSpec::Here => "this node".into(),
    };
    format!(
        "this node's {} of a job of {nodes} nodes that rendezvous at {at}; \
         rank numbers, endpoints and world size become known then",
        count_by_role(plan)
    )
}

fn rows(plan: &Plan) -> Vec<Row<'_>> {
    plan.ranks
        .iter()
        .enumerate()
        .map(|(local_rank, r)| Row {
            role: r.role.to_string(),
            rank: r.rank,
            local_rank,
            endpoint: r.endpoint.as_ref().map(ToString::to_string),
            devices: match &r.binding {
                Binding::Cpu => None,
                Binding::Selected { indices, .. } => Some(indices),
            },
            cpus: r.cpus.as_ref().map(ToString::to_string),
            log: format!("{}/{}", plan.pod.log_dir, r.log()),
            argv: r.argv.iter().map(|arg| arg.to_string_lossy()).collect(),
            in_order: r.env.vars(),
            env: r.env.vars().iter().map(|(n, v)| (&**n, &**v)).collect(),
            unset: r.env.removed(),
        })
        .collect()
}

/// The plan as one JSON object on several lines. `rendezvous`: where the nodes find each other, if they do;
/// `zygote`: the process that the ranks are forked from, if any.
pub fn json(plan: &Plan, rendezvous: Option<&RendezvousSpec>, zygote: Option<&Zygote>) -> String {
    let document = Document {
        version: 1,
        job_id: &plan.job_id,
        nnodes: plan.nnodes,
        world_size: plan.world_size,
        log_dir: &plan.pod.log_dir,
        rendezvous: rendezvous.map(|rendezvous| describe_rendezvous(plan, rendezvous)),
        zygote: zygote.map(Zygote::modules),
        ranks: rows(plan),
    };
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

/// The plan as a table: one line a rank, then the variables that all ranks share, then the others by rank.
pub fn table(plan: &Plan, rendezvous: Option<&RendezvousSpec>, zygote: Option<&Zygote>) -> String {
    let rows = rows(plan);
    let size = rendezvous.map_or_else(|| describe_size(plan), |rendezvous| describe_rendezvous(plan, rendezvous));
    let mut text = format!("job {}: {size}, logs in {}\n\n", plan.job_id, plan.pod.log_dir);
    let cells: Vec<[String; 4]> = std::iter::once(["rank", "devices", "endpoint", "log"].map(str::to_owned))
        .chain(rows.iter().map(|r| {
            let log = r.log[plan.pod.log_dir.len()..].trim_start_matches('/').to_owned();
            let label = if r.role == Role::Trainer.to_string() { r.rank.to_string() } else { r.name() };
            let cpus = r.cpus.as_ref().map_or("cpu".to_owned(), |cpus| format!("cpu {cpus}"));
            [label, r.devices.map_or(cpus, str::to_owned), r.endpoint.clone().unwrap_or_default(), log]
        }))
        .collect();
    let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
    for row in &cells {
        let padded: Vec<String> = (0..4).map(|c| format!("{:<w$}", row[c], w = width(c))).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    if let Some(first) = rows.first() {
        text.push('\n');
        if rows.iter().all(|row| row.argv == first.argv) {
            text.push_str(&format!("command   {}\n", shell_line(&first.argv)));
        } else {
            for row in &rows {
                text.push_str(&format!("command of {}   {}\n", row.name(), shell_line(&row.argv)));
            }
        }
        if let Some(zygote) = zygote {
            text.push_str(&format!("all ranks are forked from a process that imports {}\n", zygote.names()));
        }
        text.push_str("\nvariables of every rank\n");
        let shared = |name: &str, value: &str| rows.iter().all(|r| r.env.get(name) == Some(&value));
        for (name, value) in first.env.iter().filter(|(n, v)| shared(n, v)) {
            text.push_str(&format!("  {name}={value}\n"));
        }
        for name in first.unset {
            text.push_str(&format!("  {name} is unset\n"));
        }
        for row in &rows {
            text.push_str(&format!("variables of {}\n", row.name()));
            // The list of exports for nested launchers is long; the JSON form has it.
            let is_listed =
                |name: &str, value: &str| !shared(name, value) && name != crate::plan::env::nested::EXPORTED;
            for (name, value) in row.env.iter().filter(|(n, v)| is_listed(n, v)) {
                text.push_str(&format!("  {name}={value}\n"));
            }
        }
    }
    text
}

/// Quotes a command line for a shell.
pub(crate) fn shell_line(argv: &[Cow<'_, str>]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quote = |arg: &Cow<'_, str>| {
        let safe = !arg.is_empty() && arg.chars().all(plain);
        if safe { arg.to_string() } else { format!("'{}'", arg.replace('\'', r"'\''")) }
    };
    argv.iter().map(quote).collect::<Vec<_>>().join(" ")
}
