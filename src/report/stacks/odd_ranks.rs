//! Groups ranks with equal stacks, and finds the ranks that the others wait for.

use super::dump::{ProcessStack, RankStacks, StackDump, StackFrame};

/// Ranks whose main threads are at the same place.
#[derive(Clone, Debug, PartialEq)]
pub struct StackGroup<'a> {
    /// Their local ranks, in order.
    pub ranks: Vec<usize>,
    /// The process of the first of them that runs its program.
    pub process: Option<&'a ProcessStack>,
    /// The function in which they wait for other ranks, if they do.
    pub waits_in: Option<&'a StackFrame>,
}

impl StackGroup<'_> {
    /// The frames of their main threads, innermost first.
    pub fn frames(&self) -> &[StackFrame] {
        self.process.map_or(&[], ProcessStack::main_frames)
    }

    /// Whether they wait for other ranks, and nothing else holds them up.
    pub fn waits(&self) -> bool {
        self.waits_in.is_some() && !self.is_stopped()
    }

    /// Whether they are stopped by a signal.
    pub fn is_stopped(&self) -> bool {
        self.process.is_some_and(ProcessStack::is_stopped)
    }
}

/// Which ranks are at fault, as far as stacks say so. Numbers are local ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OddRanks {
    /// These ranks have ended, and others wait for them.
    Ended(Vec<usize>),
    /// These ranks are stopped by a signal, and the others are not.
    Stopped(Vec<usize>),
    /// These ranks do other things, and the others wait for them.
    NotWaiting(Vec<usize>),
    /// These few ranks wait for their peers at another place than most.
    Elsewhere(Vec<usize>),
    /// Ranks wait for each other at different places, and no place is that of most.
    Mismatch,
    /// All ranks are at the same place, or none waits for another.
    None,
}

impl OddRanks {
    /// The ranks that are named.
    pub fn ranks(&self) -> &[usize] {
        match self {
            Self::Ended(ranks) | Self::Stopped(ranks) | Self::NotWaiting(ranks) | Self::Elsewhere(ranks) => ranks,
            Self::Mismatch | Self::None => &[],
        }
    }
}

/// Beginnings of the functions of both frameworks in which ranks wait for each other, without leading `_`. Measured on torch 2.15 and
/// Paddle 3.3 with a rank that is missing.
const COLLECTIVES: &[&str] = &[
    "all_",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "destroy_process_group",
    "gather",
    "init_parallel_env",
    "init_process_group",
    "irecv",
    "isend",
    "new_group",
    "new_process_group_impl",
    "recv",
    "reduce",
    "scatter",
    "send",
    "wait",
];
/// Further ones of torch.
const OF_TORCH: &[&str] = &[
    "create_c10d_store",
    "create_gloo_process_group",
    "monitored_barrier",
    "rendezvous",
    "store_based_barrier",
    "synchronize",
    "verify_param_shape",
];
/// Where ranks wait for each other: a part of the file's path, and functions. In `backward` the hooks of data parallelism wait, in C++.
const WAITS: [(&str, &[&[&str]]); 7] = [
    ("torch/distributed/", &[COLLECTIVES, OF_TORCH]),
    ("torch/nn/parallel/distributed.py", &[&["pre_forward", "sync_", "init", "join"]]),
    ("torch/autograd/graph.py", &[&["engine_run_backward"]]),
    ("paddle/distributed/", &[COLLECTIVES]),
    ("paddle/base/dygraph/parallel.py", &[&["sync_", "init"]]),
    ("paddle/base/dygraph/tensor_patch_methods.py", &[&["backward"]]),
    ("rlaunch/_rank/", &[&["create_after_wait"]]),
];

/// The outermost frame of a call that waits for other ranks.
fn waits_in(frames: &[StackFrame]) -> Option<&StackFrame> {
    let waits = |frame: &StackFrame| {
        let name = frame.function.rsplit('.').next().unwrap_or(&frame.function).trim_start_matches('_');
        let (_, functions) = WAITS.iter().find(|(file, _)| frame.file.contains(file))?;
        functions.iter().copied().flatten().any(|one| name.starts_with(one)).then_some(())
    };
    frames.iter().rev().find(|frame| waits(frame).is_some())
}

/// Groups the ranks whose main threads have equal stacks; the groups with most ranks first.
pub fn group(dump: &StackDump) -> Vec<StackGroup<'_>> {
    let key = |rank: &RankStacks| {
        let process = rank.main_process()?;
        let wait = if process.main_frames().is_empty() { process.wait_channel.clone() } else { None };
        Some((process.main_frames().to_vec(), process.is_stopped(), process.name.clone(), wait))
    };
    let mut groups: Vec<(_, StackGroup<'_>)> = Vec::new();
    for rank in &dump.ranks {
        let own = key(rank);
        match groups.iter_mut().find(|(key, _)| *key == own) {
            Some((_, group)) => group.ranks.push(rank.local_rank),
            None => {
                let process = rank.main_process();
                let waits_in = process.and_then(|process| waits_in(process.main_frames()));
                groups.push((own, StackGroup { ranks: vec![rank.local_rank], process, waits_in }));
            }
        }
    }
    let mut groups: Vec<_> = groups.into_iter().map(|(_, group)| group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.ranks.len()));
    groups
}

/// Finds the ranks that hold up the others. `ended`: ranks of this attempt that have exited successfully.
pub fn find_odd_ranks(groups: &[StackGroup<'_>], ended: &[usize]) -> OddRanks {
    let members = |is_odd: &dyn Fn(&StackGroup<'_>) -> bool| {
        let mut ranks: Vec<usize> =
            groups.iter().filter(|group| is_odd(group)).flat_map(|group| group.ranks.clone()).collect();
        ranks.sort_unstable();
        ranks
    };
    let all: usize = groups.iter().map(|group| group.ranks.len()).sum();
    let stopped = members(&|group| group.is_stopped());
    if !stopped.is_empty() && stopped.len() < all {
        return OddRanks::Stopped(stopped);
    }
    let busy = members(&|group| group.waits_in.is_none());
    if !busy.is_empty() && busy.len() * 2 <= all {
        return OddRanks::NotWaiting(busy);
    }
    // Most are at one place, whether it is known as one where ranks wait or not.
    match groups {
        [_] if !ended.is_empty() => OddRanks::Ended(ended.to_vec()),
        [] | [_] => OddRanks::None,
        [most, rest @ ..] if most.ranks.len() * 2 > all => {
            let mut few: Vec<usize> = rest.iter().flat_map(|group| group.ranks.clone()).collect();
            few.sort_unstable();
            OddRanks::Elsewhere(few)
        }
        _ if busy.is_empty() => OddRanks::Mismatch,
        _ => OddRanks::None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::dump::tests::{frame, rank};
    use super::*;

    const C10D: &str = "/site/torch/distributed/distributed_c10d.py";

    fn all_reduce(line: i32) -> Vec<StackFrame> {
        vec![
            frame("all_reduce", C10D, 2806),
            frame("wrapper", "/site/torch/distributed/c10d_logger.py", 83),
            frame("<module>", "train.py", line),
        ]
    }

    fn odd(ranks: Vec<RankStacks>, ended: &[usize]) -> OddRanks {
        let dump = StackDump { ranks };
        find_odd_ranks(&group(&dump), ended)
    }

    #[test]
    fn the_rank_that_does_not_wait_is_odd_also_among_two() {
        let load = [frame("acquire", "data.py", 7), frame("<module>", "train.py", 3)];
        assert_eq!(odd(vec![rank(0, 'S', &all_reduce(9)), rank(1, 'S', &load)], &[]), OddRanks::NotWaiting(vec![1]));
        let many = (0..8).map(|n| if n == 3 { rank(n, 'S', &load) } else { rank(n, 'S', &all_reduce(9)) }).collect();
        assert_eq!(odd(many, &[]), OddRanks::NotWaiting(vec![3]));
    }

    #[test]
    fn a_stopped_rank_is_odd_wherever_it_is() {
        let ranks = vec![rank(0, 'S', &all_reduce(9)), rank(1, 'T', &all_reduce(9)), rank(2, 'S', &all_reduce(9))];
        assert_eq!(odd(ranks, &[]), OddRanks::Stopped(vec![1]));
        assert_eq!(odd(vec![rank(0, 'T', &all_reduce(9))], &[]), OddRanks::None);
    }

    #[test]
    fn ranks_that_all_wait_wait_for_one_that_ended_or_at_different_places() {
        let waiting = |lines: &[i32]| {
            lines.iter().enumerate().map(|(n, line)| rank(n, 'S', &all_reduce(*line))).collect::<Vec<_>>()
        };
        assert_eq!(odd(waiting(&[9, 9]), &[2]), OddRanks::Ended(vec![2]));
        assert_eq!(odd(waiting(&[9, 9, 12]), &[]), OddRanks::Elsewhere(vec![2]));
        assert_eq!(odd(waiting(&[9, 12]), &[]), OddRanks::Mismatch);
        assert_eq!(odd(waiting(&[9, 9]), &[]), OddRanks::None);
    }

    #[test]
    fn most_ranks_are_at_a_place_that_is_not_known_as_a_wait() {
        let wait = [frame("<module>", "train.py", 16)];
        let many = (0..3).map(|n| if n == 1 { rank(n, 'S', &all_reduce(9)) } else { rank(n, 'S', &wait) }).collect();
        assert_eq!(odd(many, &[]), OddRanks::Elsewhere(vec![1]));
        assert_eq!(odd(vec![rank(0, 'S', &wait), rank(2, 'S', &wait)], &[1]), OddRanks::Ended(vec![1]));
    }

    #[test]
    fn a_backward_pass_waits_where_another_rank_does_not() {
        let backward =
            [frame("_engine_run_backward", "/site/torch/autograd/graph.py", 879), frame("<module>", "train.py", 9)];
        let load = [frame("acquire", "data.py", 7), frame("<module>", "train.py", 3)];
        assert_eq!(odd(vec![rank(0, 'S', &backward), rank(1, 'S', &load)], &[]), OddRanks::NotWaiting(vec![1]));
    }

    #[test]
    fn code_that_only_has_such_a_name_is_no_wait() {
        let own = |line| [frame("reduce", "train.py", line)];
        assert_eq!(odd(vec![rank(0, 'S', &own(7)), rank(1, 'S', &own(8))], &[]), OddRanks::None);
        let loader = [frame("__init__", "/site/torch/distributed/device_mesh.py", 7)];
        assert_eq!(waits_in(&loader), None);
    }

    #[test]
    fn groups_are_by_stack_and_the_largest_is_first() {
        let dump = StackDump {
            ranks: vec![rank(0, 'S', &all_reduce(1)), rank(1, 'S', &all_reduce(2)), rank(2, 'S', &all_reduce(2))],
        };
        let ranks: Vec<Vec<usize>> = group(&dump).iter().map(|group| group.ranks.clone()).collect();
        assert_eq!(ranks, [vec![1, 2], vec![0]]);
    }
}
