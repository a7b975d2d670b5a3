//! The cause that is found in known texts. The Python texts are those of 3.11.

use nix::time::{ClockId, clock_gettime};
use rlaunch::model::Exit;
use rlaunch::report::cause::uncaught::UncaughtException;
use rlaunch::report::{Blame, FaultKind, LostPeer, lost_peer};

const CHAIN: &str = r#"epoch 1
Traceback (most recent call last):
  File "/w/chain.py", line 5, in main
    load({})
  File "/w/chain.py", line 2, in load
    return c["lr"]
           ~^^^^^^
KeyError: 'lr'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/w/chain.py", line 8, in <module>
    main()
  File "/w/chain.py", line 7, in main
    raise ValueError("bad config\nuse --lr") from e
ValueError: bad config
use --lr
"#;

const LIBRARY: &str = r#"Traceback (most recent call last):
  File "/w/during.py", line 4, in step
    json.loads("{")
  File "/usr/lib/python3.11/json/decoder.py", line 353, in raw_decode
    obj, end = self.scan_once(s, idx)
               ^^^^^^^^^^^^^^^^^^^^^^
json.decoder.JSONDecodeError: Expecting property name: line 1 column 2 (char 1)
/usr/lib/python3.11/multiprocessing/resource_tracker.py:224: UserWarning: leaked
"#;

const SYNTAX: &str = r#"  File "/w/syn.py", line 1
    def f(
         ^
SyntaxError: '(' was never closed
"#;

const GROUP: &str = r#"  + Exception Group Traceback (most recent call last):
  |   File "/w/group.py", line 7, in <module>
  |     raise ExceptionGroup("several", es)
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/w/group.py", line 2, in one
    |     raise ValueError("a\nb")
    | ValueError: a
b
    +---------------- 2 ----------------
    | ExceptionGroup: inner (2 sub-exceptions)
    +-+---------------- 1 ----------------
      | TypeError: t
      +---------------- 2 ----------------
      | KeyError: 3
      +------------------------------------
"#;

const THREAD: &str = r#"Exception in thread Thread-1 (<lambda>):
Traceback (most recent call last):
  File "/w/thr.py", line 2, in <lambda>
    1/0
ZeroDivisionError: division by zero
Traceback (most recent call last):
  File "/w/thr.py", line 6, in step
    assert False
           ^^^^^
AssertionError
Exception ignored in: <function A.__del__ at 0x7f076ba1d6c0>
Traceback (most recent call last):
  File "/w/thr.py", line 4, in __del__
RuntimeError: late
"#;

const SEGFAULT: &str = r#"Fatal Python error: Segmentation fault

Current thread 0x00007f775107db80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/w/seg.py", line 3 in step
  File "/w/seg.py", line 4 in <module>
"#;

const TORCH_OOM: &str = r#"[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 30, in <module>
[rank0]:     loss.backward()
[rank0]:   File "/opt/lib/python3.10/site-packages/torch/_tensor.py", line 522, in backward
[rank0]:     torch.autograd.backward(
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
[rank0]:[W1110 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: process group was not destroyed
"#;

const DEVICE_ASSERT: &str = r#"../aten/src/ATen/native/cuda/Indexing.cu:1255: select: block: [0,0,0], thread: [0,0,0] Assertion `i < size` failed.
../aten/src/ATen/native/cuda/Indexing.cu:1255: select: block: [0,0,0], thread: [1,0,0] Assertion `j < size` failed.
Traceback (most recent call last):
  File "/w/train.py", line 3, in <module>
    torch.cuda.synchronize()
RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be reported later.
"#;

const PADDLE_SIGNAL: &str = r#"

--------------------------------------
C++ Traceback (most recent call last):
--------------------------------------
No stack trace in paddle, may be caused by external reasons.

----------------------
Error Message Summary:
----------------------
FatalError: `Segmentation fault` is detected by the operating system.
  [TimeInfo: *** Aborted at 1628745164 (unix time) ***]
  [SignalInfo: *** SIGSEGV (@0x15e6) received by PID 5606 ***]
"#;

const PADDLE_OOM: &str = r#"Traceback (most recent call last):
  File "train.py", line 9, in <module>
    paddle.ones([1 << 40])
  File "/opt/lib/python3.10/site-packages/paddle/tensor/creation.py", line 60, in ones
    return fill()
SystemError: 

--------------------------------------
C++ Traceback (most recent call last):
--------------------------------------
0   paddle::pybind::eager_api_full()
1   phi::enforce_not_met()

----------------------
Error Message Summary:
----------------------
ResourceExhaustedError: 

Out of memory error on GPU 0. Cannot allocate 4.000000TB memory on GPU 0.
"#;

const TERMINATE: &str = "Traceback (most recent call last):
  File \"t.py\", line 1, in <module>
    f()
ValueError: first
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG 0] watchdog thread terminated
more of it
Exception raised from run at x.cpp:1
Fatal Python error: Aborted

Current thread 0x00 (most recent call first):
  File \"t.py\", line 1 in <module>
";

/// Of a rank whose Python noted nothing.
fn blame(stderr: &[u8], exit: Exit) -> Option<Blame> {
    rlaunch::report::blame(stderr, exit, &UncaughtException::Unknown)
}

fn found(text: &str, exit: Exit) -> Blame {
    blame(text.as_bytes(), exit).unwrap_or_else(|| panic!("nothing found in {text}"))
}

/// The kind, the error, its place, and the root cause.
fn explained(text: &str, exit: Exit) -> (FaultKind, String, String, String) {
    let Blame { kind, fault, root, .. } = found(text, exit);
    let place = fault.place.as_ref().map(ToString::to_string).unwrap_or_default();
    (kind, fault.to_string(), place, root.map(|r| r.to_string()).unwrap_or_default())
}

fn expect(text: &str, exit: Exit, kind: FaultKind, fault: &str, place: &str, root: &str) {
    let (k, f, p, r) = explained(text, exit);
    assert_eq!((k, f.as_str(), p.as_str(), r.as_str()), (kind, fault, place, root), "of {text}");
}

#[test]
fn python_exceptions() {
    let code = Exit::Code(1);
    expect(
        CHAIN,
        code,
        FaultKind::Exception,
        "ValueError: bad config\nuse --lr",
        "/w/chain.py:7 in main",
        "KeyError: 'lr'",
    );
    let json = "json.decoder.JSONDecodeError: Expecting property name: line 1 column 2 (char 1)";
    expect(LIBRARY, code, FaultKind::Exception, json, "/w/during.py:4 in step", "");
    expect(SYNTAX, code, FaultKind::Exception, "SyntaxError: '(' was never closed", "/w/syn.py:1", "");
    let group = "ExceptionGroup: several (2 sub-exceptions)\nValueError: a\nb\n\
                 ExceptionGroup: inner (2 sub-exceptions)\nTypeError: t\nKeyError: 3";
    expect(GROUP, code, FaultKind::Exception, group, "/w/group.py:7 in <module>", "");
    expect(THREAD, code, FaultKind::Exception, "AssertionError", "/w/thr.py:6 in step", "");
}

#[test]
fn a_tail_that_begins_inside_a_traceback_still_tells() {
    let cut = CHAIN.split_once("in <module>\n").unwrap().1;
    expect(cut, Exit::Code(1), FaultKind::Exception, "ValueError: bad config\nuse --lr", "/w/chain.py:7 in main", "");
}

#[test]
fn colours_of_a_traceback_do_not_hide_it() {
    let text = "Traceback (most recent call last):\n  File \x1b[35m\"t.py\"\x1b[0m, line \x1b[35m1\x1b[0m, in \
                \x1b[35mf\x1b[0m\n    \x1b[31mg\x1b[0m()\n\x1b[1;35mValueError\x1b[0m: \x1b[35mx\x1b[0m\n";
    expect(text, Exit::Code(1), FaultKind::Exception, "ValueError: x", "t.py:1 in f", "");
}

#[test]
fn memory_and_assertions_of_gpus() {
    let oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
    expect(TORCH_OOM, Exit::Code(1), FaultKind::DeviceMemory, oom, "/w/train.py:30 in <module>", "");
    let oom = "SystemError: ResourceExhaustedError:\n\nOut of memory error on GPU 0. \
               Cannot allocate 4.000000TB memory on GPU 0.";
    expect(PADDLE_OOM, Exit::Code(1), FaultKind::DeviceMemory, oom, "train.py:9 in <module>", "");
    let text = "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later.";
    let first = "assertion on the GPU: i < size";
    expect(DEVICE_ASSERT, Exit::Code(1), FaultKind::DeviceAssert, text, "/w/train.py:3 in <module>", first);
}

#[test]
fn text_that_is_no_python_exception() {
    let (segv, abort) = (Exit::Signal(11), Exit::Signal(6));
    let fatal = "Fatal Python error: Segmentation fault";
    expect(SEGFAULT, segv, FaultKind::Interpreter, fatal, "/w/seg.py:3 in step", "");
    let paddle = "FatalError: `Segmentation fault` is detected by the operating system.";
    expect(PADDLE_SIGNAL, segv, FaultKind::Paddle, paddle, "", "");
    let stopped = PADDLE_SIGNAL.replace("Segmentation fault", "Termination signal").replace("SIGSEGV", "SIGTERM");
    let answer = blame(stopped.as_bytes(), Exit::Signal(15));
    assert_eq!(answer, None, "Paddle's answer to the launcher's SIGTERM is no reason");
    let what = "c10::DistBackendError: [PG 0] watchdog thread terminated\nmore of it";
    expect(TERMINATE, abort, FaultKind::Terminate, what, "", "ValueError: first");
    let bare = "terminate called without an active exception\nAborted (core dumped)\n";
    expect(bare, abort, FaultKind::Terminate, "std::terminate: without an active exception", "", "");
    let torn = "Traceback (most recent call last):\n  File \"/w/t.py\", line 5, in <module>\n    train()\n\
                ValueError: lr is 0\nterminate called without an active exception\n";
    expect(torn, abort, FaultKind::Exception, "ValueError: lr is 0", "/w/t.py:5 in <module>", "");
    for text in ["malloc(): corrupted top size", "double free or corruption (!prev)", "free(): invalid pointer"] {
        expect(text, abort, FaultKind::Abort, &format!("glibc: {text}"), "", "");
    }
    let assertion = "a.out: src/a.c:12: main: Assertion `x > 0' failed.\n";
    expect(assertion, abort, FaultKind::Abort, "assertion failed: x > 0", "src/a.c:12", "");
    let panic = "thread 'main' (77) panicked at src/main.rs:2:5:\nindex out of bounds\nnote: run with\n";
    expect(panic, Exit::Code(101), FaultKind::Panic, "Rust panic: index out of bounds", "src/main.rs:2", "");
    let old = "thread 'main' panicked at 'boom, now', src/main.rs:2:5\n";
    expect(old, Exit::Code(101), FaultKind::Panic, "Rust panic: boom, now", "src/main.rs:2", "");
}

#[test]
fn messages_of_shells_and_command_lines() {
    for (text, code) in [
        ("bash: nosuch: command not found", 127),
        ("sh: 1: nosuch: not found", 127),
        ("run.sh: line 1: 17003 Killed                  python3 train.py", 137),
        ("Segmentation fault (core dumped)", 139),
        ("python3: can't open file '/w/no.py': [Errno 2] No such file or directory", 2),
    ] {
        expect(text, Exit::Code(code), FaultKind::Message, text, "", "");
    }
    let usage = "usage: t.py [-h]\nt.py: error: unrecognized arguments: --rl\n";
    expect(usage, Exit::Code(2), FaultKind::Message, "t.py: error: unrecognized arguments: --rl", "", "");
}

#[test]
fn the_root_is_the_first_of_a_chain() {
    let more = "\nDuring handling of the above exception, another exception occurred:\n\n\
                Traceback (most recent call last):\n  File \"x.py\", line 1, in g\n    g()\nOSError: gone\n";
    expect(
        &format!("{CHAIN}{more}"),
        Exit::Code(1),
        FaultKind::Exception,
        "OSError: gone",
        "x.py:1 in g",
        "KeyError: 'lr'",
    );
    expect(&more[1..], Exit::Code(1), FaultKind::Exception, "OSError: gone", "x.py:1 in g", "");
}

#[test]
fn a_traceback_that_breaks_off_gives_nothing_to_the_next() {
    let text = "Traceback (most recent call last):\n  File \"mine.py\", line 1, in g\n\
                Traceback (most recent call last):\n  File \"/x/site-packages/a.py\", line 2, in h\nE: x\n";
    expect(text, Exit::Code(1), FaultKind::Exception, "E: x", "/x/site-packages/a.py:2 in h", "");
}

/// Later output does not belong to the text of an exception, and a later crash is reported.
#[test]
fn a_text_ends_where_something_else_begins() {
    let long = format!("{CHAIN}{}", "and so on\n".repeat(50));
    assert_eq!(found(&long, Exit::Code(1)).fault.text.lines().count(), 20);
    let json = "json.decoder.JSONDecodeError: Expecting property name: line 1 column 2 (char 1)";
    let logged = LIBRARY.lines().take(7).collect::<Vec<_>>().join("\n");
    let paddle = "FatalError: `Segmentation fault` is detected by the operating system.";
    expect(&format!("{logged}\n{PADDLE_SIGNAL}"), Exit::Signal(11), FaultKind::Paddle, paddle, "", json);
    let text = format!("{GROUP}free(): invalid size\n  | a table |\n");
    let group = found(GROUP, Exit::Code(1)).fault.to_string();
    expect(&text, Exit::Signal(6), FaultKind::Abort, "glibc: free(): invalid size", "", &group);
    let killed = "run.sh: line 1: 17003 Killed   x";
    expect(&format!("{LIBRARY}step 7\n{killed}"), Exit::Code(137), FaultKind::Message, killed, "", "");
    let text = format!("free(): invalid size\n{PADDLE_SIGNAL}");
    expect(&text, Exit::Signal(6), FaultKind::Abort, "glibc: free(): invalid size", "", "");
}

#[test]
fn a_keyboard_interrupt_is_how_python_ends_by_sigint() {
    let text = "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\nKeyboardInterrupt\n";
    let text = format!("{text}{}", "saving\n".repeat(30));
    assert_eq!(found(&text, Exit::Signal(2)).fault.what, "KeyboardInterrupt");
    assert_eq!(blame(text.as_bytes(), Exit::Signal(9)), None);
}

/// A program logs exceptions that it handles: when a signal ended it they explain nothing.
#[test]
fn an_exception_in_passing_is_not_blamed_for_a_signal() {
    let text = format!("{LIBRARY}step 7\nstep 8\n");
    assert_eq!(blame(text.as_bytes(), Exit::Signal(9)), None);
    assert!(blame(text.as_bytes(), Exit::Code(1)).is_some());
    assert_eq!(blame(text.as_bytes(), Exit::Code(0)), None);
    assert_eq!(blame(b"epoch 1: loss 0.3\nNote: done\n", Exit::Code(1)), None);
}

/// Which of the two errors torch raises depends on what it notices first.
#[test]
fn a_worker_that_died_inside_a_rank_is_named() {
    let reset = "Traceback (most recent call last):
  File \"/w/train.py\", line 9, in <module>
    for batch in loader:
  File \"/usr/lib/python3.11/multiprocessing/connection.py\", line 395, in _recv
    chunk = read(handle, remaining)
ConnectionResetError: [Errno 104] Connection reset by peer
";
    let words = "ConnectionResetError: [Errno 104] Connection reset by peer";
    expect(reset, Exit::Code(1), FaultKind::LostHelper, words, "/w/train.py:9 in <module>", "");
    let died = "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. ";
    let head = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n\
        Traceback (most recent call last):\n  File \"/opt/lib/python3.11/site-packages/torch/utils/data/dataloader.py\", \
        line 1706, in __del__\n    self._shutdown_workers()\n";
    let beside = format!("{reset}{head}{died}\n");
    expect(&beside, Exit::Code(1), FaultKind::LostHelper, words, "/w/train.py:9 in <module>", died);
    let shared = reset.replace("multiprocessing/connection.py", "multiprocessing/reduction.py");
    expect(&shared, Exit::Code(1), FaultKind::LostHelper, words, "/w/train.py:9 in <module>", "");
    let own = reset.replace("multiprocessing/connection.py", "socket.py");
    assert_eq!(found(&own, Exit::Code(1)).kind, FaultKind::Exception, "a connection of the script's");
}

#[test]
fn each_library_s_message_of_a_lost_peer_is_recognized() {
    for (text, who) in [
        ("RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1", LostPeer::Gloo),
        ("RuntimeError: [/gloo/transport/tcp/pair.cc:1] Read error [::1]:2: Connection reset by peer", LostPeer::Gloo),
        ("RuntimeError: Application timeout caused pair closure", LostPeer::Gloo),
        ("  what():  [enforce fail at /x/gloo/transport/tcp/pair.cc:1195] ex_ == nullptr. ", LostPeer::Gloo),
        (
            "RuntimeError: [/x/gloo/transport/tcp/pair.cc:584] TIMEOUT self_rank = 0 pair_rank = 1 peer_str = [::1]:2",
            LostPeer::GlooTimeout,
        ),
        (
            "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:80] TIMEOUT self_rank = none pair_rank = -1",
            LostPeer::GlooTimeout,
        ),
        (
            "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation",
            LostPeer::GlooTimeout,
        ),
        (
            "[rank1]:[E] [PG ID 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)",
            LostPeer::NcclTimeout,
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
            LostPeer::TorchStoreTimeout,
        ),
        ("\x1b[1;35mRuntimeError\x1b[0m: \x1b[35mConnection closed by peer\x1b[0m", LostPeer::Gloo),
        ("ncclRemoteError: A call failed possibly due to a network error", LostPeer::Nccl),
        ("NCCL error: remote process exited or there was a network error", LostPeer::Nccl),
        ("RuntimeError: NCCL communicator was aborted on rank 0.", LostPeer::Nccl),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", LostPeer::TorchStore),
        ("[c10d] sendBytes failed on SocketImpl(fd=67, addr=a, remote=b): Broken pipe", LostPeer::TorchStore),
        ("Failed to recv, got 0 bytes. Connection was likely closed.", LostPeer::TorchStore),
        ("InvalidArgumentError: TCP connection reset by peer. Details: Success.", LostPeer::PaddleStore),
        ("ValueError: Connection reset by peer [errno 104]", LostPeer::PaddleStore),
    ] {
        assert_eq!(lost_peer(format!("x\n{text}\ny").as_bytes()), Some(who), "{text}");
    }
    for text in [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "tcp_store.cc:376] 1 worker ready, total 2, _timeout:900",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address",
        "",
    ] {
        assert_eq!(lost_peer(text.as_bytes()), None, "{text}");
    }
}

/// Texts on which a careless parser would look at the same lines again and again.
#[test]
fn hostile_texts_take_linear_time() {
    for piece in [
        "Traceback (most recent call last):\n",
        "  File \"a\", line 1\n",
        "  + Exception Group Traceback (most recent call last):\n",
        "Fatal Python error: x\nCurrent thread \n",
        "ValueError: x\n",
        "Error Message Summary:\n",
        "\x1b]\x1b[1",
        "\u{9d}\u{9b}1",
        "\r",
    ] {
        let small = steps(piece, 2_000);
        let large = steps(piece, 32_000);
        assert!(large < small * 100 + std::time::Duration::from_millis(500), "{piece:?}: {small:?}, then {large:?}");
    }
}

/// CPU time of this thread, which other processes do not change.
fn steps(piece: &str, times: usize) -> std::time::Duration {
    let text = piece.repeat(times);
    let now = || std::time::Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let begin = now();
    let _ = blame(text.as_bytes(), Exit::Code(1));
    now() - begin
}
