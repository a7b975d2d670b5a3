//! The laws of the agreement of nodes, over random histories in virtual time, and by single cases.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test fails by panicking.

#[path = "agree/cases.rs"]
mod cases;
#[path = "agree/judge.rs"]
mod judge;
#[path = "agree/node.rs"]
mod node;
#[path = "agree/story.rs"]
mod story;
#[path = "agree/world.rs"]
mod world;

use rlaunch::rendezvous::agree::{End, Phase, Why};
use std::collections::BTreeMap;
use std::panic;
use story::Story;
use world::World;

/// As many histories, or as many as AGREE_CASES says; or that of AGREE_SEED, told in full.
const HISTORIES: u64 = 2_000;

fn seeds() -> std::ops::Range<u64> {
    let set = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match set("AGREE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..set("AGREE_CASES").unwrap_or(HISTORIES),
    }
}

/// The laws themselves are in `agree/judge.rs`, where each thing is checked as it comes; that all end is in `World::live`.
#[test]
fn every_history_obeys() {
    let mut failed = Vec::new();
    for seed in seeds() {
        let story = Story::random(seed);
        if panic::catch_unwind(|| World::live(&story).now).is_err() {
            eprintln!("history {seed}");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{} histories break a law: {failed:?}", failed.len());
}

/// A law that nothing puts to the test holds always.
#[test]
fn the_histories_hold_what_they_are_for() {
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    for seed in 0..500 {
        let story = Story::random(seed);
        let world = World::live(&story);
        let mut note = |what, so: bool| *seen.entry(what).or_default() += usize::from(so);
        let states = &world.judge.states;
        let any = |what: fn(&Phase) -> bool| states.iter().any(|state| what(&state.phase));
        note("completed", any(|phase| matches!(phase, Phase::Ended { end: End::Completed })));
        note("ended by a failure", any(|phase| matches!(phase, Phase::Ended { end: End::Failed { .. } })));
        note("ended by a loss", any(|phase| matches!(phase, Phase::Ended { end: End::Lost { .. } })));
        note("ended by a stop", any(|phase| matches!(phase, Phase::Ended { end: End::Stopped { .. } })));
        note("ended by too few", any(|phase| matches!(phase, Phase::Ended { end: End::TooFew { .. } })));
        note("more came", any(|phase| matches!(phase, Phase::Stopping { why: Why::More { .. }, .. })));
        note("lost", any(|phase| matches!(phase, Phase::Stopping { why: Why::Lost { .. }, end: None })));
        note("restarts", states.iter().any(|state| state.failures > 0));
        note("held", states.iter().any(|state| state.goes.is_some()));
        note("refused", states.iter().any(|state| !state.refused.is_empty()));
        note("several rounds", states.iter().any(|state| state.round > 2));
        note("several leaders", world.leaders.len() > 1);
        note("a job after another", world.judge.anew > 0);
        note("compared", world.judge.compared > 0);
    }
    for (what, times) in seen {
        assert!(times >= 5, "{what}: {times}");
    }
}
