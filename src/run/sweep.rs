//! Ending what ranks leave behind: their children, also those with a session of their own and those whose
//! parent is gone. For the launcher's own processes, which are subreapers: whoever is below them, and was
//! not there before, belongs to the job.

use super::engine::End;
use crate::supervise::KILL_PATIENCE;
use crate::sys::cgroup::JobGroup;
use crate::sys::clock;
use crate::sys::poll::Poll;
use crate::sys::tree::{self, Stat};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// The variable by which a process of the job is known, whoever its parent is by now.
pub const KEY: &str = "RLAUNCH_RANK_KEY";

/// How often those below are looked at again while they go.
const AGAIN: Duration = Duration::from_millis(1);

/// How long a rank's leftovers are looked for: something may fork while it is being killed. What is still
/// going then is ended with the job.
const LOOK: Duration = Duration::from_millis(300);

/// A process that was left behind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leftover {
    /// Its id.
    pub pid: i32,
    /// Its name, as the kernel cuts it.
    pub name: String,
}

/// How long resource trackers, which clean up after a rank, are given to end by themselves.
const TRACKERS: Duration = Duration::from_millis(200);

/// How long a process is given to show an environment, which none does in the middle of execve.
const EXEC: Duration = Duration::from_millis(100);

/// How long the last in a cgroup may take to leave it. They have been killed, and most often collected.
pub const LAST: Duration = Duration::from_millis(100);

/// Who was killed, and under which name it was last seen: a process may call execve meanwhile.
type Found = BTreeMap<i32, String>;

fn leftovers(found: Found) -> Vec<Leftover> {
    found.into_iter().map(|(pid, name)| Leftover { pid, name }).collect()
}

fn this() -> i32 {
    std::process::id() as i32
}

/// Whether anybody below this process is in this process group and does not just end.
pub fn is_group_alive(group: i32) -> bool {
    let of_group = |stat: Stat| stat.group == group && stat.is_alive();
    tree::below(this()).into_iter().any(|pid| Stat::of(pid).is_some_and(of_group))
}

/// The value of `KEY` for one rank.
pub fn key_of_rank(key: &str, attempt: u32, local_rank: usize) -> String {
    format!("{key}/{attempt}/{local_rank}")
}

/// Kills what a rank has left, once it has ended and before its status is collected. Whoever has a session
/// of its own is known by the rank's `key`. Those that were killed together with the rank, and are still
/// on their way out, are nobody's leftovers.
pub fn after_rank(end: &End<'_>, key: &str, patience: &mut Patience) -> io::Result<Vec<Leftover>> {
    let (mut found, mut dead) = (Found::new(), BTreeSet::new());
    let begun = clock::now();
    let look = patience.left(begun);
    // Once at least, however little is left.
    for round in 0.. {
        let mut there = BTreeSet::new();
        // Whoever died since the list was read has left its own children to us, and they are not on it; and
        // whoever calls execve just now cannot be told.
        let (mut again, mut unclear) = (false, false);
        for child in tree::children(this()).into_iter().filter(|child| !end.ranks.contains(child)) {
            if round > 0 && since(begun) >= look {
                break;
            }
            let Some(stat) = living(child) else {
                again |= dead.insert(child);
                continue;
            };
            if stat.session == end.pid || carries(child, key) {
                there.insert(child);
                there.extend(tree::below(child));
            } else {
                unclear |= tree::is_bare(child) && patience.is_news(child, &stat);
            }
        }
        if there.is_empty() && !again && !unclear {
            break;
        }
        there.retain(|pid| !(end.killed && Stat::of(*pid).is_some_and(|stat| stat.group == end.pid)));
        spare_trackers(&mut there, begun);
        for pid in there {
            kill(pid, &mut found);
        }
        if since(begun) >= look {
            break;
        }
        if !again {
            Poll::new()?.wait(Some(AGAIN))?;
        }
    }
    patience.spend(since(begun));
    Ok(leftovers(found))
}

/// How long leftovers are looked for, in all: meanwhile nothing else is seen, neither another rank's end nor a
/// signal. What it does not suffice for is ended with the job.
#[derive(Debug, Default)]
pub struct Patience {
    /// Processes without an environment, by id and start, and since when they are known. Some have none for good.
    bare: BTreeMap<(i32, u64), Duration>,
    /// The beginning of the second that this is about, and how much of it has been spent.
    second: Duration,
    spent: Duration,
}

impl Patience {
    fn left(&mut self, now: Duration) -> Duration {
        if now.saturating_sub(self.second) >= Duration::from_secs(1) {
            (self.second, self.spent) = (now, Duration::ZERO);
        }
        LOOK.saturating_sub(self.spent)
    }

    fn spend(&mut self, time: Duration) {
        self.spent += time;
    }

    /// Whether a process without an environment may still be in the middle of execve.
    fn is_news(&mut self, pid: i32, stat: &Stat) -> bool {
        let now = clock::now();
        now.saturating_sub(*self.bare.entry((pid, stat.started)).or_insert(now)) < EXEC
    }
}

/// Whether there is one that is spared. The clock is read for each: the command line of a process that forks
/// without pause took 50 ms to be read.
fn spare_trackers(there: &mut BTreeSet<i32>, begun: Duration) -> bool {
    let all = there.len();
    let spared = |pid: i32| match since(begun) {
        // In the middle of execve it cannot be told yet what it will be.
        spent if spent < EXEC => tree::is_resource_tracker(pid) || tree::is_nameless(pid),
        spent => spent < TRACKERS && tree::is_resource_tracker(pid),
    };
    there.retain(|pid| !spared(*pid));
    there.len() < all
}

fn since(begun: Duration) -> Duration {
    clock::now().saturating_sub(begun)
}

/// Also of one that is on its way out: it is waited for, and not killed or counted any more.
fn living(pid: i32) -> Option<Stat> {
    Stat::of(pid).filter(|stat| !stat.is_gone())
}

fn carries(pid: i32, key: &str) -> bool {
    tree::has_been_given(pid, KEY, key)
}

/// Kills a process below this one, and notes it.
fn kill(pid: i32, found: &mut Found) {
    let Some(stat) = Stat::of(pid) else { return };
    // It cannot have changed hands unless its parent collected it: then it has another parent now.
    if tree::kill_if(pid, |now| now.parent == stat.parent || now.parent == this()) {
        found.insert(pid, stat.name);
    }
}

/// What became of everybody below this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Who was killed.
    pub killed: Vec<Leftover>,
    /// Who is still there: the kernel holds it.
    pub stuck: Vec<Leftover>,
}

/// Kills everybody below this process and collects them until none is left, `elders` (who were there
/// before the job) and what is below them excepted; and everybody in the job's cgroup.
pub fn everybody(elders: &BTreeSet<i32>, cgroup: Option<&JobGroup>) -> io::Result<Swept> {
    let begun = clock::now();
    let poll = Poll::new()?;
    let mut found = Found::new();
    loop {
        // Before anything else: whoever forks and ends without pause keeps those busy who collect and count.
        let populated = cgroup.filter(|cgroup| cgroup.is_populated());
        if let Some(cgroup) = populated {
            kill_at_once(cgroup, begun, &mut found);
        }
        let collected = tree::reap_strays(|pid| elders.contains(&pid));
        let mut there: BTreeSet<i32> = populated.map(JobGroup::members).into_iter().flatten().collect();
        for child in tree::children(this()).into_iter().filter(|child| !elders.contains(child)) {
            there.insert(child);
            there.extend(tree::below(child));
        }
        there.retain(|pid| living(*pid).is_some());
        // Those collected may have left children that came after the list was read.
        let nobody = there.is_empty() && populated.is_none() && collected == 0;
        if nobody && tree::reap_strays(|pid| elders.contains(&pid)) == 0 {
            return Ok(Swept { killed: leftovers(found), stuck: Vec::new() });
        }
        let spent = since(begun);
        if spent >= KILL_PATIENCE {
            let (killed, stuck) = leftovers(found).into_iter().partition(|l: &Leftover| !there.contains(&l.pid));
            return Ok(Swept { killed, stuck });
        }
        spare_trackers(&mut there, begun);
        for pid in there {
            kill(pid, &mut found);
        }
        poll.wait(Some(AGAIN))?;
    }
}

/// Kills everybody in the cgroup by one write, and notes whom it has seen there. Not while a tracker is
/// spared, which is in there as well: then the others are killed one by one.
fn kill_at_once(cgroup: &JobGroup, begun: Duration, found: &mut Found) {
    let mut there: BTreeSet<i32> = cgroup.members().into_iter().collect();
    if spare_trackers(&mut there, begun) {
        return;
    }
    let name = |pid: &i32| Stat::of(*pid).filter(Stat::is_alive).map(|stat| (*pid, stat.name));
    let seen: Found = there.iter().filter_map(name).collect();
    // Where it fails, they are killed one by one too.
    if cgroup.kill().is_ok() {
        found.extend(seen);
    }
    // Zombies are listed only while they have threads, and these the write does not reach (seen on Linux 6.18).
    there.into_iter().for_each(tree::kill_headless);
}

/// Ends what is left in the job's cgroup, and takes it away.
pub fn close(cgroup: Option<&JobGroup>) {
    // What the kernel does not give back stays there, empty but for those who are stuck.
    let _ = cgroup.is_none_or(|cgroup| cgroup.close(LAST));
}

/// Kills every process of this machine that carries a key which begins with `key` and a slash: for those
/// that are below no process of the launcher, or where there is none.
pub fn by_key(key: &str) -> io::Result<Vec<Leftover>> {
    let mut found = Found::new();
    let prefix = format!("{key}/");
    let begun = clock::now();
    let poll = Poll::new()?;
    loop {
        let mut there: BTreeSet<i32> = tree::carriers(KEY, &prefix).into_iter().collect();
        // Who is on his way out shows no environment any more.
        there.extend(found.keys());
        there.retain(|pid| living(*pid).is_some());
        let spent = since(begun);
        if there.is_empty() || spent >= KILL_PATIENCE {
            return Ok(leftovers(found));
        }
        spare_trackers(&mut there, begun);
        for pid in there {
            let Some(stat) = Stat::of(pid) else { continue };
            if tree::kill_if(pid, |_| tree::carries(pid, KEY, &prefix)) {
                found.insert(pid, stat.name);
            }
        }
        poll.wait(Some(AGAIN))?;
    }
}
