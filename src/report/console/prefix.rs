//! The prefix of a rank's line on a console that several ranks share.

use crate::model::ProcessLabel;
use crate::report::console::escape::{ColorPolicy, clean, plain};

/// The text before each line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinePrefix {
    /// Nothing.
    #[default]
    None,
    /// `[rank 3] `, `[server 0] `
    Rank,
    /// `[host-a] `
    Host,
    /// `[rank 3 host-a] `
    RankAndHost,
}

impl LinePrefix {
    /// The text before each line of `label` on `host`.
    pub fn text(self, label: ProcessLabel, host: &str) -> String {
        match self {
            LinePrefix::None => String::new(),
            LinePrefix::Rank => format!("[{label}] "),
            LinePrefix::Host => format!("[{}] ", plain(host.as_bytes())),
            LinePrefix::RankAndHost => format!("[{label} {}] ", plain(host.as_bytes())),
        }
    }
}

/// Appends one whole line to `out`: the prefix, the rank's text, escaped by [`crate::report::console::escape`], and a line
/// end. A line end inside `line` is removed, so no two ranks share a line.
pub fn write_line(out: &mut Vec<u8>, prefix: &str, line: &[u8], colors: ColorPolicy) {
    out.extend_from_slice(prefix.as_bytes());
    clean(out, line, colors);
    out.push(b'\n');
}
