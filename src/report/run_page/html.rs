//! Text as HTML. No text of a rank or a user reaches the page by another way.

use crate::model::plain_text;

/// Text of one line: control characters are escaped, and what HTML gives a meaning.
pub(super) fn text(raw: &str) -> String {
    let plain = plain_text::escape(raw);
    let mut safe = String::with_capacity(plain.len());
    for character in plain.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// Text of several lines, for `<pre>`: ends of lines and tabs are kept.
pub(super) fn block(raw: &str) -> String {
    let line = |line: &str| line.split('\t').map(text).collect::<Vec<_>>().join("\t");
    raw.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The first bytes of a text, at most so many, and whether there are more.
pub(super) fn cut(raw: &str, most: usize) -> (&str, bool) {
    if raw.len() <= most {
        return (raw, false);
    }
    let end = (0..=most).rev().find(|at| raw.is_char_boundary(*at)).unwrap_or(0);
    (&raw[..end], true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_control_characters_are_escaped() {
        assert_eq!(
            text("</script><b a='\"'>&amp;\u{1b}[2J\u{202e}\0"),
            "&lt;/script&gt;&lt;b a=&#39;&quot;&#39;&gt;&amp;amp;\\u{1b}[2J\\u{202e}\\u{0}"
        );
        assert_eq!(block("a\tb\r\n<c>\rd\n"), "a\tb\n&lt;c&gt;\\rd");
        assert_eq!((cut("abü", 3), cut("abü", 4)), (("ab", true), ("abü", false)));
    }
}
