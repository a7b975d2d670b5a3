//! The stacks of all nodes of a job as one text: equal stacks once, whichever node they are of.

use super::status_table::named_node;
use crate::model::Role;
use crate::report::job_status::{JobStatus, RankStatus};
use crate::report::stacks::{RankLine, RankStacks, StackDump, render_answered, render_stacks};
use crate::run::control::message::NodeEntry;

/// `status`: the state of the node whose launcher was asked.
pub(super) fn of_nodes(status: &JobStatus, nodes: &[NodeEntry]) -> String {
    let (dump, lines) = merge(nodes);
    let mut text = match dump.ranks.is_empty() {
        true => format!("no rank runs: the launcher is {}\n", status.phase.word()),
        false if nodes.iter().all(|entry| entry.error.is_none()) => format!("{}\n", render_stacks(&dump, &lines)),
        false => {
            let trainers = lines.iter().filter(|line| line.label.role == Role::Trainer).count();
            let missing = status.world_size.saturating_sub(trainers);
            format!("{}\n", render_answered(&dump, &lines, missing))
        }
    };
    for entry in nodes {
        if let Some(error) = &entry.error {
            text += &format!("{} {error}: its ranks may be those that the others wait for\n", named_node(entry));
        }
    }
    text
}

/// One dump of the ranks of all nodes, in the order of their numbers in the job, which become their local ranks.
fn merge(nodes: &[NodeEntry]) -> (StackDump, Vec<RankLine>) {
    let mut ranks: Vec<(&NodeEntry, &RankStatus, Option<&RankStacks>)> = Vec::new();
    for entry in nodes {
        let Some(answer) = &entry.answer else { continue };
        let stacks = answer.stacks.as_ref().map_or(&[][..], |dump| &dump.ranks);
        let of = |rank: &RankStatus| stacks.iter().find(|one| one.local_rank == rank.local_rank);
        ranks.extend(answer.status.ranks.iter().map(|rank| (entry, rank, of(rank))));
    }
    ranks.sort_by_key(|(_, rank, _)| (rank.role, rank.rank));
    let (mut dump, mut lines) = (StackDump::default(), Vec::new());
    for (number, (entry, rank, stacks)) in ranks.into_iter().enumerate() {
        lines.push(RankLine {
            local_rank: number,
            label: rank.label(),
            has_ended: rank.succeeded,
            place: (nodes.len() > 1).then(|| named_node(entry)),
        });
        dump.ranks.extend(stacks.map(|stacks| RankStacks { local_rank: number, ..stacks.clone() }));
    }
    (dump, lines)
}
