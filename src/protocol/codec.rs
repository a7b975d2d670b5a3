//! The coordinator behind the trait of backends: JSON in, JSON out.

use crate::model::{Endpoint, fingerprint};
use crate::protocol::coordinator::Coordinator;
use crate::protocol::coordinator_logic::{CoordinatorLogic, Departure, Publication};
use crate::protocol::member_list;
use crate::protocol::record::{NodeInfo, NodeRecord, NodeStatus};
use crate::protocol::state::JobState;
use serde_json::{Value, json};
use std::time::Duration;

/// The longest text of a record that is sent to all nodes, in characters: no node makes the state longer than nodes can read.
const MAX_TEXT: usize = 256;
/// Maximum number of further texts that front ends exchange.
const MAX_MORE: usize = 8;

impl CoordinatorLogic for Coordinator {
    fn resume(&mut self, state: Option<&str>, members: Option<&str>, now: Duration) {
        let state = state.and_then(|text| serde_json::from_str::<JobState>(text).ok());
        let members = members.and_then(member_list::read);
        *self = match state {
            Some(state) => Coordinator::resume(state, members.unwrap_or_default(), now),
            None => Coordinator::new(now),
        };
    }

    fn record(&mut self, id: &str, record: &str, now: Duration) {
        // A text that is not a record is ignored: its writer could not read an answer either.
        if let Ok(mut record) = serde_json::from_str::<NodeRecord>(record) {
            truncate_texts(&mut record.info);
            self.record(id, record, now);
        }
    }

    fn gone(&mut self, id: &str, departure: Departure, now: Duration) {
        self.gone(id, departure, now);
    }

    fn turn(&mut self, now: Duration) -> Option<Publication> {
        let (round, had_members) = (self.state().round, !self.members().is_empty());
        let (state, members) = self.turn(now)?;
        let requires_all_nodes = state.round > round || had_members && self.members().is_empty();
        let members = members.map(|members| member_list::encode(&members));
        Some(Publication { state: serde_json::to_string(&state).unwrap_or_default(), members, requires_all_nodes })
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.next_deadline()
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }

    fn shown_to_paddle(&self) -> Vec<(String, String)> {
        let is_own = |record: &NodeRecord| {
            !record.info.is_paddle_launcher
                && matches!(record.status, NodeStatus::Ready { .. } | NodeStatus::Runs { .. })
        };
        let nodes = self.nodes().filter(|(_, record)| is_own(record));
        nodes.map(|(_, record)| paddle_entry(&record.info)).collect()
    }
}

/// Failures are not truncated: their nodes recognize them by their texts, and a state contains one at most.
fn truncate_texts(
    NodeInfo { name, host, address, address_from, device, master, version, role, rules, more, fingerprint, .. }: &mut NodeInfo,
) {
    let truncate = |text: &mut String, length| {
        if let Some((end, _)) = text.char_indices().nth(length) {
            text.truncate(end);
        }
    };
    for text in [name, host, address, address_from, device, master, version, role] {
        truncate(text, MAX_TEXT);
    }
    fingerprint.retain(|name, _| fingerprint::is_field(name));
    let of_rules = [&mut rules.frontend, &mut rules.require_same, &mut rules.script];
    of_rules.into_iter().chain(fingerprint.values_mut()).for_each(|text| truncate(text, MAX_TEXT));
    while more.len() > MAX_MORE {
        more.pop_last();
    }
    // Lists of devices and addresses.
    more.values_mut().for_each(|text| truncate(text, 4 * MAX_TEXT));
}

/// A node's key below `/{job}/info` and its payload, as Paddle's launcher writes them.
pub fn paddle_entry(info: &NodeInfo) -> (String, String) {
    let rank = info.rank.map_or(-1, |rank| i64::try_from(rank).unwrap_or(i64::MAX));
    let payload = match info.endpoints.split_at_checked(info.servers) {
        Some((servers, trainers)) if info.servers > 0 => json!({
            "name": info.name, "rank": rank, "servers": servers, "trainers": trainers, "dtype": info.device,
            "gloo_port": Endpoint::parse(&info.master).map(|gloo| gloo.port),
        }),
        _ => json!({
            "name": info.name, "rank": rank, "replicas": info.ranks, "dtype": info.device,
            "candidate": info.master, "endpoints": info.endpoints.join(","),
        }),
    };
    (format!("{}/{rank}", info.name), payload.to_string())
}

/// What a node of Paddle's launcher offers, from its payload; `None`: it is no payload of a node.
pub fn read_paddle_payload(payload: &Value) -> Option<NodeInfo> {
    let text = |name: &str| payload.get(name).and_then(Value::as_str);
    let list = |name: &str| -> Option<Vec<String>> {
        let endpoints = payload.get(name)?.as_array()?;
        endpoints.iter().map(|one| one.as_str().filter(|one| !one.is_empty()).map(str::to_owned)).collect()
    };
    let info = NodeInfo {
        name: text("name").unwrap_or_default().to_owned(),
        device: text("dtype").unwrap_or_default().to_owned(),
        is_paddle_launcher: true,
        ..NodeInfo::default()
    };
    if payload.get("servers").is_none() {
        let master = text("candidate")?.to_owned();
        let endpoints = text("endpoints")?.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect();
        let ranks = payload.get("replicas").and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok())?;
        let address = master.rsplit_once(':')?.0.to_owned();
        return Some(NodeInfo { host: address.clone(), address, ranks, master, endpoints, ..info });
    }
    let (mut endpoints, trainers) = (list("servers")?, list("trainers")?);
    let servers = endpoints.len();
    let gloo = u16::try_from(payload.get("gloo_port")?.as_u64()?).ok()?;
    let address = Endpoint::parse(endpoints.first()?)?.host;
    endpoints.extend(trainers);
    let (ranks, master) = (endpoints.len(), Endpoint::new(&address, gloo).to_string());
    Some(NodeInfo { host: address.clone(), address, ranks, master, endpoints, servers, ..info })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::record::{FORMAT, JobRules};
    use crate::protocol::state::{JobPhase, RoundMember};

    #[test]
    fn a_state_that_gives_up_the_members_requires_that_all_nodes_are_known() {
        let now = Duration::from_secs(1);
        let rules = JobRules { min: 2, max: 2, join_ms: 60_000, ..JobRules::default() };
        let info = NodeInfo { rules, ranks: 1, ..NodeInfo::default() };
        let record = |status| serde_json::to_string(&NodeRecord { format: FORMAT, info: info.clone(), status });
        let mut coordinator = Coordinator::new(now);
        let state = JobState { round: 2, phase: JobPhase::Running, ..coordinator.state().clone() };
        let members = [RoundMember { id: "a".into(), info: info.clone() }];
        let (state, list) = (serde_json::to_string(&state).unwrap_or_default(), member_list::encode(&members));
        CoordinatorLogic::resume(&mut coordinator, Some(&state), Some(&list), now);
        // Another node, which begins a job anew; but `a` may be back, and about to run its round.
        let spare = record(NodeStatus::Ready { seen: 2 }).unwrap_or_default();
        CoordinatorLogic::record(&mut coordinator, "b", &spare, now);
        let requires = CoordinatorLogic::turn(&mut coordinator, now).map(|publication| publication.requires_all_nodes);
        assert_eq!((coordinator.members().len(), coordinator.state().round, requires), (0, 2, Some(true)));
    }

    #[test]
    fn a_state_with_the_largest_numbers_is_resumed() {
        let state = json!({
            "format": FORMAT, "serial": u64::MAX, "round": u64::MAX, "failures": u32::MAX, "phase": {"is": "Gathering"},
            "refused": {}, "participants": null,
        });
        let node = json!({
            "format": FORMAT, "info": {"ranks": 1, "rules": {"min": 1, "max": 1}}, "status": {"is": "Ready", "seen": u64::MAX},
        });
        let now = Duration::from_secs(1);
        let mut coordinator = Coordinator::new(now);
        CoordinatorLogic::resume(&mut coordinator, Some(&state.to_string()), None, now);
        CoordinatorLogic::record(&mut coordinator, "a", &node.to_string(), now);
        let later = now + Duration::from_secs(60);
        assert!(CoordinatorLogic::turn(&mut coordinator, later).is_some());
        assert_eq!((coordinator.state().serial, coordinator.state().round), (u64::MAX, u64::MAX));
        assert_eq!(coordinator.members().len(), 1, "{:?}", coordinator.state());
    }

    fn record(info: &NodeInfo, status: NodeStatus) -> String {
        json!(NodeRecord { format: FORMAT, info: info.clone(), status }).to_string()
    }

    #[test]
    fn only_states_that_begin_a_round_require_that_all_nodes_are_known() {
        let rules = JobRules { min: 2, max: 2, join_ms: 60_000, ..JobRules::default() };
        let info = NodeInfo { rules, ranks: 1, ..NodeInfo::default() };
        let mut coordinator = Coordinator::new(Duration::ZERO);
        let logic: &mut dyn CoordinatorLogic = &mut coordinator;
        let turn = |logic: &mut dyn CoordinatorLogic, at: u64| {
            let publication = logic.turn(Duration::from_millis(at));
            publication.map(|publication| (publication.requires_all_nodes, publication.members.is_some()))
        };
        logic.record("a", &record(&info, NodeStatus::Ready { seen: 0 }), Duration::ZERO);
        assert_eq!(turn(logic, 0), Some((false, true)), "the first state comes with the list, which is empty");
        assert_eq!(logic.next_deadline(), Some(Duration::from_millis(1_500)), "waiting nodes receive the participants");
        logic.record("b", &record(&info, NodeStatus::Ready { seen: 0 }), Duration::ZERO);
        assert_eq!(turn(logic, 1), Some((true, true)), "a round begins");
        assert_eq!(logic.next_deadline(), None);
        logic.gone("b", Departure::Lapsed { age: Duration::from_secs(1) }, Duration::from_millis(2));
        assert_eq!(turn(logic, 2), Some((false, false)), "it stops");
        assert!(!logic.is_over());
        logic.record("a", &record(&info, NodeStatus::Ready { seen: 1 }), Duration::from_millis(3));
        assert_eq!(turn(logic, 3), Some((false, false)), "the job ends");
        assert!(!logic.is_over(), "a has to receive the end");
        logic.gone("a", Departure::Left, Duration::from_millis(4));
        assert!(logic.is_over());
    }

    #[test]
    fn paddle_s_launchers_see_the_nodes_that_are_ready_or_run() {
        let named = |name: &str| NodeInfo { name: name.into(), ..NodeInfo::default() };
        let paddle = NodeInfo { is_paddle_launcher: true, ..named("theirs") };
        let mut coordinator = Coordinator::new(Duration::ZERO);
        let logic: &mut dyn CoordinatorLogic = &mut coordinator;
        for (id, info, status) in [
            ("1", named("ready"), NodeStatus::Ready { seen: 0 }),
            ("2", named("runs"), NodeStatus::runs(1)),
            ("3", named("done"), NodeStatus::done(1)),
            ("4", paddle, NodeStatus::Ready { seen: 0 }),
        ] {
            logic.record(id, &record(&info, status), Duration::ZERO);
        }
        let keys: Vec<String> = logic.shown_to_paddle().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["ready/-1", "runs/-1"]);
    }

    #[test]
    fn an_entry_for_paddle_s_launchers_has_their_form() {
        let info = NodeInfo {
            name: "aaaaaa".into(),
            ranks: 2,
            device: "gpu".into(),
            master: "10.0.0.1:6070".into(),
            endpoints: vec!["10.0.0.1:1".into(), "10.0.0.1:2".into()],
            ..NodeInfo::default()
        };
        let payload = |rank: i64| {
            json!({
                "name": "aaaaaa", "rank": rank, "replicas": 2, "dtype": "gpu", "candidate": "10.0.0.1:6070",
                "endpoints": "10.0.0.1:1,10.0.0.1:2",
            })
        };
        for (rank, number) in [(None, -1), (Some(3), 3)] {
            let (key, text) = paddle_entry(&NodeInfo { rank, ..info.clone() });
            assert_eq!((key, text), (format!("aaaaaa/{number}"), payload(number).to_string()));
        }
    }

    #[test]
    fn a_node_with_servers_has_another_entry_which_is_read_back() {
        let info = NodeInfo {
            name: "aaaaaa".into(),
            host: "10.0.0.1".into(),
            address: "10.0.0.1".into(),
            ranks: 3,
            device: "cpu".into(),
            master: "10.0.0.1:6767".into(),
            endpoints: (1..4).map(|port| format!("10.0.0.1:{port}")).collect(),
            servers: 1,
            is_paddle_launcher: true,
            ..NodeInfo::default()
        };
        let (key, text) = paddle_entry(&info);
        let payload = json!({
            "name": "aaaaaa", "rank": -1, "servers": ["10.0.0.1:1"], "trainers": ["10.0.0.1:2", "10.0.0.1:3"],
            "dtype": "cpu", "gloo_port": 6767,
        });
        assert_eq!((key, &text), ("aaaaaa/-1".to_owned(), &payload.to_string()));
        assert_eq!(read_paddle_payload(&payload), Some(info.clone()));
        let ranks = NodeInfo { servers: 0, ..info };
        let read = serde_json::from_str(&paddle_entry(&ranks).1).ok();
        assert_eq!(read.and_then(|payload| read_paddle_payload(&payload)), Some(ranks));
        for (field, value) in [
            ("servers", json!([])),
            ("servers", json!([7])),
            ("servers", json!(["x"])),
            ("trainers", json!(null)),
            ("gloo_port", json!(70_000)),
        ] {
            let mut wrong = payload.clone();
            wrong[field] = value;
            assert_eq!(read_paddle_payload(&wrong), None, "{wrong}");
        }
        let many = NodeInfo { servers: 9, ..read_paddle_payload(&payload).unwrap_or_default() };
        assert!(paddle_entry(&many).1.contains("candidate"), "a record that says more than it has");
    }

    #[test]
    fn long_texts_of_a_record_are_cut_at_whole_characters() {
        let long = |length: usize| "\u{e4}".repeat(length);
        let text = || long(MAX_TEXT + 1);
        let mut info = NodeInfo {
            name: text(),
            host: text(),
            address: text(),
            address_from: text(),
            device: text(),
            master: text(),
            version: text(),
            role: text(),
            rules: JobRules { frontend: text(), require_same: text(), ..JobRules::default() },
            fingerprint: [("git".to_owned(), text()), (text(), text())].into(),
            more: (0..10).map(|key| (format!("{key}"), long(4 * MAX_TEXT + 1))).collect(),
            ..NodeInfo::default()
        };
        truncate_texts(&mut info);
        let NodeInfo { name, host, address, address_from, device, master, version, role, rules, more, .. } = &info;
        for text in [name, host, address, address_from, device, master, version, role] {
            assert_eq!(*text, long(MAX_TEXT));
        }
        assert_eq!([&rules.frontend, &rules.require_same], [&long(MAX_TEXT); 2]);
        assert_eq!(info.fingerprint, [("git".to_owned(), long(MAX_TEXT))].into(), "fields that are known");
        assert_eq!(more.keys().cloned().collect::<String>(), "01234567", "the first {MAX_MORE} stay");
        assert!(more.values().all(|text| *text == long(4 * MAX_TEXT)));
        let cut = info.clone();
        truncate_texts(&mut info);
        assert_eq!(info, cut, "texts that are short enough stay");
    }
}
