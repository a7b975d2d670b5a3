//! The list of a round's members, as its coordinator encodes it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::protocol::member_list;
use rlaunch::protocol::state::RoundMember;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = member_list::read(text);
    }
    // Random bytes are seldom a compressed list.
    if let Ok(members) = serde_json::from_slice::<Vec<RoundMember>>(data) {
        let without_endpoints = |list: &[RoundMember]| {
            let mut list = list.to_vec();
            list.iter_mut().for_each(|member| member.info.endpoints.clear());
            list
        };
        // One that would fill the memory is refused.
        let Some(once) = member_list::read(&member_list::encode(&members)) else { return };
        assert_eq!(without_endpoints(&once), without_endpoints(&members));
        assert_eq!(member_list::read(&member_list::encode(&once)), Some(once));
    }
});
