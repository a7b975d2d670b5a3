//! What a check of this machine found.

/// How much a finding matters, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// It could not be looked at.
    Unknown,
    /// Some jobs fail, or are slow.
    Warning,
    /// Jobs do not start, or fail for certain.
    Error,
}

impl Level {
    /// Its name in the output.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One line of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// What was looked at: `open files`.
    pub check: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What was seen, and what it means.
    pub text: String,
    /// What to do.
    pub hint: Option<String>,
}

/// Nothing to do.
pub(super) fn ok(check: &'static str, text: impl Into<String>) -> Finding {
    Finding { check, level: Level::Ok, text: text.into(), hint: None }
}

/// It could not be looked at, and why.
pub(super) fn unknown(check: &'static str, text: impl Into<String>) -> Finding {
    Finding { level: Level::Unknown, ..ok(check, text) }
}

/// Some jobs fail or are slow.
pub(super) fn warning(check: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Finding {
    Finding { level: Level::Warning, hint: Some(hint.into()), ..ok(check, text) }
}

/// Jobs do not start, or fail for certain.
pub(super) fn error(check: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Finding {
    Finding { level: Level::Error, ..warning(check, text, hint) }
}
