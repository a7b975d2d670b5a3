//! The GitHub Actions annotation of a failed step.
//! Form and escapes: GitHub's "Workflow commands for GitHub Actions", and `@actions/core`'s command.ts.

use crate::report::console::escape::plain;
use crate::report::failure_report::{FailureCause, FailureReport, headline};

/// `::error title=...::...` with a line end, for a launcher with GITHUB_ACTIONS set; with file and line of the error
/// where they are known.
pub fn github_annotation(report: &FailureReport) -> String {
    let mut properties = format!("title={}", property(&headline(report)));
    let mut message = Vec::new();
    if let FailureCause::Failed(culprit) = &report.outcome {
        if let Some(blame) = &culprit.blame {
            if let Some(place) = &blame.fault.place {
                let file = plain(place.file.as_bytes());
                properties.push_str(&format!(",file={},line={}", property(&file), place.line));
            }
            message.extend(blame.last_line().map(|line| format!("its last line: {}", plain(line.as_bytes()))));
            message.extend(blame.fault.to_string().lines().map(|l| plain(l.as_bytes())));
        }
        message.extend(culprit.explanation.iter().flat_map(|e| e.lines()).map(|l| plain(l.as_bytes())));
        let host = plain(culprit.host.as_bytes());
        message.push(format!("{} on {host}, pid {}", culprit.label, culprit.pid));
        message.extend(culprit.log.iter().map(|log| format!("log: {}", plain(log.as_bytes()))));
    }
    message.push(format!("exit status {}", report.status));
    format!("::error {properties}::{}\n", data(&message.join("\n")))
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
