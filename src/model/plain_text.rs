//! Text from other machines in a form that may be shown: characters that move a cursor, begin a line or reorder text are escaped.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Escapes control characters, ends of lines, and characters that change the direction of text (Unicode's bidirectional algorithm,
/// UAX 9).
pub fn escape(text: &str) -> String {
    let is_directional =
        |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_odd = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') || is_directional(c);
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if is_odd(c) { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    plain
}

/// The same for every text in a JSON document, and for the names of its fields.
pub fn escape_document(document: Value) -> Value {
    match document {
        Value::String(text) => Value::String(escape(&text)),
        Value::Array(items) => items.into_iter().map(escape_document).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (escape(&name), escape_document(value))).collect()
        }
        other => other,
    }
}

/// Reads a document whose texts other nodes have written.
pub fn read_document<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_value(escape_document(serde_json::from_str(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_that_a_terminal_or_a_log_reader_obeys_is_left() {
        let hostile = "\u{1b}[2J\r\n::error::x\u{7}\u{9b}31m\u{202e}\u{2066}";
        assert_eq!(escape(hostile), "\\u{1b}[2J\\r\\n::error::x\\u{7}\\u{9b}31m\\u{202e}\\u{2066}");
        assert_eq!(escape("zwölf 'Knoten' \\n"), "zwölf 'Knoten' \\n");
    }

    #[test]
    fn all_texts_of_a_document_are_escaped() {
        let hostile = json!({ "a\n": ["\u{1b}", 1, null, { "b": "\r" }] });
        assert_eq!(escape_document(hostile), json!({ "a\\n": ["\\u{1b}", 1, null, { "b": "\\r" }] }));
    }
}
