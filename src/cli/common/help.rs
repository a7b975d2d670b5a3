//! The help of the launchers' front ends: one screen with the options that most jobs need, the options of a topic, or all.

use crate::cli::common::command_line::CommandLineError;
use crate::spec::options::{Opt, OptGroup, OptKind, opt};
use clap::Command;
use std::ffi::OsString;

/// The option that asks for the help.
pub const HELP: Opt = Opt {
    short: Some('h'),
    ..opt(
        "help",
        OptKind::Text,
        &[],
        None,
        "Print the most used options; with a topic, or all, after it: these options",
    )
};

/// The topic of everything.
const ALL: &str = "all";
/// The topic of the exit statuses.
const EXIT: &str = "exit";

/// The help of a front end.
pub struct Help {
    /// One screen: usage, the most used options, examples, and the topics.
    pub screen: &'static str,
    /// The groups of its options.
    pub groups: &'static [OptGroup],
    /// Its command line. What it shows after the help are the exit statuses.
    pub command: Command,
}

impl Help {
    /// The text for a topic; `None`: one screen.
    pub fn text(mut self, topic: Option<&str>) -> Result<String, CommandLineError> {
        let Some(topic) = topic else { return Ok(self.screen.to_owned()) };
        if topic == ALL {
            return Ok(self.command.render_help().to_string());
        }
        if topic == EXIT {
            return Ok(format!("{}\n", self.command.get_after_help().cloned().unwrap_or_default()));
        }
        let headings: Vec<&str> =
            self.groups.iter().filter(|group| group.topic == topic).map(|group| group.heading).collect();
        if headings.is_empty() {
            let topics = topics(self.groups).into_iter().map(str::to_owned).collect();
            return Err(CommandLineError::UnknownTopic { topic: topic.to_owned(), topics });
        }
        let mut command = self.command.disable_version_flag(true).help_template("{all-args}").mut_args(|arg| {
            let is_shown = arg.get_help_heading().is_some_and(|heading| headings.contains(&heading));
            if is_shown { arg } else { arg.hide(true) }
        });
        Ok(format!("{}\n", command.render_help().to_string().trim_end()))
    }
}

/// All topics.
pub fn topics(groups: &'static [OptGroup]) -> Vec<&'static str> {
    let mut topics = vec![ALL];
    for topic in groups.iter().map(|group| group.topic).chain([EXIT]) {
        if !topics.contains(&topic) {
            topics.push(topic);
        }
    }
    topics
}

/// The topic that a command line asks for. `value`: behind the `=` of `--help`; `rest`: the arguments after it.
///
/// `torchrun --help train.py` prints the help. So a word after `--help` is a topic only if there is such a topic, or if
/// it is the last one and a plain word, which is rather a mistyped topic than a script.
pub fn asked_topic(value: &str, rest: &[OsString], groups: &'static [OptGroup]) -> Option<String> {
    if !value.is_empty() {
        return Some(value.to_owned());
    }
    let word = rest.first()?.to_str()?;
    let is_plain = rest.len() == 1 && word.bytes().all(|byte| byte.is_ascii_lowercase());
    (topics(groups).contains(&word) || (is_plain && !word.is_empty())).then(|| word.to_owned())
}
