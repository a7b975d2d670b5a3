//! Which of the ready nodes take part in a round, and their order.

use crate::protocol::record::{NodeInfo, NodeOrder};
use core::net::IpAddr;

/// A ready node.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its id.
    pub id: &'a str,
    /// What it infos.
    pub info: &'a NodeInfo,
    /// Its place in the order in which nodes joined.
    pub joined: u64,
}

/// The ids of a round of `max` nodes at most, in the order of their numbers. `before`: the ids of the round before, in
/// that order.
///
/// A node that the user has numbered gets that number if it is valid. Otherwise the first round is in the order of names or
/// addresses. Later rounds follow the rules of Paddle's legacy elastic launcher: a member of the round before keeps its number if
/// that is still valid; the remaining numbers go to members whose numbers are too high or taken, and then to new nodes.
pub fn order_round<'a>(ready: &[Candidate<'a>], max: usize, before: &[String]) -> Vec<&'a str> {
    let was = |id: &str| before.iter().position(|other| other == id);
    let mut chosen: Vec<&Candidate<'a>> = ready.iter().collect();
    // Members of the round before first, then those that joined first.
    chosen.sort_by_key(|one| (was(one.id).is_none(), one.joined, one.id));
    chosen.truncate(max);
    // The records of Paddle's own launchers do not say which order.
    let order =
        ready.iter().find(|one| !one.info.is_paddle_launcher).map_or(NodeOrder::Name, |one| one.info.rules.order);
    let key = |info: &'a NodeInfo| sort_key(order, info);
    let mut places: Vec<Option<&'a str>> = vec![None; chosen.len()];
    // First those that the user has numbered. A node with a number that another has was refused before.
    chosen.sort_by_key(|one| (one.info.rank.is_none(), one.info.rank, was(one.id), key(one.info), one.id));
    let (mut displaced, mut new): (Vec<&'a str>, Vec<&'a str>) = (Vec::new(), Vec::new());
    for one in chosen {
        let wanted = one.info.rank.or_else(|| was(one.id));
        match wanted.map(|place| places.get_mut(place)) {
            Some(Some(place)) if place.is_none() => *place = Some(one.id),
            Some(_) => displaced.push(one.id),
            None => new.push(one.id),
        }
    }
    let mut rest = displaced.into_iter().chain(new);
    places.into_iter().filter_map(|place| place.or_else(|| rest.next())).collect()
}

/// The sort key of nodes without numbers.
fn sort_key(order: NodeOrder, info: &NodeInfo) -> (Option<IpAddr>, impl Ord + use<'_>) {
    let address = match order {
        NodeOrder::Address => info.address.parse().ok(),
        NodeOrder::Name => None,
    };
    // Paddle's own launchers compare keys, in which a slash follows the name.
    (address, info.name.bytes().chain([b'/']).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::JobRules;

    fn info(name: &str, rank: Option<usize>) -> NodeInfo {
        NodeInfo { name: name.into(), rank, ..NodeInfo::default() }
    }

    fn ordered(ready: &[(&str, Option<usize>)], max: usize, before: &[&str]) -> Vec<String> {
        let infos: Vec<NodeInfo> = ready.iter().map(|(name, rank)| info(name, *rank)).collect();
        let list: Vec<_> = (0..).zip(&infos).map(|(joined, info)| Candidate { id: &info.name, info, joined }).collect();
        let before: Vec<String> = before.iter().map(|&id| id.to_owned()).collect();
        order_round(&list, max, &before).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn names_or_numbers_order_the_first_round() {
        assert_eq!(ordered(&[("b", None), ("aaaaaa", None), ("c", None)], 3, &[]), ["aaaaaa", "b", "c"]);
        assert_eq!(ordered(&[("b", Some(2)), ("a", Some(1)), ("c", Some(0))], 3, &[]), ["c", "a", "b"]);
        assert_eq!(ordered(&[("a", Some(1)), ("b", None)], 2, &[]), ["b", "a"], "one is numbered");
        assert_eq!(ordered(&[("a", Some(1)), ("b", Some(2))], 3, &["c", "a", "b"]), ["b", "a"], "the first is missing");
    }

    #[test]
    fn nodes_that_joined_first_take_part() {
        assert_eq!(ordered(&[("z", None), ("y", None), ("a", None)], 2, &[]), ["y", "z"]);
        assert_eq!(ordered(&[("a", None), ("b", None), ("old", None)], 2, &["gone", "old"]), ["a", "old"]);
    }

    #[test]
    fn numbers_are_kept_and_holes_filled_as_by_paddle_s_legacy_launcher() {
        let before = ["h0", "h1", "h2", "h3"];
        assert_eq!(ordered(&[("h1", None), ("h2", None), ("h3", None)], 4, &before), ["h3", "h1", "h2"]);
        let grown = [("h0", None), ("h1", None), ("new", None), ("a", None)];
        assert_eq!(ordered(&grown, 8, &["h0", "h1"]), ["h0", "h1", "a", "new"]);
        assert_eq!(ordered(&[("new", None), ("h1", None)], 2, &["h0", "h1"]), ["new", "h1"]);
        assert_eq!(ordered(&[("h0", None), ("new", Some(0))], 2, &["h0"]), ["new", "h0"], "its number is taken");
    }

    #[test]
    fn addresses_are_ordered_as_numbers() {
        let of = |name: &str, address: &str| {
            let rules = JobRules { order: NodeOrder::Address, ..JobRules::default() };
            NodeInfo { name: name.into(), address: address.into(), rules, ..NodeInfo::default() }
        };
        let infos = [of("a", "10.0.0.10"), of("b", "10.0.0.9")];
        let list: Vec<_> = (0..).zip(&infos).map(|(joined, info)| Candidate { id: &info.name, info, joined }).collect();
        assert_eq!(order_round(&list, 2, &[]), ["b", "a"]);
        // The rules of Paddle's own launcher are unknown.
        let paddle = NodeInfo { rules: JobRules::default(), is_paddle_launcher: true, ..of("c", "10.0.0.8") };
        let joined_first = Candidate { id: "c", info: &paddle, joined: 0 };
        let list: Vec<_> = [joined_first].into_iter().chain(list).collect();
        assert_eq!(order_round(&list, 3, &[]), ["c", "b", "a"]);
    }
}
