//! A rank's line as it stands on a console that several ranks share.

use super::escape::{Colours, clean, plain};
use crate::model::Who;

/// What stands before each line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefix {
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

impl Prefix {
    /// The text before each line of `who` on `host`.
    pub fn text(self, who: Who, host: &str) -> String {
        match self {
            Prefix::None => String::new(),
            Prefix::Rank => format!("[{who}] "),
            Prefix::Host => format!("[{}] ", plain(host.as_bytes())),
            Prefix::RankAndHost => format!("[{who} {}] ", plain(host.as_bytes())),
        }
    }
}

/// Appends one whole line to `out`: the prefix, what the rank wrote, made safe as [`super::escape`] says,
/// and a line end. A line end inside `line` is taken away, so no two ranks share a line.
pub fn write_line(out: &mut Vec<u8>, prefix: &str, line: &[u8], colours: Colours) {
    out.extend_from_slice(prefix.as_bytes());
    clean(out, line, colours);
    out.push(b'\n');
}
