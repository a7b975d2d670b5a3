//! `--dry_run`: the plan, as a table or as JSON, and nothing started.

use crate::dialect::Binding;
use crate::model::env::Name;
use crate::model::{Endpoint, Role};
use crate::plan::Plan;
use crate::run::zygote::Zygote;
use crate::spec::meeting::{At, Meeting};
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
    /// What is known only once the nodes have met, if they are to meet.
    #[serde(skip_serializing_if = "Option::is_none")]
    meeting: Option<String>,
    /// What the process that they are forked from imports, if they are forked.
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
    /// The CPUs that it is bound to, if it is to any.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<String>,
    log: String,
    argv: Vec<Cow<'a, str>>,
    #[serde(rename = "env", serialize_with = "as_map")]
    in_order: &'a [(Name, Arc<str>)],
    #[serde(skip)]
    env: BTreeMap<&'a str, &'a str>,
    unset: &'a [Name],
}

/// Readers see which variable is set before which.
fn as_map<S: Serializer>(vars: &&[(Name, Arc<str>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(vars.iter().map(|(name, value)| (name, &**value)))
}

impl Row<'_> {
    fn name(&self) -> String {
        format!("{} {}", self.role, self.rank)
    }
}

/// `2 server(s), 4 rank(s)`: how many there are of what on this node.
pub fn roles(plan: &Plan) -> String {
    let mut counts: Vec<(Role, usize)> = Vec::new();
    for rank in &plan.ranks {
        match counts.iter_mut().find(|(role, _)| *role == rank.role) {
            Some((_, count)) => *count += 1,
            None => counts.push((rank.role, 1)),
        }
    }
    counts.iter().map(|(role, count)| format!("{count} {role}(s)")).collect::<Vec<_>>().join(", ")
}

/// How many there are of what, here and in all.
fn size(plan: &Plan) -> String {
    let trainers = plan.ranks.iter().filter(|r| r.role == Role::Trainer).count();
    match plan.nnodes {
        1 => format!("{} on 1 node", roles(plan)),
        n if trainers < plan.ranks.len() => format!("{}, on one of {n} nodes", roles(plan)),
        n => format!("{trainers} of {} rank(s), on one of {n} nodes", plan.world_size),
    }
}

/// What a plan is of where nodes are to meet.
fn of_meeting(plan: &Plan, meeting: &Meeting) -> String {
    let (min, max) = meeting.nodes;
    let nodes = if min == max { max.to_string() } else { format!("{min} to {max}") };
    let at = match &meeting.at {
        At::Etcd(etcd) => format!("etcd at {}", Endpoint::join(&etcd.endpoints)),
        At::Master(at) => at.to_string(),
        At::Here => "this node".into(),
    };
    format!(
        "this node's {} of a job of {nodes} nodes that meet at {at}; \
         numbers, endpoints and the world's size are known once they have met",
        roles(plan)
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

/// One JSON object, on several lines. `meeting`: where this node is to meet the others, if it is to;
/// `zygote`: from which process the ranks are to be forked, if from any.
pub fn json(plan: &Plan, meeting: Option<&Meeting>, zygote: Option<&Zygote>) -> String {
    let document = Document {
        version: 1,
        job_id: &plan.job_id,
        nnodes: plan.nnodes,
        world_size: plan.world_size,
        log_dir: &plan.pod.log_dir,
        meeting: meeting.map(|meeting| of_meeting(plan, meeting)),
        zygote: zygote.map(Zygote::modules),
        ranks: rows(plan),
    };
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

/// A table for people: a line a rank, then the variables: those that all ranks share once, the others
/// by rank.
pub fn table(plan: &Plan, meeting: Option<&Meeting>, zygote: Option<&Zygote>) -> String {
    let rows = rows(plan);
    let size = meeting.map_or_else(|| size(plan), |meeting| of_meeting(plan, meeting));
    let mut text = format!("job {}: {size}, logs in {}\n\n", plan.job_id, plan.pod.log_dir);
    let cells: Vec<[String; 4]> = std::iter::once(["rank", "devices", "endpoint", "log"].map(str::to_owned))
        .chain(rows.iter().map(|r| {
            let log = r.log[plan.pod.log_dir.len()..].trim_start_matches('/').to_owned();
            let who = if r.role == Role::Trainer.to_string() { r.rank.to_string() } else { r.name() };
            let cpus = r.cpus.as_ref().map_or("cpu".to_owned(), |cpus| format!("cpu {cpus}"));
            [who, r.devices.map_or(cpus, str::to_owned), r.endpoint.clone().unwrap_or_default(), log]
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
            text.push_str(&format!("all forked from a process that imports {}\n", zygote.names()));
        }
        text.push_str("\nvariables of every rank\n");
        let shared = |name: &str, value: &str| rows.iter().all(|r| r.env.get(name) == Some(&value));
        for (name, value) in first.env.iter().filter(|(n, v)| shared(n, v)) {
            text.push_str(&format!("  {name}={value}\n"));
        }
        for name in first.unset {
            text.push_str(&format!("  {name} is taken away\n"));
        }
        for row in &rows {
            text.push_str(&format!("variables of {}\n", row.name()));
            // Bookkeeping for nested launchers; long, and in the JSON for whoever wants it.
            let told = |name: &str, value: &str| !shared(name, value) && name != crate::plan::nested::EXPORTED;
            for (name, value) in row.env.iter().filter(|(n, v)| told(n, v)) {
                text.push_str(&format!("  {name}={value}\n"));
            }
        }
    }
    text
}

/// A command line that a shell would read back.
pub(super) fn shell_line(argv: &[Cow<'_, str>]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quote = |arg: &Cow<'_, str>| {
        let safe = !arg.is_empty() && arg.chars().all(plain);
        if safe { arg.to_string() } else { format!("'{}'", arg.replace('\'', r"'\''")) }
    };
    argv.iter().map(quote).collect::<Vec<_>>().join(" ")
}
