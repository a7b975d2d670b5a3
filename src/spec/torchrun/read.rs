//! Values as Python reads them: numbers, flags, choices.

use super::options::OPTIONS;
use crate::spec::options::{Values, parse_bool};
use crate::spec::spawn::python_int;
use crate::spec::{SpecError, shown};

/// A whole number as Python's `int()` reads it: a sign, `_` between digits and blanks around are fine.
pub fn int(text: &str) -> Option<i64> {
    python_int(text).ok()
}

/// A whole number, if the option has a value.
pub fn whole(values: &Values, name: &str) -> Result<Option<i64>, SpecError> {
    let Some(text) = values.text(name) else { return Ok(None) };
    let why = || format!("invalid int value: '{}'", shown(text));
    int(text).map(Some).ok_or_else(|| values.error(name, &why(), "give a whole number"))
}

/// A number.
pub fn float(values: &Values, name: &str) -> Result<f64, SpecError> {
    let text = values.text(name).unwrap_or("");
    let why = || format!("invalid float value: '{}'", shown(text));
    text.trim().parse().map_err(|_| values.error(name, &why(), "give a number of seconds"))
}

/// Seconds, more than 0.
pub fn seconds(values: &Values, name: &str) -> Result<f64, SpecError> {
    let number = float(values, name)?;
    if !(number > 0.0 && number <= 1e9) {
        return Err(values.error(name, "is no time to wait", "give a number of seconds above 0"));
    }
    Ok(number)
}

/// A flag. Its variable may be a number, as in torchrun, or yes or no in the words that rlaunch knows.
pub fn flag(values: &Values, name: &str) -> Result<bool, SpecError> {
    let Some(text) = values.text(name) else { return Ok(false) };
    int(text).map(|number| number != 0).or_else(|| parse_bool(text.trim())).ok_or_else(|| {
        values.error(name, "is neither a number nor true or false", "give 1 or 0, true or false, yes or no")
    })
}

/// One of the table's choices, if the option has a value.
pub fn choice<'a>(values: &'a Values, name: &str) -> Result<Option<&'a str>, SpecError> {
    let Some(text) = values.text(name) else { return Ok(None) };
    let choices = OPTIONS.iter().find(|opt| opt.name == name).map_or(&[][..], |opt| opt.choices);
    if choices.contains(&text) {
        return Ok(Some(text));
    }
    let why = format!("invalid choice: '{}'", shown(text));
    Err(values.error(name, &why, &format!("give {}", one_of(choices))))
}

/// `a, b or c`.
pub fn one_of(choices: &[&str]) -> String {
    match choices {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Texts joined by commas; `,,` is a comma.
pub fn list(text: &str) -> Vec<String> {
    // No value holds a NUL byte: that is checked first.
    text.replace(",,", "\0").split(',').map(|item| item.replace('\0', ",")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_pythons() {
        for (text, number) in [("5", 5), (" +5\n", 5), ("-5", -5), ("1_000", 1000), ("007", 7)] {
            assert_eq!(int(text), Some(number), "{text}");
        }
        assert_eq!(int("99999999999999999999"), Some(i64::MAX));
        for text in ["", "+", "1__0", "_1", "1.0", "0x1", "- 1", "+-1"] {
            assert_eq!(int(text), None, "{text}");
        }
    }

    #[test]
    fn two_commas_are_one_within_a_text() {
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
    fn choices_are_listed_as_people_do() {
        assert_eq!(one_of(&["a", "b", "c"]), "a, b or c");
        assert_eq!((one_of(&["a"]), one_of(&[])), ("a".into(), String::new()));
    }
}
