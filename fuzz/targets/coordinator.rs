//! Records of nodes and stored states, as the coordinator of a job reads them: it never stops, and can resume from what it publishes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::protocol::coordinator::Coordinator;
use rlaunch::protocol::coordinator_logic::{CoordinatorLogic, Departure};
use std::time::Duration;

fuzz_target!(|data: &str| {
    let mut now = Duration::from_secs(100);
    let mut coordinator = Coordinator::new(now);
    for line in data.lines().take(64) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (id, text) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "resume" => CoordinatorLogic::resume(&mut coordinator, Some(id), Some(text), now),
            "gone" | "lapsed" | "left" => {
                let age = Duration::from_millis(text.len() as u64);
                let departure = match word {
                    "gone" => Departure::Disconnected { age },
                    "lapsed" => Departure::Lapsed { age },
                    _ => Departure::Left,
                };
                CoordinatorLogic::gone(&mut coordinator, id, departure, now);
            }
            "wait" => now += Duration::from_millis(rest.len() as u64 * 500),
            "deadline" => {
                now = CoordinatorLogic::next_deadline(&coordinator)
                    .map_or(now, |at| at.clamp(now, now + Duration::from_secs(3600)))
            }
            _ => CoordinatorLogic::record(&mut coordinator, word, rest, now),
        }
        if let Some(published) = CoordinatorLogic::turn(&mut coordinator, now) {
            let mut next = Coordinator::new(now);
            CoordinatorLogic::resume(&mut next, Some(&published.state), published.members.as_deref(), now);
            assert_eq!(next.state(), coordinator.state());
            let _ = (CoordinatorLogic::turn(&mut next, now), CoordinatorLogic::shown_to_paddle(&next));
        }
    }
});
