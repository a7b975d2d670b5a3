//! Parses a command line as Python's argparse does, for a parser with options, one positional and the rest.

use crate::cli::common::command_line::{self, CommandLineError};
use crate::spec::options::{Opt, OptKind};
use crate::spec::shown;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// A parser for these options.
pub struct ArgparseParser {
    /// All options, with `-` within their names; each may be spelt with `_` too.
    pub options: Vec<&'static Opt>,
    /// Whether a shortened name prefers this option to others.
    pub is_preferred: fn(&str) -> bool,
    /// Whether an option may stand without a value, and takes one only behind `=`.
    pub has_optional_value: fn(&Opt) -> bool,
    /// Whether parsing stops at this option (`--help`).
    pub stops_at: fn(&str) -> bool,
    /// What to give instead of an option that this parser does not have, if that is known better than by its likeness
    /// to this parser's option.
    pub instead: fn(&str, Option<&str>) -> Option<String>,
}

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub struct ParsedArgs {
    /// Values by option name, the last of each; `true` for flags.
    pub options: BTreeMap<&'static str, String>,
    /// The positional and everything after it, or what follows `stopped_at`.
    pub rest: Vec<OsString>,
    /// The option that parsing stopped at.
    pub stopped_at: Option<&'static str>,
}

/// An argument before the positional.
enum ArgToken<'a> {
    Positional,
    Separator,
    Option(&'static Opt, Option<&'a OsStr>),
    Unknown,
}

impl ArgparseParser {
    /// Parses a command line, without its program name.
    pub fn parse(&self, args: &[OsString]) -> Result<ParsedArgs, CommandLineError> {
        let mut parsed = ParsedArgs { options: BTreeMap::new(), rest: Vec::new(), stopped_at: None };
        let mut at = 0;
        while let Some(arg) = args.get(at) {
            at += 1;
            let (mut opt, mut value) = match self.token(arg)? {
                ArgToken::Separator => {
                    parsed.rest = args[at..].to_vec();
                    break;
                }
                ArgToken::Positional => {
                    // argparse drops one `--`, before the positional or after it.
                    let behind = at + usize::from(args.get(at).is_some_and(|word| word == "--"));
                    parsed.rest = std::iter::once(arg).chain(&args[behind..]).cloned().collect();
                    break;
                }
                ArgToken::Unknown => return Err(self.unknown_option(arg)),
                ArgToken::Option(opt, value) => (opt, value),
            };
            let is_short = arg.as_bytes().get(1) != Some(&b'-');
            // One-letter flags may stand in one argument, with an option and its value at the end.
            while let (OptKind::Flag, Some(letters)) = (opt.kind, value) {
                let next = letters.as_bytes().split_first().filter(|_| is_short);
                let named = |letter: u8| self.options.iter().find(|opt| opt.short == Some(letter as char));
                let Some((next, letters)) = next.and_then(|(letter, rest)| Some((named(*letter)?, rest))) else {
                    return Err(CommandLineError::UnexpectedValue {
                        option: spelt(opt, arg),
                        value: Some(shown(&arg.to_string_lossy())),
                    });
                };
                parsed.options.insert(opt.name, "true".into());
                opt = next;
                let letters = letters.strip_prefix(b"=").unwrap_or(letters);
                value = (!letters.is_empty()).then(|| OsStr::from_bytes(letters));
            }
            let text = match value {
                // As in argparse, `-h` asks for the help whatever letters stand behind it.
                Some(_) if is_short && (self.has_optional_value)(opt) && !arg.as_bytes().contains(&b'=') => {
                    OsStr::new("")
                }
                Some(value) => value,
                None if opt.kind == OptKind::Flag => OsStr::new("true"),
                None if (self.has_optional_value)(opt) => OsStr::new(""),
                None => {
                    let next =
                        args.get(at).map(|word| Ok::<_, CommandLineError>((self.token(word)?, word))).transpose()?;
                    let Some((ArgToken::Positional, word)) = next else {
                        return Err(CommandLineError::MissingValue {
                            option: spelt(opt, arg),
                            detail: " (expected one argument)",
                        });
                    };
                    at += 1;
                    word
                }
            };
            let text = text.to_str().ok_or_else(|| CommandLineError::ValueNotUtf8 {
                option: spelt(opt, arg),
                value: shown(&text.to_string_lossy()),
            })?;
            parsed.options.insert(opt.name, text.to_owned());
            if (self.stops_at)(opt.name) {
                parsed.stopped_at = Some(opt.name);
                parsed.rest = args[at..].to_vec();
                break;
            }
        }
        Ok(parsed)
    }

    /// Classifies an argument, as `ArgumentParser._parse_optional` does.
    fn token<'a>(&self, arg: &'a OsStr) -> Result<ArgToken<'a>, CommandLineError> {
        let bytes = arg.as_bytes();
        if bytes == b"--" {
            return Ok(ArgToken::Separator);
        }
        if bytes.len() < 2 || bytes[0] != b'-' {
            return Ok(ArgToken::Positional);
        }
        let cut = bytes.iter().position(|b| *b == b'=');
        let (name, value) = match cut {
            Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]))),
            None => (bytes, None),
        };
        if let [b'-', letter] = name
            && let Some(opt) = self.options.iter().find(|opt| opt.short == Some(*letter as char))
        {
            return Ok(ArgToken::Option(opt, value));
        }
        if let Some(long) = name.strip_prefix(b"--") {
            if let Some(opt) = self.find_option(&String::from_utf8_lossy(long))? {
                return Ok(ArgToken::Option(opt, value));
            }
        } else if let Some(opt) = self.options.iter().find(|opt| opt.short == Some(bytes[1] as char)) {
            return Ok(ArgToken::Option(opt, Some(OsStr::from_bytes(&bytes[2..]))));
        }
        if is_negative_number(&bytes[1..]) || bytes.contains(&b' ') {
            return Ok(ArgToken::Positional);
        }
        Ok(ArgToken::Unknown)
    }

    /// The option with this name, or the only one whose name begins with it.
    fn find_option(&self, name: &str) -> Result<Option<&'static Opt>, CommandLineError> {
        if let Some(opt) = self.options.iter().find(|opt| spellings(opt).iter().any(|own| *own == name)) {
            return Ok(Some(opt));
        }
        let begins = |opt: &&'static Opt| spellings(opt).iter().any(|own| own.starts_with(name));
        let (preferred, others): (Vec<&'static Opt>, Vec<&'static Opt>) =
            self.options.iter().copied().filter(begins).partition(|opt| (self.is_preferred)(opt.name));
        let candidates = if preferred.is_empty() { others } else { preferred };
        match candidates[..] {
            [] => Ok(None),
            [opt] => Ok(Some(opt)),
            ref several => {
                let candidates = several.iter().map(|opt| format!("--{}", opt.name)).collect();
                Err(CommandLineError::Ambiguous { name: format!("--{}", shown(name)), candidates })
            }
        }
    }

    fn unknown_option(&self, arg: &OsStr) -> CommandLineError {
        let text = arg.to_string_lossy();
        let name = text.split('=').next().unwrap_or("");
        let nearest = command_line::nearest(name, self.options.iter().map(|opt| opt.name));
        let hint = match ((self.instead)(name.trim_start_matches('-'), nearest), nearest) {
            (Some(hint), _) => hint,
            (None, Some(nearest)) => format!("did you mean --{nearest}? Options of the script go after it"),
            (None, None) => "see --help all; options of the script go after it".to_owned(),
        };
        CommandLineError::UnknownOption { name: shown(name), hint }
    }
}

/// The spellings of an option.
fn spellings(opt: &Opt) -> [String; 2] {
    [opt.name.to_owned(), opt.name.replace('-', "_")]
}

/// An option as it is spelt in this argument: by its letter or by its name.
fn spelt(opt: &Opt, arg: &OsStr) -> String {
    match opt.short.filter(|_| !arg.as_bytes().starts_with(b"--")) {
        Some(letter) => format!("-{letter}"),
        None => format!("--{}", opt.name),
    }
}

/// Digits, with at most one point among them or before them.
fn is_negative_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    match text.iter().position(|b| *b == b'.') {
        None => digits(text) && !text.is_empty(),
        Some(at) => digits(&text[..at]) && digits(&text[at + 1..]) && at + 1 < text.len(),
    }
}
