//! Answers of etcd's JSON gateway, and what nodes have stored there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::rendezvous::etcd::codec::{self, JobKeys, MemberList, StoredState};
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Ok(answer) = serde_json::from_slice::<Value>(data) else { return };
    let revision = codec::revision(&answer);
    assert!(codec::first_after(revision).parse::<i64>().is_ok_and(|next| next >= revision));
    let _ = codec::has_succeeded(&answer);
    let changed = codec::changes(&answer);
    changed.iter().for_each(|change| _ = change.revision());
    let keys = JobKeys::new("rlaunch", "job");
    for kv in codec::key_values(&answer).into_iter().chain(codec::key_values_at(&answer, 0)) {
        // Base64 shrinks, and a byte that is no UTF-8 becomes three.
        assert!(kv.key.len() + kv.value.len() <= 3 * data.len());
        if let Some(id) = keys.node_of(&kv.key) {
            assert_eq!(keys.node_of(&keys.node(&id)), Some(id));
        }
        let put = codec::put(&kv.key, &kv.value, kv.lease);
        let again = codec::key_values(&serde_json::json!({ "kvs": [put] }));
        assert_eq!((&again[0].key, &again[0].value, again[0].lease), (&kv.key, &kv.value, kv.lease));
        assert_eq!(codec::split(&kv.value, 8).concat(), kv.value);
        if let Ok(state) = serde_json::from_str::<StoredState>(&kv.value) {
            let members = state.members.iter();
            members.for_each(|list: &MemberList| _ = list.count_in(state.term));
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<StoredState>(&text).unwrap(), state);
        }
    }
});
