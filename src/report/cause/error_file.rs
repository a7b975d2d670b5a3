//! torchelastic's error file, in which `@record` writes why a worker failed.

use serde_json::{Value, json};

/// The content of an error file.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorFile {
    /// The whole text.
    pub data: Value,
    /// Its traceback, or its message if it has none.
    pub text: String,
    /// The time, in seconds since 1970.
    pub timestamp: Option<i64>,
}

/// Reads the long form (a message with `extraInfo`) or the short one (a text and a `timestamp`). `None` for any other.
pub fn parse(bytes: &[u8]) -> Option<ErrorFile> {
    let data: Value = serde_json::from_slice(bytes).ok()?;
    let seconds = |value: &Value| value.as_i64().or_else(|| value.as_str()?.trim().parse().ok());
    let (text, timestamp) = match data.get("message")? {
        Value::String(text) => (text.clone(), data.get("timestamp").and_then(seconds)),
        Value::Object(message) => {
            let extra = message.get("extraInfo");
            let text = extra.and_then(|extra| extra.get("py_callstack")).or_else(|| message.get("message"));
            let timestamp = extra.and_then(|extra| extra.get("timestamp")).and_then(seconds);
            (text.and_then(Value::as_str).unwrap_or("<N/A>").to_owned(), timestamp)
        }
        _ => return None,
    };
    Some(ErrorFile { data, text, timestamp })
}

/// The launcher's own error file: that of the worker that failed first, with its exit code.
pub fn passed_on(mut data: Value, code: i32) -> Value {
    if let (Some(message), true) = (data.get_mut("message").and_then(Value::as_object_mut), code != 0) {
        message.insert("errorCode".into(), json!(code));
    }
    data
}

/// The same for a worker without one: `message` is the cause in a line, `text` its last lines.
pub fn made(message: &str, text: &str, timestamp: i64, code: i32) -> Value {
    let extra = json!({"py_callstack": text, "timestamp": timestamp.to_string()});
    passed_on(json!({"message": {"message": message, "extraInfo": extra}}), code)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    #[test]
    fn both_forms_are_read_and_nothing_else() {
        let long = br#"{"message": {"message": "E: x", "extraInfo": {"py_callstack": "Trace", "timestamp": "12"}}}"#;
        let read = parse(long).unwrap();
        assert_eq!((read.text.as_str(), read.timestamp), ("Trace", Some(12)));
        assert_eq!(passed_on(read.data, 3)["message"]["errorCode"], 3);
        let short = parse(br#"{"message": "x", "timestamp": 7}"#).unwrap();
        assert_eq!((short.text.as_str(), short.timestamp), ("x", Some(7)));
        assert_eq!(passed_on(short.data.clone(), 3), short.data);
        for bad in [&b""[..], b"{", b"[]", b"{}", br#"{"message": 3}"#, b"\xff"] {
            assert_eq!(parse(bad), None);
        }
    }
}
