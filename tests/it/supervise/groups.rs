//! The process groups of ranks: the cases of them that random histories cover, and single histories.

use super::world::{Case, GOOD, Happening, Helpers, Manners, World};
use super::{GRACE, MS, STUBBORN, plain, run};
use rlaunch::model::Exit;
use rlaunch::supervise::{
    ChildId, Effect, MainProcess, Recipients, SupervisionPolicy, Supervisor, SupervisorEvent, last_call,
};
use std::time::Duration;

const CHILD: ChildId = ChildId { attempt: 0, local_rank: 0 };
const STOP: SupervisorEvent = SupervisorEvent::Stop(libc::SIGTERM);
const SAVES: Manners = Manners {
    lives: None,
    on_term: Some((3_000, Exit::Code(0))),
    handles: Some(MainProcess::Program),
    helpers: Helpers::Leave(0),
    ..GOOD
};

pub fn note_cases(world: &World<'_>, note: &mut dyn FnMut(&'static str, bool)) {
    for (what, case) in [
        ("a main process that is signalled alone", Case::HeldBack),
        ("a group that is signalled after it", Case::AfterMainProcess),
        ("a last call", Case::LastCall),
        ("leftovers whose time is over", Case::Expired),
        ("leftovers with the whole grace period", Case::LeftForLong),
    ] {
        note(what, world.groups.contains(&case));
    }
}

fn kill(signal: i32, to: Recipients) -> Effect {
    Effect::Kill { child: CHILD, signal, to }
}

/// A rank whose main process alone has SIGTERM since 0, and the supervisor of it.
fn held_back(policy: SupervisionPolicy, main: MainProcess) -> Supervisor {
    let mut machine = Supervisor::adopting(1, policy, Duration::ZERO);
    let mut effects = Vec::new();
    machine.handle(Duration::ZERO, STOP, &mut effects);
    assert_eq!(effects.last(), Some(&kill(libc::SIGTERM, Recipients::MainProcessFirst)));
    effects.clear();
    machine.handle(Duration::ZERO, SupervisorEvent::SignalledAlone(CHILD, main), &mut effects);
    assert_eq!(effects, []);
    machine
}

/// The effects that are no notes, and when they come, until the next `limit` effects have come.
fn effects_in_time(machine: &mut Supervisor, most: usize) -> Vec<(Duration, Effect)> {
    let mut found = Vec::new();
    while let (Some(at), true) = (machine.next_deadline(), found.len() < most) {
        let mut effects = Vec::new();
        machine.handle_timeout(at, &mut effects);
        let effects = effects.into_iter().filter(|effect| !matches!(effect, Effect::Note(_)));
        found.extend(effects.map(|effect| (at, effect)));
    }
    found
}

#[test]
fn a_last_call_comes_before_sigkill() {
    let rest = kill(libc::SIGTERM, Recipients::Rest);
    let killed = kill(libc::SIGKILL, Recipients::Group);
    for (grace, at) in [(30_000, 25_000), (600_000, 595_000), (8_000, 6_000), (0, 0)] {
        let mut machine = held_back(SupervisionPolicy::with_grace(MS * grace), MainProcess::Program);
        let expected = [(MS * at, rest.clone()), (MS * grace, killed.clone())];
        assert_eq!(effects_in_time(&mut machine, 2), expected, "{grace}");
    }
    let mut machine = held_back(SupervisionPolicy::with_grace(GRACE), MainProcess::Program);
    machine.handle(MS * 1_000, SupervisorEvent::LimitGrace(MS * 4_000), &mut Vec::new());
    let expected = [(MS * 4_000, rest), (MS * 5_000, killed)];
    assert_eq!(effects_in_time(&mut machine, 2), expected, "a shortened grace period");
}

#[test]
fn what_a_program_leaves_has_little_time_and_what_a_shell_leaves_has_the_rest() {
    for (main, expected) in [
        (MainProcess::Program, (MS * 1_000 + last_call(GRACE), Effect::EndLeftovers(CHILD))),
        (MainProcess::Shell, (GRACE, kill(libc::SIGKILL, Recipients::Group))),
    ] {
        let mut machine = held_back(SupervisionPolicy::with_grace(GRACE), main);
        let mut effects = Vec::new();
        machine.handle(MS * 1_000, SupervisorEvent::MainProcessEnded(CHILD), &mut effects);
        assert_eq!(effects, [kill(libc::SIGTERM, Recipients::Rest)]);
        effects.clear();
        machine.handle(MS * 1_000, SupervisorEvent::MainProcessEnded(CHILD), &mut effects);
        assert_eq!(effects, [], "said twice");
        assert_eq!(effects_in_time(&mut machine, 1), [expected], "{main:?}");
    }
}

#[test]
fn the_time_of_leftovers_stands_still_while_the_job_is_suspended() {
    let mut machine = held_back(SupervisionPolicy::with_grace(GRACE), MainProcess::Program);
    let mut effects = Vec::new();
    machine.handle(MS * 500, SupervisorEvent::Suspend, &mut effects);
    // Another program has killed it.
    machine.handle(MS * 900, SupervisorEvent::MainProcessEnded(CHILD), &mut effects);
    assert_eq!((effects.last(), machine.next_deadline()), (Some(&kill(libc::SIGTERM, Recipients::Rest)), None));
    machine.handle(MS * 60_000, SupervisorEvent::Resume, &mut effects);
    let expected = (MS * 60_000 + last_call(GRACE), Effect::EndLeftovers(CHILD));
    assert_eq!(effects_in_time(&mut machine, 1), [expected]);
}

#[test]
fn helpers_that_end_at_once_cost_no_time() {
    let stop = [(1_000, Happening::Stop)];
    assert_eq!(run(&plain(&[&[SAVES, SAVES]], &stop)).at, 4_000 * MS);
    let stay = Manners { helpers: Helpers::Stay, ..SAVES };
    let report = run(&plain(&[&[stay]], &stop));
    assert_eq!((report.at, report.ranks[0].killed), (4_000 * MS + last_call(GRACE), false));
    assert_eq!(report.ranks[0].exit, Some(Exit::Code(0)), "that of the main process");
    let never = Manners { handles: Some(MainProcess::Program), helpers: Helpers::Leave(0), ..STUBBORN };
    assert_eq!(run(&plain(&[&[never]], &stop)).at, 1_000 * MS + GRACE);
    let job = plain(&[&[SAVES]], &[(1_000, Happening::Stop), (2_000, Happening::Stop)]);
    let world = World::live(&job);
    assert_eq!((world.report.map(|report| report.at), world.groups), (Some(2_000 * MS), vec![Case::HeldBack]));
}
