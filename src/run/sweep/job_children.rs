//! Which children of a process belong to the job. All of the supervisor's do. The launcher process may also have children of an earlier
//! program of its process, and as process 1 of a container those of other programs (`kubectl exec`), whose orphans become its own.

use crate::sys::process::procfs::reader::LockedFileReader;
use crate::sys::process::procfs::snapshot::Snapshot;
use crate::sys::process::tree::{self, KeyPlaces};
use std::collections::BTreeSet;

/// The children of this process that a sweep ends, with their descendants.
#[derive(Debug)]
pub enum JobChildren<'a> {
    /// All but these.
    AllBut(&'a BTreeSet<i32>),
    /// Those that have a key of the job, or descend from a process that was seen to belong to it.
    Marked {
        /// The variable with the key.
        variable: &'a str,
        /// The beginning of the keys.
        prefix: String,
        /// Where keys are.
        places: KeyPlaces,
        /// The processes that belong to the job, by id and start time.
        known: BTreeSet<(i32, u64)>,
    },
}

impl JobChildren<'_> {
    /// Whether a child that has ended is left for another part of this process to reap.
    pub fn leaves_zombie(&self, pid: i32) -> bool {
        matches!(self, Self::AllBut(kept) if kept.contains(&pid))
    }

    /// Whether a process that has just been reaped was one of the job.
    pub fn owned(&self, pid: i32) -> bool {
        match self {
            Self::AllBut(_) => true,
            Self::Marked { known, .. } => known.iter().any(|(known, _)| *known == pid),
        }
    }

    /// The processes of the job among these children and below them.
    pub fn trees(&mut self, reader: &LockedFileReader, children: Vec<i32>, all: &Snapshot) -> BTreeSet<i32> {
        match self {
            Self::AllBut(kept) => all.trees(children.into_iter().filter(|pid| !kept.contains(pid))),
            Self::Marked { variable, prefix, places, known } => {
                let id = |pid: i32| Some((pid, all.get(pid)?.started));
                let is_known = |pid: &i32| id(*pid).is_some_and(|process| known.contains(&process));
                let (mut roots, others): (Vec<i32>, Vec<i32>) = children.into_iter().partition(is_known);
                roots.extend(tree::with_key_prefix(reader, others, (variable, prefix), *places).found);
                let found = all.trees(roots);
                // They are recognized without their parents and their keys, too.
                known.extend(found.iter().filter_map(|pid| id(*pid)));
                found
            }
        }
    }
}
