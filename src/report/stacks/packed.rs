//! A dump for other nodes: equal stacks are in it once. Most threads of a job's ranks are at few places.

use super::dump::{StackDump, StackFrame, ThreadStack};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Frames of a dump that is unpacked. A few bytes of a packed one could stand for any number.
const MOST_FRAMES: usize = 200_000;

/// A dump, and apart from it the stacks of its threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PackedDump {
    dump: StackDump,
    stacks: Vec<Vec<StackFrame>>,
    /// For each thread of the dump the index of its stack.
    indexes: Vec<usize>,
}

fn threads(dump: &mut StackDump) -> impl Iterator<Item = &mut ThreadStack> {
    dump.ranks.iter_mut().flat_map(|rank| &mut rank.processes).flat_map(|process| &mut process.threads)
}

impl PackedDump {
    /// Packs a dump.
    pub fn new(mut dump: StackDump) -> Self {
        let (mut known, mut stacks, mut indexes) = (HashMap::new(), Vec::new(), Vec::new());
        for thread in threads(&mut dump) {
            let frames = std::mem::take(&mut thread.frames);
            indexes.push(*known.entry(frames).or_insert_with_key(|frames| {
                stacks.push(frames.clone());
                stacks.len() - 1
            }));
        }
        Self { dump, stacks, indexes }
    }

    /// The dump again. Threads whose stack is missing have none.
    pub fn unpack(self) -> StackDump {
        let Self { mut dump, stacks, indexes } = self;
        let mut left = MOST_FRAMES;
        for (thread, index) in threads(&mut dump).zip(indexes) {
            if let Some(frames) = stacks.get(index).filter(|frames| frames.len() <= left) {
                left -= frames.len();
                thread.frames.clone_from(frames);
            }
        }
        dump
    }
}

#[cfg(test)]
mod tests {
    use super::super::dump::tests::{frame, rank};
    use super::*;

    #[test]
    fn equal_stacks_are_written_once() {
        let stack = vec![frame("all_reduce", "c10d.py", 7), frame("<module>", "train.py", 9)];
        let mut ranks: Vec<_> = (0..8).map(|number| rank(number, 'S', &stack)).collect();
        ranks.push(rank(8, 'S', &[frame("load", "train.py", 3)]));
        ranks.push(rank(9, 'S', &[]));
        let dump = StackDump { ranks };
        let packed = PackedDump::new(dump.clone());
        assert_eq!((packed.stacks.len(), packed.indexes.len()), (2, 9));
        assert_eq!(packed.unpack(), dump);
    }

    #[test]
    fn a_small_document_cannot_become_a_large_one() {
        let stack = vec![frame("f", "f.py", 1); MOST_FRAMES / 2];
        let dump = StackDump { ranks: (0..3).map(|number| rank(number, 'S', &stack)).collect() };
        let unpacked = PackedDump::new(dump).unpack();
        let frames = unpacked.ranks.iter().map(|rank| rank.processes[0].threads[0].frames.len());
        assert_eq!(frames.collect::<Vec<_>>(), [MOST_FRAMES / 2, MOST_FRAMES / 2, 0]);
        let wrong = PackedDump { indexes: vec![7], ..PackedDump::new(unpacked) };
        assert!(wrong.unpack().ranks[0].processes[0].main_frames().is_empty());
    }
}
