//! Output of ranks on its way to the console: the same lines however it is cut, escaped, and nothing left out but interrupts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::report::console::escape::{ColorPolicy, clean, plain};
use rlaunch::report::console::lines::LONGEST;
use rlaunch::report::{InterruptFilter, LineSplitter};
use rlaunch_fuzz::{cut, repeated};

fn split(bytes: &[u8], step: usize) -> Vec<Vec<u8>> {
    let (mut lines, mut splitter) = (Vec::new(), LineSplitter::new());
    for piece in bytes.chunks(step) {
        splitter.feed(piece, |line| lines.push(line.to_vec()));
    }
    lines.extend(splitter.finish());
    lines
}

fn filter(bytes: &[u8], step: usize) -> (Vec<u8>, usize) {
    let (mut passed, mut filter) = (Vec::new(), InterruptFilter::default());
    for piece in bytes.chunks(step) {
        filter.feed(piece, |text| passed.extend_from_slice(text));
    }
    let left_out = filter.finish(|text| passed.extend_from_slice(text));
    (passed, left_out)
}

fuzz_target!(|data: &[u8]| {
    let (step, bytes) = cut(data);
    let lines = split(bytes, bytes.len().max(1));
    assert_eq!(split(bytes, step), lines);
    for line in &lines {
        assert!(line.len() <= LONGEST && !line.contains(&b'\n'));
        let shown = plain(line);
        assert!(!shown.contains(|c: char| c.is_control() && c != '\t'), "{shown:?}");
        for colors in [ColorPolicy::Keep, ColorPolicy::Drop] {
            let (mut once, mut twice) = (Vec::new(), Vec::new());
            clean(&mut once, line, colors);
            clean(&mut twice, &once, colors);
            assert!(once.len() <= 3 * line.len() + 4);
            assert_eq!(once, twice);
        }
    }
    if let Some(long) = repeated(bytes) {
        split(&long, step).iter().for_each(|line| drop(plain(line)));
        filter(&long, step);
    }
    for step in [step, bytes.len().max(1)] {
        let (passed, left_out) = filter(bytes, step);
        assert!(passed.len() <= bytes.len());
        if left_out == 0 {
            assert_eq!(passed, bytes);
        }
    }
});
