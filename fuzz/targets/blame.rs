//! The output of a failed rank, what its Python noted, and torchelastic's error file: an explanation of bounded length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::model::Exit;
use rlaunch::report::cause::uncaught::{self, ProcessIdentity, UncaughtException};
use rlaunch::report::cause::{error_file, verdict};
use rlaunch::report::console::tail::TailLimits;
use rlaunch::report::{blame, lost_peer, tail};
use rlaunch_fuzz::repeated;

fuzz_target!(|data: &[u8]| {
    let (note, stderr) = data.split_at(data.iter().position(|byte| *byte == 0).unwrap_or(0));
    let (note, _) = uncaught::parse(note, ProcessIdentity { pid: 7, started: 99 });
    for uncaught in [note, UncaughtException::Unknown] {
        for exit in [Exit::Code(1), Exit::Signal(6)] {
            if let Some(blame) = blame(stderr, exit, &uncaught) {
                assert!(blame.in_a_line().len() <= 4096 + 8 * data.len());
            }
            let _ = verdict::read_account(stderr, exit, false, &uncaught);
        }
    }
    let _ = lost_peer(stderr);
    if let Some(long) = repeated(stderr) {
        let _ = (blame(&long, Exit::Code(1), &UncaughtException::Unknown), tail(&long, TailLimits::default()));
    }
    let limits = TailLimits::default();
    let shown = tail(stderr, limits);
    assert!(shown.lines.len() <= limits.lines);
    assert!(shown.lines.iter().map(String::len).sum::<usize>() <= limits.bytes);
    if let Some(error) = error_file::parse(data) {
        let passed = error_file::passed_on(error.data, 1);
        assert!(error_file::parse(passed.to_string().as_bytes()).is_some());
    }
});
