//! Values that nodes of torchrun's static rendezvous read, encoded as they were read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::rendezvous::torch_static::codec::{RankNumbers, StaticNodeInfo, assign_numbers};

fuzz_target!(|data: &[u8]| {
    if let Ok(numbers) = RankNumbers::decode(data) {
        assert_eq!(RankNumbers::decode(&numbers.encode()), Ok(numbers));
    }
    let nodes: Vec<_> = data.split(|byte| *byte == b'\n').enumerate().collect();
    let nodes: Vec<_> = nodes.iter().filter_map(|(node, line)| StaticNodeInfo::decode(line, *node)).collect();
    for (node, info) in nodes.iter().enumerate() {
        assert_eq!(StaticNodeInfo::decode(&info.encode(node), node).as_ref(), Some(info));
    }
    let numbers = assign_numbers(&nodes);
    let world_size: usize = nodes.iter().map(|node| node.workers).sum();
    assert!(numbers.iter().all(|one| one.world_size == world_size && one.first_rank < world_size));
});
