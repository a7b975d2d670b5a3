//! Invariants of lines, prefixes, tails and causes over any bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use rlaunch::model::{Exit, ProcessLabel, Role};
use rlaunch::report::cause::blame::{Blame, blame};
use rlaunch::report::cause::uncaught::UncaughtException;
use rlaunch::report::console::escape::{ColorPolicy, clean, plain};
use rlaunch::report::console::lines::{LONGEST, LineSplitter};
use rlaunch::report::console::prefix::{LinePrefix, write_line};
use rlaunch::report::console::tail::{TailLimits, tail};
use rlaunch::report::lost_peer;

/// Bytes in which what matters here is frequent.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<&'static [u8]> = vec![
        b"\n",
        b"\r",
        b"\r\n",
        b"a",
        b"50%",
        b"\t",
        b"\x08",
        b"\0",
        b"\xff",
        b"\x9b",
        b"\x80",
        b"\xc2",
        b"\xe2\x82",
        b"\x1b",
        b"\x1b[",
        b"\x1b[31m",
        b"\x1b[0m",
        b"\x1b[2J",
        b"\x1b[?25l",
        b"\x1b]0;title",
        b"\x07",
        b"\x1b\\",
        b"\x1bP",
        b"\x1b(B",
        b"[31m",
        b"\xc2\x9b",
        b"\xc2\x9d",
        b"\xc2\x9c",
        b"m",
        b";",
        b"Traceback (most recent call last):",
        b"  File \"a.py\", line 3, in f",
        b"ValueError: x",
        b"  | ",
        b"  + Exception Group Traceback (most recent call last):",
        b"Error Message Summary:",
        b"----",
        b"Fatal Python error: x",
        b"thread 'main' panicked at ",
        b"terminate called ",
        b"Assertion `",
        b" failed.",
        b"[rank3]: ",
        "é漢🦀".as_bytes(),
    ];
    vec(prop::sample::select(pieces), 0..60).prop_map(|pieces| pieces.concat())
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![3 => noise(), 1 => vec(any::<u8>(), 0..300)]
}

/// The lines of a stream that comes in these pieces, the unfinished last one too.
fn split<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let mut splitter = LineSplitter::new();
    let mut lines = Vec::new();
    for piece in pieces {
        splitter.feed(piece, |line| lines.push(line.to_vec()));
    }
    lines.extend(splitter.finish());
    lines
}

/// The same, by the rule itself: the text that stands last between two `\r` is the line.
fn split_plainly(bytes: &[u8]) -> Vec<Vec<u8>> {
    let last = |line: &[u8]| line.split(|b| *b == b'\r').rfind(|l| !l.is_empty()).unwrap_or_default().to_vec();
    let mut lines: Vec<Vec<u8>> = bytes.split(|b| *b == b'\n').map(last).collect();
    if lines.last().is_some_and(Vec::is_empty) {
        lines.pop();
    }
    lines
}

fn cleaned(line: &[u8], colours: ColorPolicy) -> Vec<u8> {
    let mut out = Vec::new();
    clean(&mut out, line, colours);
    out
}

/// Without SGR sequences, found in the simplest way.
fn without_colours(text: &[u8]) -> Vec<u8> {
    let mut rest = text;
    let mut out = Vec::new();
    while let Some(at) = rest.iter().position(|b| *b == 0x1b) {
        out.extend_from_slice(&rest[..at]);
        assert_eq!(rest.get(at + 1), Some(&b'['), "an ESC that begins no SGR sequence");
        let end = at + rest[at..].iter().position(|b| *b == b'm').unwrap();
        assert!(rest[at + 2..end].iter().all(|b| b.is_ascii_digit() || *b == b';' || *b == b':'));
        rest = &rest[end + 1..];
    }
    out.extend_from_slice(rest);
    out
}

proptest! {
    #[test]
    fn lines_are_those_of_the_rules_and_lose_no_byte(bytes in any_bytes()) {
        prop_assert_eq!(split([&bytes[..]]), split_plainly(&bytes));
        let calm: Vec<u8> = bytes.into_iter().filter(|b| *b != b'\r').collect();
        let mut joined = split([&calm[..]]).join(&b'\n');
        if calm.ends_with(b"\n") {
            joined.push(b'\n');
        }
        prop_assert_eq!(joined, calm);
    }

    #[test]
    fn the_size_of_reads_changes_nothing(bytes in any_bytes(), sizes in vec(1..9usize, 1..9)) {
        let mut rest = &bytes[..];
        let mut pieces = Vec::new();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, more) = rest.split_at(rest.len().min(*size));
            pieces.push(piece);
            rest = more;
        }
        prop_assert_eq!(split(pieces), split([&bytes[..]]));
    }

    #[test]
    fn lines_taken_early_are_neither_lost_nor_doubled(
        text in "[aé漢🦀\n]{0,40}",
        sizes in vec((1..5usize, any::<bool>()), 1..9),
    ) {
        let mut splitter = LineSplitter::new();
        let mut seen = Vec::new();
        let mut rest = text.as_bytes();
        for (size, take) in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, more) = rest.split_at(rest.len().min(*size));
            splitter.feed(piece, |line| seen.push(line.to_vec()));
            if *take {
                seen.extend(splitter.take_pending());
            }
            rest = more;
        }
        seen.extend(splitter.finish());
        let seen: Vec<String> = seen.into_iter().map(|l| String::from_utf8(l).expect("a character was cut")).collect();
        prop_assert_eq!(seen.concat(), text.replace('\n', ""));
        let empty = |lines: &[String]| lines.iter().filter(|l| l.is_empty()).count();
        let whole: Vec<String> = text.lines().map(str::to_owned).collect();
        prop_assert_eq!(empty(&seen), empty(&whole), "an early line end is no empty line");
    }

    #[test]
    fn a_terminal_receives_only_text_tabs_and_closed_colours(bytes in any_bytes()) {
        let kept = cleaned(&bytes, ColorPolicy::Keep);
        let dropped = cleaned(&bytes, ColorPolicy::Drop);
        prop_assert_eq!(&without_colours(&kept), &dropped);
        prop_assert!(dropped.iter().all(|b| *b == b'\t' || (*b >= b' ' && *b != 0x7f)), "{dropped:?}");
        for chunk in dropped.utf8_chunks() {
            prop_assert!(!chunk.valid().contains(|c: char| c.is_control() && c != '\t'));
            prop_assert!(chunk.invalid().iter().all(|b| !(0x80..0xa0).contains(b)));
        }
        let closed = kept.iter().rposition(|b| *b == 0x1b).is_none_or(|at| {
            let parameters = kept[at + 2..].split(|b| *b == b'm').next().unwrap();
            parameters.iter().all(|b| *b == b'0')
        });
        prop_assert!(closed, "{kept:?}");
        prop_assert_eq!(cleaned(&kept, ColorPolicy::Keep), kept);
    }

    #[test]
    fn plain_text_passes_untouched(text in "[ -~\té漢🦀]{0,40}") {
        prop_assert_eq!(plain(text.as_bytes()), text);
    }

    #[test]
    fn a_prefixed_line_is_one_line(bytes in any_bytes(), rank: usize, host in "[a-z\n\x1b]{0,9}") {
        let who = ProcessLabel { role: Role::Server, number: rank };
        for mode in [LinePrefix::None, LinePrefix::Rank, LinePrefix::Host, LinePrefix::RankAndHost] {
            let prefix = mode.text(who, &host);
            let mut out = Vec::new();
            write_line(&mut out, &prefix, &bytes, ColorPolicy::Keep);
            prop_assert!(out.starts_with(prefix.as_bytes()));
            prop_assert_eq!(out.iter().position(|b| *b == b'\n'), Some(out.len() - 1));
        }
    }

    #[test]
    fn a_tail_is_the_end_of_the_log_within_its_limits(bytes in any_bytes(), lines in 0..30usize, most in 0..500usize) {
        let found = tail(&bytes, TailLimits { lines, bytes: most });
        prop_assert!(found.lines.len() <= lines);
        prop_assert!(found.lines.iter().map(String::len).sum::<usize>() <= most);
        let all = tail(&bytes, TailLimits { lines: usize::MAX, bytes: usize::MAX });
        prop_assert!(!all.cut);
        prop_assert_eq!(found.cut, found.lines != all.lines);
        for (shown, whole) in found.lines.iter().rev().zip(all.lines.iter().rev()) {
            prop_assert!(whole.starts_with(shown.trim_end_matches('…')), "{shown} is not of {whole}");
        }
    }

    #[test]
    fn blame_takes_any_bytes(bytes in any_bytes(), code in 0..256i32, signal in 1..65i32) {
        for exit in [Exit::Code(code), Exit::Signal(signal), Exit::Lost] {
            let found = blame(&bytes, exit, &UncaughtException::Unknown);
            prop_assert!(found.is_none() || !exit.is_success());
            for fault in found.iter().flat_map(|b| std::iter::once(&b.fault).chain(&b.root)) {
                prop_assert!(!fault.to_string().contains(|c: char| c.is_control() && c != '\t' && c != '\n'));
            }
        }
        lost_peer(&bytes);
    }

    #[test]
    fn the_last_traceback_is_blamed_after_any_output(bytes in any_bytes(), text in "[a-z ]{1,9}") {
        let last = format!(
            "Traceback (most recent call last):\n  File \"last.py\", line 7, in f\n    g()\nLastError: {text}.\n"
        );
        let all = [&bytes[..], b"\n", last.as_bytes()].concat();
        let Blame { fault, .. } = blame(&all, Exit::Code(1), &UncaughtException::Unknown).expect("no blame");
        prop_assert_eq!((fault.what, fault.text), ("LastError".to_owned(), format!("{text}.")));
        prop_assert_eq!(fault.place.map(|p| (p.file, p.line)), Some(("last.py".to_owned(), 7)));
    }
}

#[test]
fn a_long_line_comes_in_pieces_that_cut_no_character() {
    for shift in 0..4 {
        let text = format!("{}{}\nend", "a".repeat(shift), "漢".repeat(LONGEST));
        let lines = split([text.as_bytes()]);
        assert_eq!(lines, split(text.as_bytes().chunks(1000)));
        assert!(lines.iter().all(|l| l.len() <= LONGEST && std::str::from_utf8(l).is_ok()));
        assert_eq!(lines.concat(), text.replace('\n', "").into_bytes());
        assert_eq!(lines.len(), 5);
    }
    let exact = "a".repeat(LONGEST);
    assert_eq!(split([exact.as_bytes(), b"\n", b"b\n"]).len(), 2, "no empty line after a full one");
}

#[test]
fn a_progress_bar_shows_its_newest_state() {
    let mut splitter = LineSplitter::new();
    let mut lines = Vec::new();
    splitter.feed(b"10%\r20%\r", |l| lines.push(l.to_vec()));
    assert_eq!(splitter.take_pending(), Some(b"20%".to_vec()));
    assert_eq!(splitter.take_pending(), None);
    splitter.feed(b"30%\r40%\r\nnext\r\n\n", |l| lines.push(l.to_vec()));
    assert_eq!(lines, [&b"40%"[..], b"next", b""]);
}

#[test]
fn sequences_go_and_colours_stay() {
    for (line, shown) in [
        (&b"\x1b[31mred"[..], &b"\x1b[31mred\x1b[0m"[..]),
        (b"\x1b[1mbold\x1b[0m end", b"\x1b[1mbold\x1b[0m end"),
        (b"a\x1b[2J\x1b[H\x1b[?25lb", b"ab"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", b"alink"),
        (b"\x1b]52;c;never ended", b"52;c;never ended"),
        (b"\x1b[>4;2ma\x1b[?4mb", b"ab"),
        (b"\x1bca\x1b(Bb\x1b7", b"ab"),
        (b"\xc2\x9b2Ja\xc2\x9d0;t\xc2\x9cb", b"ab"),
        (b"a\x08\x07\x00\x0b\x7fb\tc", b"ab\tc"),
        (b"\x9b2J\xffz", b"\xef\xbf\xbd2J\xffz"),
        (b"\x1b[1 ma\x1b]0;t\x18b", b"ab"),
        (b"\x1b\x1b[2Ja\x1b", b"a"),
    ] {
        assert_eq!(cleaned(line, ColorPolicy::Keep), shown, "{:?}", String::from_utf8_lossy(line));
    }
}

#[test]
fn a_tail_collapses_progress_and_says_when_it_is_cut() {
    let log: String = (0..30).map(|i| format!("epoch {i}: 0%\repoch {i}: done\n")).collect();
    let found = tail(log.as_bytes(), TailLimits::default());
    assert_eq!((found.lines.len(), found.cut), (20, true));
    assert_eq!((found.lines[0].as_str(), found.lines[19].as_str()), ("epoch 10: done", "epoch 29: done"));
    // Two bars of rich, then two of tqdm.
    let rich: String = (0..30).map(|i| format!("a {i}%\nb {i}%\r\x1b[2K\x1b[1A\x1b[2K")).collect();
    let tqdm: String = (0..30).map(|i| format!("\n\rinner {i}%\x1b[A\router {i}%")).collect();
    let found = tail(format!("before\n{rich}a\nb\n{tqdm}\n\nError: x\n").as_bytes(), TailLimits::default());
    assert_eq!((found.lines.join("|").as_str(), found.cut), ("before|a|b|outer 29%|inner 29%|Error: x", false));
    let found = tail(b"one\n\n\x1b[31mtwo\x1b[0m\n\n\n", TailLimits::default());
    assert_eq!((found.lines, found.cut), (vec!["one".into(), String::new(), "two".into()], false));
    let found = tail(b"123456789\n".repeat(10).as_slice(), TailLimits { lines: 20, bytes: 80 });
    assert_eq!((found.lines.len(), found.cut), (8, true));
    let found = tail("é".repeat(100).as_bytes(), TailLimits { lines: 20, bytes: 80 });
    assert_eq!((found.lines, found.cut), (vec!["ééé…".into()], true));
}
