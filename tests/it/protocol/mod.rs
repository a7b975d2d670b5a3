//! The invariants of the rendezvous protocol, over random histories in virtual time, and single cases.

mod cases;
mod checks;
mod coordinator;
mod exclusion;
mod lease;
mod lost_ranks;
mod node;
mod scenario;
mod states;
mod stop_step;
mod world;

use rlaunch::protocol::{JobEnd, JobPhase, JobState, RoundStopCause};
use scenario::Story;
use std::collections::BTreeMap;
use std::panic;
use world::World;

/// As many histories, or as many as PROTOCOL_CASES says; or that of PROTOCOL_SEED, printed in full.
const HISTORIES: u64 = 2_000;

fn seeds() -> std::ops::Range<u64> {
    let set = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match set("PROTOCOL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..set("PROTOCOL_CASES").unwrap_or(HISTORIES),
    }
}

/// The invariants are in `checks.rs`, where each event is checked as it comes; that all nodes end is in `World::live`.
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

/// An invariant that no history exercises always holds.
#[test]
fn the_histories_cover_all_cases() {
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    for seed in 0..800 {
        let story = Story::random(seed);
        let world = World::live(&story);
        let mut note = |what, so: bool| *seen.entry(what).or_default() += usize::from(so);
        let states = &world.judge.states;
        let any = |what: fn(&JobPhase) -> bool| states.iter().any(|state| what(&state.phase));
        note("completed", any(|phase| matches!(phase, JobPhase::Ended { end: JobEnd::Completed })));
        note("ended by a failure", any(|phase| matches!(phase, JobPhase::Ended { end: JobEnd::Failed { .. } })));
        note("ended by a loss", any(|phase| matches!(phase, JobPhase::Ended { end: JobEnd::Lost { .. } })));
        note("ended by a stop", any(|phase| matches!(phase, JobPhase::Ended { end: JobEnd::Stopped { .. } })));
        note("ended by too few", any(|phase| matches!(phase, JobPhase::Ended { end: JobEnd::TooFew { .. } })));
        note("more came", any(|phase| matches!(phase, JobPhase::Stopping { why: RoundStopCause::More { .. }, .. })));
        note("lost", any(|phase| matches!(phase, JobPhase::Stopping { why: RoundStopCause::Lost { .. }, end: None })));
        note("restarts", states.iter().any(|state| state.failures > 0));
        note("held", states.iter().any(|state| state.held_failure.is_some()));
        note("refused", states.iter().any(|state| !state.refused.is_empty()));
        let hangs = |why: &String| why.contains("hang at their start");
        note("a newcomer that hangs", states.iter().any(|state| state.excluded.values().any(hangs)));
        let too_many = |why: &String| why.starts_with("--spares");
        note("a spare too many", states.iter().any(|state| state.refused.values().any(too_many)));
        let other_commit = |why: &String| why.starts_with("--require_same git");
        note("another commit", states.iter().any(|state| state.refused.values().any(other_commit)));
        let differences = |state: &JobState| state.warnings.iter().any(|line| line.starts_with("git commit: "));
        note("a difference", states.iter().any(differences));
        note("several rounds", states.iter().any(|state| state.round > 2));
        note("several leaders", world.leaders.len() > 1);
        note("a job after another", world.judge.anew > 0);
        note("compared", world.judge.compared > 0);
        note("killed by the launcher process", world.enforcements > 0);
        note("a lease that lapsed and another", world.nodes.iter().any(|sim| sim.joined > 1));
    }
    for (what, times) in seen {
        assert!(times >= 5, "{what}: {times}");
    }
}
