//! Fields of JSON documents that may lack them or have them in another form.

use crate::model::{Exit, ProcessLabel, Role};
use serde_json::Value;

/// A JSON document; an error as text if it is not a JSON object.
pub fn document(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice::<serde_json::Map<String, Value>>(text).map(Value::Object)
}

/// A text that is not empty.
pub(super) fn text<'a>(of: &'a Value, name: &str) -> Option<&'a str> {
    of[name].as_str().filter(|text| !text.is_empty())
}

/// A number that is finite and not negative.
pub(super) fn number(of: &Value, name: &str) -> Option<f64> {
    of[name].as_f64().filter(|number| number.is_finite() && *number >= 0.0)
}

pub(super) fn count(of: &Value, name: &str) -> Option<usize> {
    of[name].as_u64().and_then(|count| usize::try_from(count).ok())
}

fn role(value: &Value) -> Option<Role> {
    serde_json::from_value(value.clone()).ok()
}

/// The label of the process that two fields name.
pub(super) fn label(of: &Value, role_name: &str, number_name: &str) -> Option<ProcessLabel> {
    Some(ProcessLabel { role: role(&of[role_name])?, number: count(of, number_name)? })
}

/// The labels that two lists of the same length name.
pub(super) fn labels(of: &Value, roles: &str, numbers: &str) -> Vec<ProcessLabel> {
    let (Some(roles), Some(numbers)) = (of[roles].as_array(), of[numbers].as_array()) else { return Vec::new() };
    let label = |(named, number): (&Value, &Value)| {
        Some(ProcessLabel { role: role(named)?, number: usize::try_from(number.as_u64()?).ok()? })
    };
    roles.iter().zip(numbers).filter_map(label).collect()
}

/// How a process ended, in the form of both schemas.
pub(super) fn exit(of: &Value) -> Option<Exit> {
    serde_json::from_value(of.clone()).ok()
}

/// The fields that are numbers, but for those that only name the process.
pub(super) fn numbers(of: &Value) -> Vec<(String, f64)> {
    const NAMES: [&str; 8] = ["version", "sequence", "monotonic", "rank", "local_rank", "pid", "attempt", "ended"];
    let fields = of.as_object().into_iter().flatten();
    let named = fields.filter(|(name, _)| !NAMES.contains(&name.as_str()));
    named.filter_map(|(name, _)| Some((name.clone(), number(of, name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn odd_fields_count_as_missing() {
        let odd = json!({ "a": -1, "b": "x", "c": null, "rank": 1, "role": "boss", "d": 2.5, "e": "" });
        assert_eq!(["a", "b", "c", "d"].map(|name| number(&odd, name)), [None, None, None, Some(2.5)]);
        assert_eq!((label(&odd, "role", "rank"), text(&odd, "e"), text(&odd["b"], "f")), (None, None, None));
        assert_eq!(numbers(&odd), [("d".to_owned(), 2.5)]);
        assert_eq!(exit(&json!({ "code": "1" })), None);
        assert_eq!(exit(&json!({ "signal": { "number": 9, "name": null } })), Some(Exit::Signal(9)));
        assert!(document(b"[1]").is_err() && document(b"{\"a\": 1").is_err() && document(b"{}").is_ok());
    }
}
