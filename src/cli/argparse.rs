//! Words of a command line as Python's argparse reads them, for a parser with options, one positional and the rest.

use crate::spec::options::{Kind, Opt};
use crate::spec::shown;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The options of a command line.
pub struct Parser {
    /// All of them, with `-` within their names; each may be spelt with `_` too.
    pub options: Vec<&'static Opt>,
    /// Whether an option is of those that a name cut short stands for first.
    pub comes_first: fn(&str) -> bool,
    /// Whether it may stand alone, and has a value only behind `=`.
    pub has_optional_value: fn(&Opt) -> bool,
    /// Whether reading ends with it.
    pub ends: fn(&str) -> bool,
}

/// What a command line says.
#[derive(Debug, PartialEq, Eq)]
pub struct Words {
    /// Values by option, the last of each; `true` for flags.
    pub options: BTreeMap<&'static str, String>,
    /// The positional and what comes after it.
    pub rest: Vec<OsString>,
    /// The option that reading ended with.
    pub end: Option<&'static str>,
}

/// A word before the positional.
enum Word<'a> {
    Positional,
    Separator,
    Option(&'static Opt, Option<&'a OsStr>),
    Unknown,
}

impl Parser {
    /// Reads a command line, without its program name. An error is one line.
    pub fn read(&self, args: &[OsString]) -> Result<Words, String> {
        let mut words = Words { options: BTreeMap::new(), rest: Vec::new(), end: None };
        let mut at = 0;
        while let Some(arg) = args.get(at) {
            at += 1;
            let (mut opt, mut value) = match self.word(arg)? {
                Word::Separator => {
                    words.rest = args[at..].to_vec();
                    break;
                }
                Word::Positional => {
                    // Of the separators one is swallowed, before the positional or behind it.
                    let behind = at + usize::from(args.get(at).is_some_and(|word| word == "--"));
                    words.rest = std::iter::once(arg).chain(&args[behind..]).cloned().collect();
                    break;
                }
                Word::Unknown => return Err(self.unknown(arg)),
                Word::Option(opt, value) => (opt, value),
            };
            let is_short = arg.as_bytes().get(1) != Some(&b'-');
            // Flags of one letter may stand in one word, and an option with its value at the end.
            while let (Kind::Flag, Some(letters)) = (opt.kind, value) {
                let next = letters.as_bytes().split_first().filter(|_| is_short);
                let named = |letter: u8| self.options.iter().find(|opt| opt.short == Some(letter as char));
                let Some((next, letters)) = next.and_then(|(letter, rest)| Some((named(*letter)?, rest))) else {
                    return Err(format!(
                        "option {} takes no value: {}",
                        spelt(opt, arg),
                        shown(&arg.to_string_lossy())
                    ));
                };
                words.options.insert(opt.name, "true".into());
                opt = next;
                let letters = letters.strip_prefix(b"=").unwrap_or(letters);
                value = (!letters.is_empty()).then(|| OsStr::from_bytes(letters));
            }
            let text = match value {
                Some(value) => value,
                None if opt.kind == Kind::Flag => OsStr::new("true"),
                None if (self.has_optional_value)(opt) => OsStr::new(""),
                None => {
                    let name = spelt(opt, arg);
                    let next = args.get(at).map(|word| Ok::<_, String>((self.word(word)?, word))).transpose()?;
                    let Some((Word::Positional, word)) = next else {
                        return Err(format!("option {name} needs a value (expected one argument); write {name}=value"));
                    };
                    at += 1;
                    word
                }
            };
            let text = text.to_str().ok_or_else(|| {
                format!("option {}: its value {} is not UTF-8", spelt(opt, arg), shown(&text.to_string_lossy()))
            })?;
            words.options.insert(opt.name, text.to_owned());
            if (self.ends)(opt.name) {
                words.end = Some(opt.name);
                break;
            }
        }
        Ok(words)
    }

    /// What a word is, as `ArgumentParser._parse_optional` has it.
    fn word<'a>(&self, arg: &'a OsStr) -> Result<Word<'a>, String> {
        let bytes = arg.as_bytes();
        if bytes == b"--" {
            return Ok(Word::Separator);
        }
        if bytes.len() < 2 || bytes[0] != b'-' {
            return Ok(Word::Positional);
        }
        let cut = bytes.iter().position(|b| *b == b'=');
        let (name, value) = match cut {
            Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]))),
            None => (bytes, None),
        };
        if let [b'-', letter] = name
            && let Some(opt) = self.options.iter().find(|opt| opt.short == Some(*letter as char))
        {
            return Ok(Word::Option(opt, value));
        }
        if let Some(long) = name.strip_prefix(b"--") {
            if let Some(opt) = self.named(&String::from_utf8_lossy(long))? {
                return Ok(Word::Option(opt, value));
            }
        } else if let Some(opt) = self.options.iter().find(|opt| opt.short == Some(bytes[1] as char)) {
            return Ok(Word::Option(opt, Some(OsStr::from_bytes(&bytes[2..]))));
        }
        if is_negative_number(&bytes[1..]) || bytes.contains(&b' ') {
            return Ok(Word::Positional);
        }
        Ok(Word::Unknown)
    }

    /// The option with this name, or the one that it is the beginning of.
    fn named(&self, name: &str) -> Result<Option<&'static Opt>, String> {
        let spellings = |opt: &Opt| [opt.name.to_owned(), opt.name.replace('-', "_")];
        if let Some(opt) = self.options.iter().find(|opt| spellings(opt).iter().any(|own| own == name)) {
            return Ok(Some(opt));
        }
        let begins = |opt: &&'static Opt| spellings(opt).iter().any(|own| own.starts_with(name));
        let (first, later): (Vec<&'static Opt>, Vec<&'static Opt>) =
            self.options.iter().copied().filter(begins).partition(|opt| (self.comes_first)(opt.name));
        let meant = if first.is_empty() { later } else { first };
        match meant[..] {
            [] => Ok(None),
            [opt] => Ok(Some(opt)),
            ref several => {
                let names: Vec<String> = several.iter().map(|opt| format!("--{}", opt.name)).collect();
                Err(format!("ambiguous option: --{} could match {}", shown(name), names.join(", ")))
            }
        }
    }

    fn unknown(&self, arg: &OsStr) -> String {
        let text = arg.to_string_lossy();
        let name = text.split('=').next().unwrap_or("");
        let near = super::command::nearest(name, self.options.iter().map(|opt| opt.name));
        let hint = match (name, near) {
            ("--use-env" | "--use_env", _) => "it is always so; leave it out".to_owned(),
            (_, Some(near)) => format!("did you mean --{near}? Options of the script go after it"),
            (_, None) => "see --help; options of the script go after it".to_owned(),
        };
        format!("unknown option {}; {hint}", shown(name))
    }
}

/// An option as in this word: by its letter if it is one of letters.
fn spelt(opt: &Opt, arg: &OsStr) -> String {
    match opt.short.filter(|_| !arg.as_bytes().starts_with(b"--")) {
        Some(letter) => format!("-{letter}"),
        None => format!("--{}", opt.name),
    }
}

/// Digits, with a point among them or before them.
fn is_negative_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    match text.iter().position(|b| *b == b'.') {
        None => digits(text) && !text.is_empty(),
        Some(at) => digits(&text[..at]) && digits(&text[at + 1..]) && at + 1 < text.len(),
    }
}
