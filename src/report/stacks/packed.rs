//! A dump for other nodes: equal stacks are in it once. Most threads of a job's ranks are at few places.

use super::dump::{StackDump, StackFrame, ThreadStack};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

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

    /// The dump again. Where its stacks would need more than so many bytes, it has those of the main threads alone; `None`: these
    /// are too many as well. A few bytes of a packed dump could stand for any number.
    pub fn unpack(self, most: usize) -> Option<StackDump> {
        let Self { mut dump, stacks, indexes } = self;
        let costs: Vec<usize> = stacks.iter().map(|frames| frames.iter().map(cost).sum()).collect();
        let processes = dump.ranks.iter().flat_map(|rank| &rank.processes);
        let is_main: Vec<bool> =
            processes.flat_map(|process| (0..process.threads.len()).map(|thread| thread == 0)).collect();
        let sum = |only_main: bool| -> usize {
            let counted = indexes.iter().zip(&is_main).filter(|(_, is_main)| !only_main || **is_main);
            counted.filter_map(|(index, _)| costs.get(*index)).sum()
        };
        let only_main = sum(false) > most;
        if only_main && sum(true) > most {
            return None;
        }
        for ((thread, index), is_main) in threads(&mut dump).zip(&indexes).zip(is_main) {
            if let Some(frames) = stacks.get(*index).filter(|_| is_main || !only_main) {
                thread.frames.clone_from(frames);
            }
        }
        if only_main {
            dump.keep_main_threads();
        }
        Some(dump)
    }
}

/// Bytes that a frame needs.
fn cost(frame: &StackFrame) -> usize {
    size_of::<StackFrame>() + frame.function.len() + frame.file.len()
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
        assert_eq!(packed.unpack(1 << 20), Some(dump));
    }

    #[test]
    fn a_small_document_cannot_become_a_large_one() {
        let stack = vec![frame("f", &"f".repeat(1000), 1)];
        let one_stack = cost(&stack[0]);
        let mut dump = StackDump { ranks: (0..3).map(|number| rank(number, 'S', &stack)).collect() };
        let thread = dump.ranks[0].processes[0].threads[0].clone();
        dump.ranks[2].processes[0].threads.extend(vec![thread; 7]);
        let packed = PackedDump::new(dump.clone());
        assert_eq!(packed.clone().unpack(10 * one_stack), Some(dump.clone()));
        dump.keep_main_threads();
        assert_eq!(packed.clone().unpack(10 * one_stack - 1), Some(dump.clone()));
        assert_eq!(packed.clone().unpack(3 * one_stack), Some(dump));
        assert_eq!(packed.clone().unpack(3 * one_stack - 1), None);
        let wrong = PackedDump { indexes: vec![7], ..packed };
        assert!(wrong.unpack(usize::MAX).is_some_and(|dump| dump.ranks[0].processes[0].main_frames().is_empty()));
    }
}
