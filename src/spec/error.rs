//! The error about a request that rlaunch refuses: the option or variable, its value, why, and what to do.

use std::fmt;

/// A refused request. It prints as one line: `FIELD VALUE: WHY; HINT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// The option or variable, as the user wrote it: `--nproc_per_node`, `PADDLE_NNODES`.
    pub field: String,
    /// Its value; `None` if it is missing.
    pub value: Option<String>,
    /// The reason.
    pub why: String,
    /// What to do.
    pub hint: Option<String>,
}

impl SpecError {
    /// An error about `field` with this `value`. An empty value or hint means none.
    pub fn new(
        field: impl Into<String>,
        value: impl Into<String>,
        why: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        Self { field: field.into(), value: non_empty(value.into()), why: why.into(), hint: non_empty(hint.into()) }
    }
}

/// A value for a message: control characters are escaped, and long values are cut at 80 characters.
pub fn shown(value: &str) -> String {
    const MOST: usize = 80;
    let mut text: String = value.chars().take(MOST).flat_map(char::escape_debug).collect();
    if value.chars().count() > MOST {
        text.push_str("...");
    }
    text
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        if let Some(value) = &self.value {
            write!(f, " {}", shown(value))?;
        }
        write!(f, ": {}", self.why)?;
        self.hint.iter().try_for_each(|hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for SpecError {}
