//! The cause of a failure where the rank's own Python has noted whether an exception ended it.

use rlaunch::model::Exit;
use rlaunch::report::cause::blame::Doubt;
use rlaunch::report::cause::fault::{CodeLocation, RankFault};
use rlaunch::report::cause::uncaught::{NotedException, UncaughtException};
use rlaunch::report::cause::verdict::{Account, read_account};
use rlaunch::report::{Blame, FaultKind, blame};

const LOGGED: &str = "ERROR:root:retry
Traceback (most recent call last):
  File \"t.py\", line 1, in load
    f()
OSError: slow disk
";

const LATER: &str = "WARNING:root:low on space\nWARNING:root:done\n";

fn raised(what: &str, text: &str) -> UncaughtException {
    let place = CodeLocation { file: "t.py".into(), line: 9, function: Some("main".into()) };
    let fault = RankFault { what: what.into(), text: text.into(), place: Some(place) };
    UncaughtException::Raised(NotedException {
        fault,
        raised_in: None,
        interpreter: None,
        other_venv: None,
        at: std::time::Duration::ZERO,
    })
}

fn found(text: &str, exit: Exit, uncaught: &UncaughtException) -> Option<Blame> {
    blame(text.as_bytes(), exit, uncaught)
}

fn line(blame: Option<Blame>) -> Option<String> {
    blame.map(|blame| blame.fault.to_string())
}

#[test]
fn an_exception_that_was_caught_explains_no_signal() {
    for text in [LOGGED.to_owned(), [LOGGED, LATER].concat()] {
        for signal in [9, 11, 15] {
            assert_eq!(line(found(&text, Exit::Signal(signal), &UncaughtException::None)), None, "{text}");
        }
    }
    let aborted = [LOGGED, "double free or corruption (out)\n"].concat();
    let blame = found(&aborted, Exit::Signal(6), &UncaughtException::None);
    assert_eq!(line(blame), Some("glibc: double free or corruption (out)".into()));
}

#[test]
fn an_exception_that_was_caught_is_marked_as_such_and_ends_with_its_line() {
    let text = [LOGGED, LATER].concat();
    let blame = found(&text, Exit::Code(1), &UncaughtException::None).unwrap();
    assert_eq!(blame.fault.to_string(), "OSError: slow disk");
    let last_line = LATER.lines().next_back().map(str::to_owned);
    assert_eq!(blame.doubt, Some(Doubt { in_thread: false, last_line: last_line.clone() }));
    assert_eq!(blame.in_a_line(), format!("OSError: slow disk; its last line: {}", last_line.unwrap()));
    // Nothing that a library prints while the program ends is the last line.
    let noise = "[W1124 22:45:01.1 ProcessGroupNCCL.cpp:1538] Warning: destroy_process_group() was not called\n\r 40%|##  | 4/10\n";
    let with_noise = found(&[&text, noise].concat(), Exit::Code(1), &UncaughtException::None).unwrap();
    assert_eq!(with_noise.doubt, blame.doubt);
    let cuda =
        LOGGED.replace("OSError: slow disk", "RuntimeError: CUDA error: an illegal memory access\nCompile with X");
    let blame = found(&cuda, Exit::Code(1), &UncaughtException::None).unwrap();
    assert_eq!(blame.doubt, Some(Doubt { in_thread: false, last_line: None }));
    let blame = found(&text, Exit::Code(1), &UncaughtException::Unknown).unwrap();
    assert!(blame.doubt.is_none() && blame.fault.text.contains("low on space"), "{blame:?}");
}

#[test]
fn the_noted_exception_is_the_cause_wherever_it_was_printed() {
    let own = "Traceback (most recent call last):
  File \"t.py\", line 4, in main
    g()
ValueError: out
of range
";
    let uncaught = raised("ValueError", "out\nof range");
    for text in [[own, LATER, LOGGED].concat(), [LOGGED, own, LATER].concat(), [own, LATER, LATER].concat()] {
        for exit in [Exit::Code(1), Exit::Signal(9), Exit::Signal(11), Exit::Code(3)] {
            let blame = found(&text, exit, &uncaught).unwrap();
            assert_eq!(blame.fault.to_string(), "ValueError: out\nof range", "{text}");
            assert_eq!(blame.fault.place.map(|place| place.line), Some(4), "as printed");
        }
    }
}

#[test]
fn a_noted_exception_that_was_not_printed_is_described_as_noted() {
    let blame = found(LOGGED, Exit::Code(1), &raised("torch.OutOfMemoryError", "CUDA out of memory")).unwrap();
    assert_eq!(blame.kind, FaultKind::DeviceMemory);
    assert_eq!(blame.fault.place.map(|place| place.to_string()), Some("t.py:9 in main".into()));
}

#[test]
fn the_loss_of_a_helper_process_is_known_without_a_traceback() {
    let text = "Traceback (most recent call last):\n  File \"t.py\", line 9, in main\n    next(batches)\n";
    let UncaughtException::Raised(mut noted) = raised("ConnectionResetError", "[Errno 104]") else { unreachable!() };
    noted.raised_in = Some("/usr/lib/python3.11/multiprocessing/connection.py".into());
    let blame = found(text, Exit::Code(1), &UncaughtException::Raised(noted)).unwrap();
    assert_eq!(blame.kind, FaultKind::LostHelper);
}

#[test]
fn an_abort_after_a_noted_exception_is_a_circumstance() {
    let text = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  store\n";
    let blame = found(text, Exit::Signal(6), &raised("ValueError", "out")).unwrap();
    assert_eq!(blame.root.map(|root| root.to_string()), Some("ValueError: out".into()));
}

#[test]
fn a_living_rank_has_failed_only_by_an_uncaught_exception() {
    let stopped =
        |text: &str, uncaught: &UncaughtException| read_account(text.as_bytes(), Exit::Signal(15), true, uncaught);
    assert_eq!(stopped(LOGGED, &UncaughtException::None), Account::Nothing);
    assert_eq!(stopped(LOGGED, &UncaughtException::Unknown), Account::OwnError);
    let much = [LOGGED, &"step\n".repeat(100)].concat();
    assert_eq!(stopped(&much, &raised("ValueError", "out")), Account::OwnError);
    let lost = raised("RuntimeError", "[gloo/transport/tcp/pair.cc:1] Connection closed by peer [127.0.0.1]:1");
    assert!(matches!(stopped(&much, &lost), Account::LostPeer(_)));
}

#[test]
fn an_exception_that_carries_the_traceback_of_another_is_read_from_the_output() {
    let own = "Traceback (most recent call last):
  File \"t.py\", line 4, in main
    g()
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File \"data.py\", line 7, in load
    h()
ValueError: bad sample 17

";
    let note =
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File ...";
    let read = |uncaught| line(found(own, Exit::Code(1), &uncaught));
    assert_eq!(read(raised("ValueError", note)), read(UncaughtException::Unknown));
}

#[test]
fn a_lost_peer_on_a_later_line_of_a_message_that_was_caught_is_seen() {
    let text = "Traceback (most recent call last):
  File \"t.py\", line 4, in main
    g()
RuntimeError: collective failed in step 7
[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234
";
    let account = read_account(text.as_bytes(), Exit::Code(1), false, &UncaughtException::None);
    assert!(matches!(account, Account::LostPeer(_)), "{account:?}");
}

#[test]
fn an_exception_that_ended_a_thread_ends_with_its_line_and_explains_no_signal() {
    let thread = "Exception in thread Thread-1 (<lambda>):
Traceback (most recent call last):
  File \"t.py\", line 4, in <lambda>
    t=threading.Thread(target=lambda: 1/0)
ZeroDivisionError: division by zero
";
    let later = [thread, "epoch 0 loss 0.5\ndisk full, giving up\n"].concat();
    let in_thread = |last_line: Option<&str>| Some(Doubt { in_thread: true, last_line: last_line.map(str::to_owned) });
    let read = |text: &str, exit| found(text, exit, &UncaughtException::None);
    let blame = read(&later, Exit::Code(1)).unwrap();
    assert_eq!(blame.fault.to_string(), "ZeroDivisionError: division by zero");
    assert_eq!(blame.doubt, in_thread(Some("disk full, giving up")));
    // As when a hook of the program ends the process.
    let blame = read(thread, Exit::Code(1)).unwrap();
    assert_eq!(blame.doubt, in_thread(None));
    assert_eq!(blame.in_a_line(), "ZeroDivisionError: division by zero");
    // A hook may also end it by a signal.
    assert_eq!(read(thread, Exit::Signal(6)).unwrap().doubt, in_thread(None));
    assert_eq!(read(&[thread, &"epoch\n".repeat(45)].concat(), Exit::Signal(9)), None);
    assert_eq!(read(&[thread, &"epoch\n".repeat(45)].concat(), Exit::Code(3)), None);
}

#[test]
fn an_exception_in_a_worker_of_paddles_loader_is_the_first_one() {
    let text = "Exception in thread Thread-1 (_thread_loop):
Traceback (most recent call last):
  File \"/v/site-packages/paddle/io/dataloader/worker.py\", line 195, in reraise
    raise self.exc_type(msg)
ValueError: DataLoader worker(0) caught ValueError with message:
Traceback (most recent call last):
  File \"data.py\", line 9, in __getitem__
    raise ValueError(\"bad sample 9\")
ValueError: bad sample 9

Traceback (most recent call last):
  File \"t.py\", line 18, in <module>
    for batch in loader: pass
SystemError: (Fatal) Blocking queue is killed because the data reader raises an exception.
  [Hint: Expected killed_ != true, but received killed_:1 == true:1.] (at blocking_queue.h:175)
";
    let text = text.replace("\n\nTraceback", &["\n\n", LOGGED, "Traceback"].concat());
    let note = "(Fatal) Blocking queue is killed because the data reader raises an exception.\n  [Hint: Expected killed_ != true, but received killed_:1 == true:1.] (at blocking_queue.h:175)";
    for uncaught in [UncaughtException::Unknown, raised("SystemError", note)] {
        let blame = found(&text, Exit::Code(1), &uncaught).unwrap();
        assert_eq!(blame.fault.what, "SystemError");
        let root = blame.root.unwrap();
        assert_eq!(
            (root.in_a_line().as_str(), root.place.unwrap().file.as_str()),
            ("ValueError: bad sample 9", "data.py")
        );
    }
    // A worker has died: the line comes before the traceback, or after it.
    let (_, system_error) = text.rsplit_once("\n\n").unwrap();
    let died = "DataLoader 1 workers exit unexpectedly, pids: 21099";
    let warning = format!("[2026-11-29 03:52:42,197] [ WARNING] dataloader_iter.py:733 - {died}\n");
    for text in [[&warning, system_error].concat(), [system_error, "\n", &warning].concat()] {
        for uncaught in [UncaughtException::Unknown, raised("SystemError", note)] {
            let blame = found(&text, Exit::Code(1), &uncaught).unwrap();
            assert_eq!(blame.fault.what, "SystemError");
            assert_eq!(blame.root.unwrap().in_a_line(), died);
        }
    }
    // The clean-up of the program fails too.
    let barrier = "
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File \"t.py\", line 20, in <module>
    dist.barrier()
RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:80] TIMEOUT self_rank = none pair_rank = -1 peer_str = none
";
    let blame = found(&[&text, barrier].concat(), Exit::Code(1), &UncaughtException::Unknown).unwrap();
    assert_eq!(blame.in_a_line(), "ValueError: bad sample 9");
    assert_eq!((blame.root, blame.later.unwrap().what.as_str()), (None, "RuntimeError"));
}
