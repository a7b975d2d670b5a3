//! Masking of secrets in records: values of names that look secret, and URLs with a login.

const MASK: &str = "***";

/// The value of a variable for a record.
pub fn value(name: &str, value: &str) -> String {
    if looks_secret(name) || has_login(value) { MASK.into() } else { value.to_owned() }
}

/// A command line for a record: `--api_key=...` and `--api_key ...` without the value.
pub fn words<'a>(words: impl IntoIterator<Item = std::borrow::Cow<'a, str>>) -> Vec<String> {
    let mut before = false;
    let mut masked = Vec::new();
    for word in words {
        let option = word.starts_with('-');
        masked.push(match word.split_once('=') {
            Some((name, text)) => format!("{name}={}", value(name, text)),
            None if (before && !option) || has_login(&word) => MASK.into(),
            None => word.clone().into_owned(),
        });
        before = option && !word.contains('=') && looks_secret(&word);
    }
    masked
}

fn looks_secret(name: &str) -> bool {
    const SECRET: [&str; 7] = ["SECRET", "TOKEN", "PASSW", "CREDENTIAL", "KEY", "AUTH", "COOKIE"];
    let upper = name.to_ascii_uppercase();
    SECRET.iter().any(|word| upper.contains(word))
}

fn has_login(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    #[test]
    fn values_of_secret_names_are_masked() {
        for (name, text) in [("WANDB_API_KEY", "x"), ("hf_token", "x"), ("http_proxy_original", "http://me:pw@host:1")]
        {
            assert_eq!(value(name, text), MASK);
        }
        assert_eq!(value("PADDLE_MASTER", "127.0.0.1:1"), "127.0.0.1:1");
        assert_eq!(value("http_proxy_original", "http://host:1"), "http://host:1");
    }

    #[test]
    fn secrets_in_command_lines_are_masked() {
        let line = "train.py --lr=3 --hf-token abc --api_key=d=e --keyboard --data s3://me:pw@host/x mail@host --token";
        let wanted = "train.py --lr=3 --hf-token *** --api_key=*** --keyboard --data *** mail@host --token";
        assert_eq!(words(line.split(' ').map(Cow::from)).join(" "), wanted);
    }
}
