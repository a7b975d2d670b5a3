//! `--dry_run`: the plan, as a table or as JSON, and nothing started.

use crate::dialect::Binding;
use crate::plan::Plan;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The JSON form. `version` grows when a field changes its meaning or goes away.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    job_id: &'a str,
    nnodes: usize,
    world_size: usize,
    log_dir: &'a str,
    ranks: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    rank: usize,
    local_rank: usize,
    endpoint: String,
    devices: Option<&'a str>,
    log: String,
    argv: Vec<Cow<'a, str>>,
    env: BTreeMap<&'a str, &'a str>,
    unset: &'a [String],
}

fn rows(plan: &Plan) -> Vec<Row<'_>> {
    plan.ranks
        .iter()
        .map(|r| Row {
            rank: r.identity.rank,
            local_rank: r.identity.local_rank,
            endpoint: r.identity.endpoints[r.identity.rank].to_string(),
            devices: match &r.identity.binding {
                Binding::Cpu => None,
                Binding::Selected { indices, .. } => Some(indices),
            },
            log: format!("{}/{}", plan.pod.log_dir, r.log),
            argv: r.argv.iter().map(|arg| arg.to_string_lossy()).collect(),
            env: r.env.vars().iter().map(|(n, v)| (n.as_str(), v.as_str())).collect(),
            unset: r.env.removed(),
        })
        .collect()
}

/// One JSON object, on several lines.
pub fn json(plan: &Plan) -> String {
    let document = Document {
        version: 1,
        job_id: &plan.job_id,
        nnodes: 1,
        world_size: plan.ranks.len(),
        log_dir: &plan.pod.log_dir,
        ranks: rows(plan),
    };
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

/// A table for people: a line a rank, then the variables: those that all ranks share once, the others
/// by rank.
pub fn table(plan: &Plan) -> String {
    let rows = rows(plan);
    let mut text = format!("job {}: {} rank(s) on 1 node, logs in {}\n\n", plan.job_id, rows.len(), plan.pod.log_dir);
    let cells: Vec<[String; 4]> = std::iter::once(["rank", "devices", "endpoint", "log"].map(str::to_owned))
        .chain(rows.iter().map(|r| {
            let log = r.log.rsplit('/').next().unwrap_or("").to_owned();
            [r.rank.to_string(), r.devices.unwrap_or("cpu").to_owned(), r.endpoint.clone(), log]
        }))
        .collect();
    let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
    for row in &cells {
        let padded: Vec<String> = (0..4).map(|c| format!("{:<w$}", row[c], w = width(c))).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    if let Some(first) = rows.first() {
        text.push_str(&format!("\ncommand   {}\n", shell_line(&first.argv)));
        text.push_str("\nvariables of every rank\n");
        let shared = |name: &str, value: &str| rows.iter().all(|r| r.env.get(name) == Some(&value));
        for (name, value) in first.env.iter().filter(|(n, v)| shared(n, v)) {
            text.push_str(&format!("  {name}={value}\n"));
        }
        for name in first.unset {
            text.push_str(&format!("  {name} is taken away\n"));
        }
        for row in &rows {
            text.push_str(&format!("variables of rank {}\n", row.rank));
            // Bookkeeping for nested launchers; long, and in the JSON for whoever wants it.
            let told = |name: &str, value: &str| !shared(name, value) && name != crate::plan::EXPORTED;
            for (name, value) in row.env.iter().filter(|(n, v)| told(n, v)) {
                text.push_str(&format!("  {name}={value}\n"));
            }
        }
    }
    text
}

/// A command line that a shell would read back.
fn shell_line(argv: &[Cow<'_, str>]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quote = |arg: &Cow<'_, str>| {
        let safe = !arg.is_empty() && arg.chars().all(plain);
        if safe { arg.to_string() } else { format!("'{}'", arg.replace('\'', r"'\''")) }
    };
    argv.iter().map(quote).collect::<Vec<_>>().join(" ")
}
