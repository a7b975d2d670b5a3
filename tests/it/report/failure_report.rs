//! The failure report: the last block on stderr.

use rlaunch::model::{Exit, ProcessLabel, Role};
use rlaunch::report::cause::fault::{CodeLocation, FaultKind, RankFault};
use rlaunch::report::console::tail::{TailLimits, tail};
use rlaunch::report::failure_report::{
    Culprit, FailureCause, FailureReport, PeersOfVictim, ReportStyle, SweptProcesses, Victim, describe_lost_peer,
    render,
};
use rlaunch::report::{Blame, LogTail, LostPeer, github_annotation};
use std::time::Duration;

fn fault(what: &str, text: &str, place: Option<(&str, u32)>) -> RankFault {
    let place = place.map(|(file, line)| CodeLocation { file: file.into(), line, function: Some("step".into()) });
    RankFault { what: what.into(), text: text.into(), place }
}

fn nan() -> Blame {
    Blame {
        kind: FaultKind::Exception,
        fault: fault("ValueError", "loss is nan", Some(("train.py", 88))),
        root: None,
        later: None,
        doubt: None,
    }
}

fn log(lines: usize) -> LogTail {
    let text: String = (0..lines).map(|i| format!("step {i}: loss 0.{i}\n")).collect();
    tail(text.as_bytes(), TailLimits::default())
}

fn culprit(exit: Exit) -> Culprit {
    Culprit {
        label: ProcessLabel::rank(7),
        local_rank: Some(7),
        host: "host-a".into(),
        pid: 4711,
        exit,
        lived: Duration::from_millis(72_300),
        attempt: 0,
        log: Some("log/workerlog.7".into()),
        core: None,
        blame: None,
        tail: log(2),
        lost_peer: None,
        stopped_by_launcher: false,
        aborted: None,
        ended_by_launcher: false,
        explanation: None,
    }
}

fn victim(rank: usize) -> Victim {
    Victim {
        label: ProcessLabel::rank(rank),
        pid: 5000,
        exit: Exit::Signal(15),
        lived: Duration::from_millis(72_400),
        signalled: true,
        lost_peer: false,
        same_failure: false,
        own_error: None,
        killed_after_grace: false,
    }
}

fn failed(culprit: Culprit, victims: Vec<Victim>) -> FailureReport {
    let status = culprit.exit.shell_status();
    FailureReport {
        outcome: FailureCause::Failed(Box::new(culprit)),
        victims,
        swept: vec![],
        restarts: 0,
        requested_restarts: 0,
        status,
    }
}

/// The block in plain style; the launcher's own sentences keep to 80 columns.
fn plainly(report: &FailureReport) -> String {
    let text = render(report, ReportStyle::default());
    let own = |l: &&str| !l.starts_with("  |") && !l.starts_with("  log:");
    assert!(text.lines().filter(own).all(|l| l.chars().count() <= 80), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    text
}

#[test]
fn an_exception_in_one_of_nine_ranks() {
    let mut report = failed(
        Culprit { blame: Some(nan()), tail: log(25), ..culprit(Exit::Code(1)) },
        [1, 2, 3, 4, 5, 6, 8].map(victim).into(),
    );
    report.victims.push(Victim { exit: Exit::Code(1), signalled: false, lost_peer: true, ..victim(0) });
    insta::assert_snapshot!(plainly(&report));
}

#[test]
fn a_chain_of_exceptions_with_a_long_text() {
    let text = (1..15).map(|i| format!("line {i}")).collect::<Vec<_>>().join("\n");
    let blame = Blame {
        doubt: None,
        fault: fault("RuntimeError", &text, Some(("/w/train.py", 88))),
        root: Some(fault("KeyError", "'lr'", Some(("/w/config.py", 12)))),
        later: None,
        ..nan()
    };
    insta::assert_snapshot!(plainly(&failed(Culprit { blame: Some(blame), ..culprit(Exit::Code(3)) }, vec![])));
}

#[test]
fn a_segmentation_fault_on_the_third_attempt() {
    let blame = Blame {
        doubt: None,
        kind: FaultKind::Interpreter,
        fault: fault("Fatal Python error", "Segmentation fault", Some(("train.py", 3))),
        root: None,
        later: None,
    };
    let culprit = Culprit { blame: Some(blame), attempt: 2, log: None, ..culprit(Exit::Signal(11)) };
    insta::assert_snapshot!(plainly(&FailureReport { restarts: 2, ..failed(culprit, vec![victim(0)]) }));
}

#[test]
fn killed_for_memory() {
    let why = "the OOM killer of its cgroup killed it: memory.max is 2 GiB, it had 1.9 GiB at its peak, 3 processes \
               were killed\nsee memory.events of /sys/fs/cgroup/job";
    let culprit = Culprit { explanation: Some(why.into()), ..culprit(Exit::Signal(9)) };
    insta::assert_snapshot!(plainly(&failed(culprit, vec![])));
}

#[test]
fn a_full_gpu_and_a_silent_log() {
    let text = "CUDA out of memory. Tried to allocate 2.00 GiB.";
    let fault = fault("torch.OutOfMemoryError", text, Some(("train.py", 30)));
    let blame = Blame { kind: FaultKind::DeviceMemory, fault, root: None, later: None, doubt: None };
    let culprit = Culprit { blame: Some(blame), tail: LogTail::default(), ..culprit(Exit::Code(1)) };
    insta::assert_snapshot!(plainly(&failed(culprit, vec![])));
}

#[test]
fn a_gpu_assertion() {
    let blame = Blame {
        doubt: None,
        kind: FaultKind::DeviceAssert,
        fault: fault("RuntimeError", "CUDA error: device-side assert triggered", Some(("train.py", 30))),
        root: Some(RankFault { place: None, ..fault("assertion on the GPU", "i < size", None) }),
        later: None,
    };
    insta::assert_snapshot!(plainly(&failed(Culprit { blame: Some(blame), ..culprit(Exit::Code(1)) }, vec![])));
}

#[test]
fn a_culprit_that_lost_a_peer() {
    let text = "[/gloo/transport/tcp/pair.cc:534] Connection closed by peer";
    let blame = Blame { fault: fault("RuntimeError", text, None), ..nan() };
    let culprit = Culprit {
        blame: Some(blame),
        lost_peer: Some((LostPeer::Gloo, PeersOfVictim::OnOtherNodes)),
        ..culprit(Exit::Code(1))
    };
    insta::assert_snapshot!(plainly(&failed(culprit, vec![])));
}

#[test]
fn what_is_known_of_the_peers_of_a_victim() {
    let exited = |ranks: &[usize]| PeersOfVictim::Exited(ranks.iter().copied().map(ProcessLabel::rank).collect());
    for (peers, text) in [
        (exited(&[1]), "it lost its connection to a peer (gloo): rank 1 had exited with 0 before"),
        (exited(&[1, 2]), "it lost its connection to a peer (gloo): ranks 1, 2 had all exited with 0 before"),
        (
            PeersOfVictim::Silent,
            "it lost its connection to a peer (gloo); no other rank has printed an error: see their logs",
        ),
    ] {
        assert_eq!(describe_lost_peer(LostPeer::Gloo, &peers), text);
    }
}

#[test]
fn a_culprit_that_was_still_exiting_and_ranks_that_failed_in_the_same_way() {
    let culprit = Culprit { blame: Some(nan()), stopped_by_launcher: true, ..culprit(Exit::Signal(15)) };
    let same = |rank| Victim { same_failure: true, ..victim(rank) };
    let text = plainly(&failed(culprit, vec![same(1), same(2), same(3)]));
    assert!(text.starts_with("rank 7 failed: ValueError: loss is nan"), "{text}");
    assert!(text.contains("\nranks 1-3 failed in the same way"), "{text}");
    assert!(!text.contains("stopped because"), "{text}");
}

#[test]
fn other_ranks_that_failed_are_named_with_their_errors() {
    let own = |rank, signalled| Victim { own_error: Some(nan().fault), signalled, ..victim(rank) };
    let words = |victims| {
        let text = plainly(&failed(culprit(Exit::Code(1)), victims));
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = words(vec![own(1, true), own(2, false), victim(3), own(4, true)]);
    let error = "(lived 1 min 12 s): ValueError: loss is nan, at train.py:88 in step";
    assert!(text.contains(&format!("ranks 1, 4 failed too {error} rank 2 failed too, with signal SIGTERM {error}")));
    assert!(text.contains("rank 3 was stopped because of it"), "{text}");
    let text = words(vec![Victim { killed_after_grace: true, ..own(1, true) }]);
    assert!(text.contains("rank 1 did not end when asked and was killed"), "{text}");
}

#[test]
fn victims_of_every_kind_and_swept_processes() {
    let died = |rank, exit| Victim { exit, signalled: false, ..victim(rank) };
    let mut report = failed(culprit(Exit::Code(137)), vec![victim(0), victim(1)]);
    report.victims.extend([
        Victim { signalled: false, lost_peer: true, exit: Exit::Code(1), ..victim(2) },
        Victim { lost_peer: true, lived: Duration::from_secs(75), ..victim(3) },
        died(4, Exit::Signal(6)),
        died(5, Exit::Code(2)),
        died(6, Exit::Signal(6)),
        Victim { killed_after_grace: true, exit: Exit::Signal(9), lived: Duration::from_secs(102), ..victim(8) },
    ]);
    report.swept = vec![
        SweptProcesses {
            owner: Some(ProcessLabel::rank(3)),
            count: 4,
            names: ["sleep", "python3", "sleep", "sleep"].map(str::to_owned).into(),
        },
        SweptProcesses { owner: None, count: 1, names: vec!["tb\x1b[2J".into()] },
        SweptProcesses { owner: Some(ProcessLabel::rank(4)), count: 0, names: vec![] },
    ];
    insta::assert_snapshot!(plainly(&report));
}

#[test]
fn a_thousand_ranks_stay_on_one_screen() {
    let mut report = failed(Culprit { blame: Some(nan()), tail: log(25), ..culprit(Exit::Code(1)) }, vec![]);
    report.victims = (0..1000)
        .filter(|rank| *rank != 7)
        .map(|rank| match rank % 3 {
            0 => Victim { signalled: false, exit: Exit::Code(rank as i32 % 99 + 1), ..victim(rank) },
            1 => Victim { signalled: false, lost_peer: true, ..victim(rank) },
            _ => victim(rank),
        })
        .collect();
    report.swept = (0..1000)
        .map(|rank| SweptProcesses {
            owner: Some(ProcessLabel::rank(rank)),
            count: 2,
            names: vec![format!("worker-{rank}"), "sh".into()],
        })
        .collect();
    let text = plainly(&report);
    assert!(text.lines().count() <= 50, "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn processes_that_are_no_ranks_are_named_by_role() {
    let of = |role, number| ProcessLabel { role, number };
    let mut report = failed(Culprit { label: of(Role::Server, 1), local_rank: None, ..culprit(Exit::Code(3)) }, vec![]);
    let heter = (0..2).map(|n| Victim { label: of(Role::HeterWorker, n), ..victim(0) });
    let first = Victim { label: of(Role::Server, 0), ..victim(0) };
    report.victims = heter.chain([first]).chain((0..4).map(victim)).collect();
    let names = vec!["sleep".to_owned()];
    report.swept = vec![SweptProcesses { owner: Some(of(Role::Coordinator, 0)), count: 1, names }];
    insta::assert_snapshot!(plainly(&report));
}

#[test]
fn stopped_from_outside() {
    let late = Victim { killed_after_grace: true, exit: Exit::Signal(9), ..victim(2) };
    let victims = vec![victim(0), victim(1), late];
    let outcome = FailureCause::Stopped { signal: 15 };
    insta::assert_snapshot!(plainly(&FailureReport {
        outcome,
        victims,
        swept: vec![],
        restarts: 1,
        requested_restarts: 0,
        status: 143
    }));
}

#[test]
fn hostile_text_stays_text() {
    let mut bad = culprit(Exit::Code(1));
    bad.host = "a\nrank 0 failed".into();
    bad.log = Some("log/\x1b[2Jworkerlog.7".into());
    bad.tail = LogTail { lines: vec!["\x1b]0;owned\x07x\ny".into()], ..LogTail::default() };
    bad.blame = Some(Blame { fault: fault("E", "\x1b[31mred\u{9b}2J", None), ..nan() });
    bad.explanation = Some("\x1b[1mbold".into());
    insta::assert_snapshot!(plainly(&failed(bad, vec![])));
}

#[test]
fn in_colour() {
    let report = failed(Culprit { blame: Some(nan()), ..culprit(Exit::Signal(11)) }, vec![victim(0)]);
    let text = render(&report, ReportStyle { color: true });
    insta::assert_snapshot!(text.replace('\x1b', "ESC"));
    let bare = ["\x1b[1;31m", "\x1b[1m", "\x1b[0m"].iter().fold(text, |t, s| t.replace(s, ""));
    assert_eq!(bare, plainly(&report));
}

#[test]
fn the_annotation_escapes_workflow_commands() {
    let text = "100% wrong\nat a: b, c\r";
    let blame = Blame { fault: fault("ValueError", text, Some(("a,b:c.py", 5))), ..nan() };
    let line = github_annotation(&failed(Culprit { blame: Some(blame), ..culprit(Exit::Code(1)) }, vec![]));
    assert_eq!(line.matches('\n').count(), 1);
    insta::assert_snapshot!(line);
    let outcome = FailureCause::Stopped { signal: 2 };
    let stopped =
        FailureReport { outcome, victims: vec![], swept: vec![], restarts: 0, requested_restarts: 0, status: 130 };
    assert_eq!(github_annotation(&stopped), "::error title=stopped by signal SIGINT::exit status 130\n");
}

#[test]
fn the_extension_modules_of_a_crash_are_counted_and_not_listed() {
    let modules: Vec<String> = (0..200).map(|number| format!("scipy.module_{number}")).collect();
    let line = format!("Extension modules: {} (total: 200)", modules.join(", "));
    let found = tail(format!("Segmentation fault\n{line}\n").as_bytes(), TailLimits::default());
    assert!(found.cut);
    assert!(found.lines[1].starts_with("Extension modules: scipy.module_0, "), "{:?}", found.lines);
    assert!(found.lines[1].ends_with("… (total: 200)") && found.lines[1].len() < 120, "{:?}", found.lines);
    let short = "Extension modules: a, b (total: 2)";
    assert_eq!(tail(short.as_bytes(), TailLimits::default()).lines, [short]);
}
