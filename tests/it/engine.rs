//! The engine on real processes: the order of starts, signals and reports, and who is blamed.

use crate::process::{pipe, shell, start};
use rlaunch::model::Exit;
use rlaunch::run::engine::{AttemptState, Engine, RankHost, RankStart, StartError};
use rlaunch::supervise::{
    ChildId, FailedRank, Lifecycle, NodeOutcome, NodeReport, ProgressNote, RankStop, SupervisionPolicy, SupervisorEvent,
};
use rlaunch::sys::process::child::Child;
use rlaunch::sys::process::pidfd;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Starts shells, for the engine.
struct Shells {
    scripts: Vec<&'static str>,
    output: OwnedFd,
    notes: usize,
}

impl RankHost for Shells {
    fn start(&mut self, id: ChildId) -> Result<RankStart, StartError> {
        match self.scripts[id.local_rank] {
            "fail" => Err("no".into()),
            script => Ok(RankStart::Started(start(&shell(script, &self.output, None)))),
        }
    }
    fn report_progress(&mut self, _: ProgressNote) {
        self.notes += 1;
    }
}

fn run(scripts: &[&'static str], grace: Duration, stop_when_up: usize) -> (NodeReport, usize) {
    play(&vec![Lifecycle::Main; scripts.len()], scripts, grace, stop_when_up)
}

fn play(parts: &[Lifecycle], scripts: &[&'static str], grace: Duration, stop_when_up: usize) -> (NodeReport, usize) {
    let (mut read, output) = pipe();
    let mut host = Shells { scripts: scripts.to_vec(), output, notes: 0 };
    let mut engine = Engine::new(parts, SupervisionPolicy::with_grace(grace)).unwrap();
    engine.send(SupervisorEvent::Start, &mut host).unwrap();
    while engine.start_next(&mut host).unwrap() {}
    if stop_when_up > 0 {
        read.read_exact(&mut vec![0; stop_when_up]).unwrap();
        engine.send(SupervisorEvent::Stop(libc::SIGTERM), &mut host).unwrap();
    }
    while engine.report().is_none() {
        engine.turn(Some(Duration::from_secs(20)), &mut host).unwrap();
        engine.start_next(&mut host).unwrap();
    }
    (engine.report().unwrap().clone(), host.notes)
}

const SLEEPER: &str = "printf x; exec sleep 1000";
/// The shell must not exec, or the trap is gone; it waits in a builtin that TERM does not end.
const DEAF: &str = "trap '' TERM; printf x; while :; do sleep 1000; done";

#[test]
fn the_first_failure_ends_the_others_and_takes_the_blame() {
    let (report, _) = run(&[SLEEPER, "exit 3", SLEEPER], Duration::from_secs(60), 0);
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(1, Exit::Code(3))));
    assert_eq!(report.victims(), [0, 2]);
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed_after_the_grace() {
    let (report, notes) = run(&[DEAF, SLEEPER], Duration::from_millis(100), 2);
    assert_eq!(report.outcome, NodeOutcome::Stopped { signal: libc::SIGTERM });
    assert_eq!(report.ranks[0].exit, Some(Exit::Signal(libc::SIGKILL)));
    assert_eq!(report.ranks[1].exit, Some(Exit::Signal(libc::SIGTERM)));
    assert_eq!(notes, 2, "one on the stop, one on the kill");
}

#[test]
fn a_rank_that_cannot_start_ends_those_before_it() {
    let (report, _) = run(&[SLEEPER, "fail", SLEEPER], Duration::from_secs(60), 0);
    assert_eq!(report.outcome, NodeOutcome::NotStarted { local_rank: 1 });
    assert_eq!(report.ranks[0].exit, Some(Exit::Signal(libc::SIGTERM)));
    assert_eq!(report.ranks[2].exit, None, "no rank was started after the failure");
}

#[test]
fn a_stop_or_a_failure_between_two_starts_keeps_the_rest_from_starting() {
    for (first, outcome) in [
        (SLEEPER, NodeOutcome::Stopped { signal: libc::SIGTERM }),
        ("exit 3", NodeOutcome::Failed(FailedRank::ended_first(0, Exit::Code(3)))),
    ] {
        let (_read, output) = pipe();
        let mut host = Shells { scripts: vec![first, SLEEPER, SLEEPER], output, notes: 0 };
        let mut engine =
            Engine::new(&[Lifecycle::Main; 3], SupervisionPolicy::with_grace(Duration::from_secs(60))).unwrap();
        engine.send(SupervisorEvent::Start, &mut host).unwrap();
        assert!(engine.start_next(&mut host).unwrap());
        if first == SLEEPER {
            engine.send(SupervisorEvent::Stop(libc::SIGTERM), &mut host).unwrap();
        }
        while !engine.is_stopping() {
            engine.turn(None, &mut host).unwrap();
        }
        while engine.report().is_none() {
            engine.turn(None, &mut host).unwrap();
            engine.start_next(&mut host).unwrap();
        }
        let report = engine.report().unwrap();
        assert_eq!(report.outcome, outcome);
        let started: Vec<_> = report.ranks.iter().map(|rank| rank.started_at.is_some()).collect();
        assert_eq!(started, [true, false, false]);
    }
}

/// Has its second rank started by another process, which replies once the first rank has ended.
struct LateReply {
    output: OwnedFd,
    /// Whether the second rank runs then.
    runs: bool,
    has_first_ended: bool,
    /// The states of the attempt that it has been shown, without repetitions.
    states: Vec<AttemptState>,
}

impl RankHost for LateReply {
    fn start(&mut self, id: ChildId) -> Result<RankStart, StartError> {
        match id.local_rank {
            0 => Ok(RankStart::Started(start(&shell(SLEEPER, &self.output, None)))),
            _ => Ok(RankStart::Pending),
        }
    }
    fn continue_start(&mut self, _: ChildId, attempt: AttemptState) -> Result<RankStart, StartError> {
        self.states.push(attempt);
        self.states.dedup();
        match (self.has_first_ended, self.runs) {
            (false, _) => Ok(RankStart::Pending),
            (true, true) => Ok(RankStart::Started(start(&shell(SLEEPER, &self.output, None)))),
            (true, false) => Err("no reply".into()),
        }
    }
    fn reaped(&mut self, id: ChildId, _: &Child, _: Exit, _: bool) {
        self.has_first_ended |= id.local_rank == 0;
    }
    fn report_progress(&mut self, _: ProgressNote) {}
}

#[test]
fn a_stop_does_not_wait_for_a_pending_start() {
    for runs in [true, false] {
        let (mut read, output) = pipe();
        let mut host = LateReply { output, runs, has_first_ended: false, states: Vec::new() };
        let mut engine =
            Engine::new(&[Lifecycle::Main; 3], SupervisionPolicy::with_grace(Duration::from_secs(60))).unwrap();
        engine.send(SupervisorEvent::Start, &mut host).unwrap();
        assert!(engine.start_next(&mut host).unwrap());
        for _ in 0..2 {
            assert!(!engine.start_next(&mut host).unwrap() && engine.is_starting());
        }
        read.read_exact(&mut [0; 1]).unwrap();
        engine.send(SupervisorEvent::Stop(libc::SIGTERM), &mut host).unwrap();
        while engine.report().is_none() {
            engine.turn(None, &mut host).unwrap();
            engine.start_next(&mut host).unwrap();
        }
        let (report, term) = (engine.report().unwrap(), Some(Exit::Signal(libc::SIGTERM)));
        assert_eq!(report.outcome, NodeOutcome::Stopped { signal: libc::SIGTERM });
        let exits: Vec<_> = report.ranks.iter().map(|rank| rank.exit).collect();
        assert_eq!(exits, [term, term.filter(|_| runs), None], "the rank that runs late is stopped too");
        assert!(report.ranks.iter().all(|rank| rank.start_error.is_none()));
        assert_eq!(host.states, [AttemptState::Running, AttemptState::Stopping]);
    }
}

#[test]
fn a_pending_start_learns_of_the_end_of_the_grace_period() {
    let regroup = SupervisorEvent::Regroup(RankStop::AtOnce);
    let second_stop = [SupervisorEvent::Stop(libc::SIGTERM), SupervisorEvent::StopAgain(libc::SIGTERM)];
    for events in [second_stop.to_vec(), vec![regroup]] {
        let (_read, output) = pipe();
        let mut host = LateReply { output, runs: false, has_first_ended: false, states: Vec::new() };
        let lifecycles = [Lifecycle::Main, Lifecycle::Main];
        let mut engine = Engine::new(&lifecycles, SupervisionPolicy::with_grace(Duration::from_secs(60))).unwrap();
        engine.send(SupervisorEvent::Start, &mut host).unwrap();
        assert!(engine.start_next(&mut host).unwrap());
        assert!(!engine.start_next(&mut host).unwrap() && engine.is_starting());
        for event in events {
            engine.send(event, &mut host).unwrap();
        }
        while engine.report().is_none() {
            engine.turn(None, &mut host).unwrap();
            engine.start_next(&mut host).unwrap();
        }
        assert_eq!(host.states.last(), Some(&AttemptState::Killing));
    }
}

/// Starts nothing; a process group lives on after its leader.
struct LingeringGroup;

impl RankHost for LingeringGroup {
    fn start(&mut self, _: ChildId) -> Result<RankStart, StartError> {
        Err("starts nothing".into())
    }
    fn group_lingers(&self, _: i32) -> bool {
        true
    }
    fn report_progress(&mut self, _: ProgressNote) {}
}

#[test]
fn a_rank_that_cannot_be_reaped_wakes_other_threads_once_this_one_stops_looking() {
    let (mut read, output) = pipe();
    let rank = start(&shell(SLEEPER, &output, None));
    assert!(rank.leads_group());
    read.read_exact(&mut [0; 1]).unwrap();
    let policy = SupervisionPolicy::with_grace(Duration::from_secs(60));
    let mut engine = Engine::adopting(vec![rank.clone()], policy).unwrap();
    engine.send(SupervisorEvent::Stop(libc::SIGTERM), &mut LingeringGroup).unwrap();
    assert!(pidfd::await_any(&[rank.as_fd()], Duration::from_secs(20)));
    engine.turn(None, &mut LingeringGroup).unwrap();
    assert!(engine.time_to_next_look().is_some());
    assert_eq!(engine.poll().wait(Some(Duration::ZERO)).unwrap(), [0; 0]);
    engine.stop_looking().unwrap();
    assert_eq!(
        (engine.poll().wait(Some(Duration::from_secs(20))).unwrap(), engine.time_to_next_look()),
        (vec![0], None)
    );
    drop(engine);
    rank.try_exit().unwrap();
}

/// Waits in each report, as for a disk that does not respond, until its rank has ended.
struct Reporter {
    output: OwnedFd,
    rank: Option<Arc<Child>>,
    ended: Vec<bool>,
}

impl RankHost for Reporter {
    fn start(&mut self, _: ChildId) -> Result<RankStart, StartError> {
        Ok(RankStart::Started(self.rank.insert(start(&shell(SLEEPER, &self.output, None))).clone()))
    }
    fn report_progress(&mut self, _: ProgressNote) {
        pidfd::await_any(&[self.rank.as_ref().unwrap().as_fd()], Duration::from_secs(20));
        self.ended.push(self.rank.as_ref().unwrap().has_ended().unwrap());
    }
}

/// Two ranks. The process group of the first one outlives it for so long as this says.
struct Outlived {
    scripts: [&'static str; 2],
    output: OwnedFd,
    started: Vec<Arc<Child>>,
    lives: bool,
}

impl RankHost for Outlived {
    fn start(&mut self, id: ChildId) -> Result<RankStart, StartError> {
        let child = start(&shell(self.scripts[id.local_rank], &self.output, None));
        self.started.push(child.clone());
        Ok(RankStart::Started(child))
    }
    fn group_lingers(&self, pid: i32) -> bool {
        self.lives && pid == self.started[0].pid()
    }
    fn report_progress(&mut self, _: ProgressNote) {}
}

#[test]
fn the_end_of_a_rank_by_a_stop_signal_waits_for_the_stop_that_explains_it() {
    for then in ["stop", "another fails", "the sender ends another", "nothing"] {
        let (_read, output) = pipe();
        let mut host = Outlived { scripts: ["kill -TERM $$", SLEEPER], output, started: Vec::new(), lives: true };
        let policy = SupervisionPolicy::with_grace(Duration::from_secs(60));
        let mut engine = Engine::new(&[Lifecycle::Main; 2], policy).unwrap();
        engine.send(SupervisorEvent::Start, &mut host).unwrap();
        while engine.start_next(&mut host).unwrap() {}
        while !engine.expects_stop() {
            engine.turn(None, &mut host).unwrap();
        }
        assert_eq!((engine.living(), engine.is_stopping()), (vec![0, 1], false));
        match then {
            "stop" => engine.send(SupervisorEvent::Stop(libc::SIGTERM), &mut host).unwrap(),
            "another fails" => host.started[1].signal(libc::SIGKILL).unwrap(),
            "the sender ends another" => host.started[1].signal(libc::SIGTERM).unwrap(),
            _ => {}
        }
        while !engine.is_stopping() && engine.report().is_none() {
            engine.turn(None, &mut host).unwrap();
        }
        if matches!(then, "stop" | "the sender ends another") {
            engine.turn(Some(Duration::ZERO), &mut host).unwrap();
            assert!(engine.living().contains(&0), "its group has the grace period");
        }
        host.lives = false;
        while engine.report().is_none() {
            engine.turn(None, &mut host).unwrap();
        }
        let exit = Exit::Signal(libc::SIGTERM);
        let expected = match then {
            "stop" => NodeOutcome::Stopped { signal: libc::SIGTERM },
            "the sender ends another" => NodeOutcome::Failed(FailedRank::ended_first(1, exit)),
            _ => NodeOutcome::Failed(FailedRank::ended_first(0, exit)),
        };
        assert_eq!(engine.report().unwrap().outcome, expected, "{then}");
        assert_eq!(engine.report().unwrap().ranks[0].exit, Some(exit));
    }
}

#[test]
fn ranks_are_signalled_before_anything_is_reported() {
    let (mut read, output) = pipe();
    let mut host = Reporter { output, rank: None, ended: Vec::new() };
    let mut engine = Engine::new(&[Lifecycle::Main], SupervisionPolicy::with_grace(Duration::from_secs(60))).unwrap();
    engine.send(SupervisorEvent::Start, &mut host).unwrap();
    engine.start_next(&mut host).unwrap();
    read.read_exact(&mut [0; 1]).unwrap();
    engine.send(SupervisorEvent::Stop(libc::SIGTERM), &mut host).unwrap();
    assert_eq!(host.ended, [true]);
    while engine.report().is_none() {
        engine.turn(None, &mut host).unwrap();
    }
}

#[test]
fn servers_are_stopped_once_the_others_have_exited_successfully() {
    let parts = [Lifecycle::Server, Lifecycle::Main, Lifecycle::Server, Lifecycle::Main];
    let (report, notes) = play(&parts, &[SLEEPER, "exit 0", SLEEPER, "exit 0"], Duration::from_secs(60), 0);
    assert_eq!(report.outcome, NodeOutcome::Completed);
    let signalled: Vec<_> = report.ranks.iter().map(|rank| rank.signalled).collect();
    assert_eq!((signalled, notes), (vec![true, false, true, false], 1));
    assert_eq!(report.ranks[2].exit, Some(Exit::Signal(libc::SIGTERM)));
}

#[test]
fn no_rank_starts_before_the_first_process_has_exited() {
    let parts = [Lifecycle::Main, Lifecycle::First, Lifecycle::First];
    let (report, _) = play(&parts, &["exit 0"; 3], Duration::from_secs(60), 0);
    assert_eq!(report.outcome, NodeOutcome::Completed);
    let time = |rank: usize| {
        let began = report.ranks[rank].started_at.unwrap();
        (began, began + report.ranks[rank].lived.unwrap())
    };
    assert!(time(1).1 <= time(2).0 && time(2).1 <= time(0).0, "{report:?}");
    let (report, _) = play(&parts, &["exit 0", "exit 0", "exit 3"], Duration::from_secs(60), 0);
    assert_eq!(report.outcome, NodeOutcome::Failed(FailedRank::ended_first(2, Exit::Code(3))));
    assert_eq!(report.ranks[0].started_at, None);
}

#[test]
fn a_dropped_engine_leaves_no_process() {
    let (mut read, output) = pipe();
    let mut host = Shells { scripts: vec![DEAF], output, notes: 0 };
    let mut engine = Engine::new(&[Lifecycle::Main], SupervisionPolicy::with_grace(Duration::from_secs(60))).unwrap();
    engine.send(SupervisorEvent::Start, &mut host).unwrap();
    engine.start_next(&mut host).unwrap();
    read.read_exact(&mut [0; 1]).unwrap();
    drop(host);
    drop(engine);
    assert_eq!(read.read(&mut [0; 1]).unwrap(), 0);
}
