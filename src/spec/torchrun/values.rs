//! Reads values by Python's rules: numbers, flags, choices, lists.

use crate::spec::error::{SpecError, shown};
use crate::spec::options::{OptValues, parse_bool};
use crate::spec::spawn::options::python_int;
use crate::spec::torchrun::options::OPTIONS;

/// Python's `int()`: allows a sign, `_` between digits and surrounding blanks.
pub fn int(text: &str) -> Option<i64> {
    python_int(text).ok()
}

/// Reads a whole number, if the option has a value.
pub fn whole(values: &OptValues, name: &str) -> Result<Option<i64>, SpecError> {
    let Some(text) = values.text(name) else { return Ok(None) };
    let why = || format!("invalid int value: '{}'", shown(text));
    int(text).map(Some).ok_or_else(|| values.error(name, &why(), "give a whole number"))
}

/// Reads a number.
pub fn float(values: &OptValues, name: &str) -> Result<f64, SpecError> {
    let text = values.text(name).unwrap_or("");
    let why = || format!("invalid float value: '{}'", shown(text));
    text.trim().parse().map_err(|_| values.error(name, &why(), "give a number of seconds"))
}

/// Reads seconds, more than 0.
pub fn seconds(values: &OptValues, name: &str) -> Result<f64, SpecError> {
    let number = float(values, name)?;
    if !(number > 0.0 && number <= 1e9) {
        return Err(values.error(name, "is not a positive number of seconds", "give a number of seconds above 0"));
    }
    Ok(number)
}

/// Reads a flag. Its variable may be a number, as in torchrun, or `true`, `no` and the like.
pub fn flag(values: &OptValues, name: &str) -> Result<bool, SpecError> {
    let Some(text) = values.text(name) else { return Ok(false) };
    int(text).map(|number| number != 0).or_else(|| parse_bool(text.trim())).ok_or_else(|| {
        values.error(name, "is neither a number nor true or false", "give 1 or 0, true or false, yes or no")
    })
}

/// Reads one of the choices of the table, if the option has a value.
pub fn choice<'a>(values: &'a OptValues, name: &str) -> Result<Option<&'a str>, SpecError> {
    let Some(text) = values.text(name) else { return Ok(None) };
    let choices = OPTIONS.iter().find(|opt| opt.name == name).map_or(&[][..], |opt| opt.choices);
    if choices.contains(&text) {
        return Ok(Some(text));
    }
    let why = format!("invalid choice: '{}'", shown(text));
    Err(values.error(name, &why, &format!("give {}", one_of(choices))))
}

/// Formats choices: `a, b or c`.
pub fn one_of(choices: &[&str]) -> String {
    match choices {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Splits comma-separated texts; `,,` is a comma.
pub fn list(text: &str) -> Vec<String> {
    // Values with NUL bytes were refused before.
    text.replace(",,", "\0").split(',').map(|item| item.replace('\0', ",")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_like_python() {
        for (text, number) in [("5", 5), (" +5\n", 5), ("-5", -5), ("1_000", 1000), ("007", 7)] {
            assert_eq!(int(text), Some(number), "{text}");
        }
        assert_eq!(int("99999999999999999999"), Some(i64::MAX));
        for text in ["", "+", "1__0", "_1", "1.0", "0x1", "- 1", "+-1"] {
            assert_eq!(int(text), None, "{text}");
        }
    }

    #[test]
    fn two_commas_are_a_literal_comma() {
        for (text, items) in [
            ("", vec![""]),
            ("a", vec!["a"]),
            ("a,b", vec!["a", "b"]),
            ("a,,b,c", vec!["a,b", "c"]),
            ("a,,,b", vec!["a,", "b"]),
            (",", vec!["", ""]),
        ] {
            assert_eq!(list(text), items, "{text}");
        }
    }

    #[test]
    fn choices_are_listed_with_or() {
        assert_eq!(one_of(&["a", "b", "c"]), "a, b or c");
        assert_eq!((one_of(&["a"]), one_of(&[])), ("a".into(), String::new()));
    }
}
