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

/// A value for a message: control characters are escaped, quotes are not, and long values are cut at 80 characters.
pub fn shown(value: &str) -> String {
    const MOST: usize = 80;
    let mut text = String::new();
    for char in value.chars().take(MOST) {
        match char {
            '\'' | '"' => text.push(char),
            other => text.extend(other.escape_debug()),
        }
    }
    if value.chars().count() > MOST {
        text.push_str("...");
    }
    text
}

/// Returns true for a value in quotes. A shell takes quotes away unless they are quoted themselves.
fn is_in_quotes(value: &str) -> bool {
    value.len() > 1 && ['\'', '"'].iter().any(|quote| value.starts_with(*quote) && value.ends_with(*quote))
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        match self.value.as_deref() {
            None => {}
            Some("") => f.write_str(" ''")?,
            Some(value) => write!(f, " {}", shown(value))?,
        }
        write!(f, ": {}", self.why)?;
        if self.value.as_deref().is_some_and(is_in_quotes) {
            f.write_str("; the quotes are part of the value, so leave out one pair")?;
        }
        self.hint.iter().try_for_each(|hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for SpecError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shown_as_it_was_given() {
        let text = |value: Option<&str>| {
            SpecError { value: value.map(str::to_owned), ..SpecError::new("--x", "", "why", "hint") }.to_string()
        };
        assert_eq!(text(None), "--x: why; hint");
        assert_eq!(text(Some("")), "--x '': why; hint");
        assert_eq!(text(Some("it's \"a\"\n")), "--x it's \"a\"\\n: why; hint");
        for quoted in ["'0,1'", "\"0,1\""] {
            assert!(text(Some(quoted)).starts_with(&format!("--x {quoted}: why; the quotes are part")), "{quoted}");
        }
    }
}
