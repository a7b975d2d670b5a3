//! What is masked in records: values of names that sound like a secret, and addresses that carry a login.

const MASK: &str = "***";

/// The value of a variable, as it may be recorded.
pub fn value(name: &str, value: &str) -> String {
    if sounds_secret(name) || has_login(value) { MASK.into() } else { value.to_owned() }
}

/// A command line, as it may be recorded: `--api_key=...` and `--api_key ...` without the value.
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
        before = option && !word.contains('=') && sounds_secret(&word);
    }
    masked
}

fn sounds_secret(name: &str) -> bool {
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
    fn what_sounds_like_a_secret_is_masked() {
        for (name, text) in [("WANDB_API_KEY", "x"), ("hf_token", "x"), ("http_proxy_original", "http://me:pw@host:1")]
        {
            assert_eq!(value(name, text), MASK);
        }
        assert_eq!(value("PADDLE_MASTER", "127.0.0.1:1"), "127.0.0.1:1");
        assert_eq!(value("http_proxy_original", "http://host:1"), "http://host:1");
    }

    #[test]
    fn and_in_command_lines() {
        let line = "train.py --lr=3 --hf-token abc --api_key=d=e --keyboard --data s3://me:pw@host/x mail@host --token";
        let wanted = "train.py --lr=3 --hf-token *** --api_key=*** --keyboard --data *** mail@host --token";
        assert_eq!(words(line.split(' ').map(Cow::from)).join(" "), wanted);
    }
}
