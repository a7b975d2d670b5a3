//! Which of the nodes that are ready take part in a round, and in which order.

use super::record::{Offer, Order};
use core::net::IpAddr;

/// A node that is ready, and how long it has been there: smaller is longer.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its id.
    pub id: &'a str,
    /// What it brings.
    pub offer: &'a Offer,
    /// When it came, among the others.
    pub came: u64,
}

/// The ids of a round of `max` nodes at most, in the order of their numbers. `before`: those of the round before, in
/// that order.
///
/// Whom the user has numbered has that number, where there is such a one. Else the first round is in the order of names or
/// addresses; later ones keep what can be kept (the rules of Paddle's older elastic launcher): who was there keeps its number
/// if there still is such a number, and the places that are left are filled by those whose numbers are too high or taken,
/// then by those that are new.
pub fn round<'a>(ready: &[Candidate<'a>], max: usize, before: &[String]) -> Vec<&'a str> {
    let was = |id: &str| before.iter().position(|other| other == id);
    let mut chosen: Vec<&Candidate<'a>> = ready.iter().collect();
    // Who was there goes first, then who came first.
    chosen.sort_by_key(|one| (was(one.id).is_none(), one.came, one.id));
    chosen.truncate(max);
    // Paddle's own launchers do not say it.
    let order = ready.iter().find(|one| !one.offer.foreign).map_or(Order::Name, |one| one.offer.rules.order);
    let key = |offer: &'a Offer| key(order, offer);
    let mut places: Vec<Option<&'a str>> = vec![None; chosen.len()];
    // First those that the user has numbered; twice the same number is refused before.
    chosen.sort_by_key(|one| (one.offer.rank.is_none(), one.offer.rank, was(one.id), key(one.offer), one.id));
    let (mut displaced, mut new): (Vec<&'a str>, Vec<&'a str>) = (Vec::new(), Vec::new());
    for one in chosen {
        let wanted = one.offer.rank.or_else(|| was(one.id));
        match wanted.map(|place| places.get_mut(place)) {
            Some(Some(place)) if place.is_none() => *place = Some(one.id),
            Some(_) => displaced.push(one.id),
            None => new.push(one.id),
        }
    }
    let mut rest = displaced.into_iter().chain(new);
    places.into_iter().filter_map(|place| place.or_else(|| rest.next())).collect()
}

/// What nodes without numbers are ordered by.
fn key(order: Order, offer: &Offer) -> (Option<IpAddr>, impl Ord + use<'_>) {
    let address = match order {
        Order::Address => offer.address.parse().ok(),
        Order::Name => None,
    };
    // As Paddle's own launchers have it, which compare keys that go on with a slash behind the name.
    (address, offer.name.bytes().chain([b'/']).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::agree::Rules;

    fn offer(name: &str, rank: Option<usize>) -> Offer {
        Offer { name: name.into(), rank, ..Offer::default() }
    }

    fn ordered(ready: &[(&str, Option<usize>)], max: usize, before: &[&str]) -> Vec<String> {
        let offers: Vec<Offer> = ready.iter().map(|(name, rank)| offer(name, *rank)).collect();
        let list: Vec<_> = (0..).zip(&offers).map(|(came, offer)| Candidate { id: &offer.name, offer, came }).collect();
        let before: Vec<String> = before.iter().map(|&id| id.to_owned()).collect();
        round(&list, max, &before).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn names_or_numbers_order_the_first_round() {
        assert_eq!(ordered(&[("b", None), ("aaaaaa", None), ("c", None)], 3, &[]), ["aaaaaa", "b", "c"]);
        assert_eq!(ordered(&[("b", Some(2)), ("a", Some(1)), ("c", Some(0))], 3, &[]), ["c", "a", "b"]);
        assert_eq!(ordered(&[("a", Some(1)), ("b", None)], 2, &[]), ["b", "a"], "one is numbered");
        assert_eq!(ordered(&[("a", Some(1)), ("b", Some(2))], 3, &["c", "a", "b"]), ["b", "a"], "the first is missing");
    }

    #[test]
    fn who_came_first_takes_part() {
        assert_eq!(ordered(&[("z", None), ("y", None), ("a", None)], 2, &[]), ["y", "z"]);
        assert_eq!(ordered(&[("a", None), ("b", None), ("old", None)], 2, &["gone", "old"]), ["a", "old"]);
    }

    #[test]
    fn numbers_are_kept_and_holes_filled_as_by_paddle_s_older_launcher() {
        let before = ["h0", "h1", "h2", "h3"];
        assert_eq!(ordered(&[("h1", None), ("h2", None), ("h3", None)], 4, &before), ["h3", "h1", "h2"]);
        let grown = [("h0", None), ("h1", None), ("new", None), ("a", None)];
        assert_eq!(ordered(&grown, 8, &["h0", "h1"]), ["h0", "h1", "a", "new"]);
        assert_eq!(ordered(&[("new", None), ("h1", None)], 2, &["h0", "h1"]), ["new", "h1"]);
    }

    #[test]
    fn addresses_are_ordered_as_numbers() {
        let of = |name: &str, address: &str| {
            let rules = Rules { order: Order::Address, ..Rules::default() };
            Offer { name: name.into(), address: address.into(), rules, ..Offer::default() }
        };
        let offers = [of("a", "10.0.0.10"), of("b", "10.0.0.9")];
        let list: Vec<_> = (0..).zip(&offers).map(|(came, offer)| Candidate { id: &offer.name, offer, came }).collect();
        assert_eq!(round(&list, 2, &[]), ["b", "a"]);
    }
}
