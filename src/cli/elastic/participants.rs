//! Texts about the nodes that take part in a round and those that are missing.

use crate::protocol::Participants;

/// Which nodes are here, which are missing, and how long the round waits for them; `ranks_may_run`: or for ranks of lost nodes.
pub fn describe_wait(participants: &Participants, ranks_may_run: bool) -> String {
    let left = participants.left_ms.div_ceil(1000);
    if participants.ready < participants.min {
        return format!("{}; waiting up to {left} s more", describe_participants(participants));
    }
    let until =
        if ranks_may_run { "when ranks of lost nodes have ended (--etcd_loss_timeout)" } else { "unless more come" };
    format!(
        "enough nodes are here ({} of {}): {}; starting in {left} s {until}",
        participants.ready,
        wanted(participants),
        names(participants)
    )
}

/// Which nodes are here, and which are missing.
pub fn describe_participants(participants: &Participants) -> String {
    let missing: Vec<String> = participants.missing.iter().map(usize::to_string).collect();
    let missing = if missing.is_empty() { String::new() } else { format!("; missing: node(s) {}", missing.join(", ")) };
    let here = names(participants);
    format!("{} of {} nodes are here: {here}{missing}", participants.ready, wanted(participants))
}

fn wanted(Participants { min, max, .. }: &Participants) -> String {
    if min == max { max.to_string() } else { format!("{min} to {max}") }
}

fn names(participants: &Participants) -> String {
    let more = participants.ready.saturating_sub(participants.here.len());
    let here = participants.here.join(", ");
    if more > 0 { format!("{here} and {more} more") } else { here }
}
