//! The findings as text and as JSON.

use super::finding::{Finding, Level};
use crate::report::wording::wrapped;
use serde_json::{Value, json};

/// Columns before the text: the longest level and two blanks.
const INDENT: &str = "         ";

/// One paragraph for each finding, and a last line that counts them.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut lines = Vec::new();
    for Finding { check, level, text, hint } in findings {
        let mut own = wrapped(INDENT, &format!("{check}: {text}"));
        if let Some(first) = own.first_mut() {
            first.replace_range(..INDENT.len(), &format!("{:<9}", level.name()));
        }
        lines.extend(own);
        lines.extend(hint.iter().flat_map(|hint| wrapped(INDENT, &format!("-> {hint}"))));
    }
    lines.push(summary(findings));
    lines.join("\n") + "\n"
}

fn summary(findings: &[Finding]) -> String {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let some = |count: usize, name: &str| match count {
        0 => format!("no {name}s"),
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    };
    let unknown: Vec<&str> =
        findings.iter().filter(|finding| finding.level == Level::Unknown).map(|finding| finding.check).collect();
    let unknown = if unknown.is_empty() { String::new() } else { format!("; not looked at: {}", unknown.join(", ")) };
    format!("{}, {}{unknown}", some(count(Level::Error), "error"), some(count(Level::Warning), "warning"))
}

/// `{"level": the worst, "findings": [{"check", "level", "text", "hint"}]}`.
pub(super) fn json(findings: &[Finding]) -> Value {
    let one = |finding: &Finding| {
        json!({
            "check": finding.check,
            "level": finding.level.name(),
            "text": finding.text,
            "hint": finding.hint,
        })
    };
    json!({
        "rlaunch": env!("CARGO_PKG_VERSION"),
        "level": worst(findings).name(),
        "findings": findings.iter().map(one).collect::<Vec<_>>(),
    })
}

/// The level that matters most.
pub(super) fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}

#[cfg(test)]
mod tests {
    use super::super::finding::{error, ok, unknown, warning};
    use super::*;

    #[test]
    fn each_finding_has_its_level_text_and_hint() {
        let findings = [
            ok("kernel", "Linux 6.1"),
            unknown("clock", "unknown"),
            warning(
                "CPUs",
                "a text that is long enough to be wrapped at the width of the other messages, twice",
                "do this",
            ),
            error("log_dir", "full", "remove something"),
        ];
        assert_eq!(
            text(&findings),
            "ok       kernel: Linux 6.1\n\
             unknown  clock: unknown\n\
             warning  CPUs: a text that is long enough to be wrapped at the width of the\n           other messages, twice\n         -> do this\n\
             error    log_dir: full\n         -> remove something\n\
             1 error, 1 warning; not looked at: clock\n"
        );
        assert_eq!(json(&findings)["level"], "error");
        assert_eq!(json(&findings)["findings"][2]["hint"], "do this");
        assert_eq!((summary(&findings[..1]), worst(&[])), ("no errors, no warnings".into(), Level::Ok));
    }
}
