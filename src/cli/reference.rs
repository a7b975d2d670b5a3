//! The pages of `docs/reference/` about command lines, variables and exit statuses, written from the tables that the
//! command lines are built from.

use crate::cli::common::exit_code;
use crate::cli::{control, paddle, torchrun};
use crate::spec::options::Opt;
use crate::spec::{paddle::options as paddle_options, torchrun::options as torchrun_options};
use clap::{Arg, Command};
use std::collections::BTreeMap;

const GENERATED: &str = "<!-- Generated from the tables of the command lines by src/cli/reference.rs; do not edit. -->";

/// The pages: the name of each in `docs/reference/`, and its text.
pub fn pages() -> Vec<(&'static str, String)> {
    let launch = "Options of Paddle's launcher and of rlaunch. A variable that is set overrides its option, as in Paddle. \
        Names may be written with `-` for `_`, and shortened while they stay unique. `rlaunch launch` is the same command.";
    let run = "Options of torchrun and of rlaunch. An option overrides its variable, as in torchrun. Names may be written \
        with `_` for `-`. `python -m rlaunch.run` and `rlaunch run` are the same command.";
    vec![
        (
            "launch.md",
            option_page("python -m rlaunch", "training_script [ARGS]...", launch, paddle::parse::reference()),
        ),
        ("run.md", option_page("rlaunch-run", "training_script [ARGS]...", run, torchrun::parse::command())),
        ("rlaunch.md", subcommand_page(control::command())),
        ("variables.md", variable_page()),
        ("exit-status.md", exit_status_page()),
    ]
}

/// A page with a section for each option, under the headings of the help.
fn option_page(name: &str, script: &str, about: &str, mut command: Command) -> String {
    command.build();
    let mut text = format!("# `{name}`\n\n{GENERATED}\n\n```text\n{name} [OPTIONS] {script}\n```\n\n{about}\n");
    let args: Vec<&Arg> =
        command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_long().is_some()).collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in &args {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    // Help and version, which have no heading, come last.
    headings.sort_by_key(Option::is_none);
    for heading in headings {
        text.push_str(&format!("\n## {}\n", heading.unwrap_or("General")));
        for arg in args.iter().filter(|arg| arg.get_help_heading() == heading) {
            text.push_str(&format!("\n### `{}`\n\n{}", long(arg), option(arg)));
        }
    }
    text
}

/// What an option takes, what it sets, and its default and variables.
fn option(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let (rest, env) = help.rsplit_once(" [env: ").unwrap_or((&help, ""));
    let (meaning, default) = rest.split_once(" [default: ").unwrap_or((rest, ""));
    let mut facts = Vec::new();
    let value = value(arg);
    if !value.is_empty() {
        facts.push(format!("value `{value}`"));
    }
    let choices = arg.get_possible_values();
    if !choices.is_empty() && arg.get_action().takes_values() {
        let choices: Vec<String> = choices.iter().map(|choice| format!("`{}`", choice.get_name())).collect();
        facts.push(format!("one of {}", choices.join(", ")));
    }
    match default.strip_suffix(']').unwrap_or(default) {
        "" => {}
        default if default.contains(' ') => facts.push(format!("default: {}", marked(default))),
        default => facts.push(format!("default `{default}`")),
    }
    for variable in env.trim_end_matches(']').split(", ").filter(|name| !name.is_empty()) {
        facts.push(format!("variable `{variable}`"));
    }
    facts.extend(arg.get_short().map(|short| format!("short `-{short}`")));
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    facts.extend(aliases.iter().map(|alias| format!("also `--{alias}`")));
    let facts = if facts.is_empty() { String::new() } else { format!("\n{}\n", facts.join(" · ")) };
    format!("{}.\n{facts}", marked(meaning).trim_end_matches('.'))
}

/// A page with a section for each subcommand.
fn subcommand_page(mut command: Command) -> String {
    command.build();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut text = format!("# `rlaunch`\n\n{GENERATED}\n\n{about}.\n\n```text\n{after}\n```\n");
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let about = sub.get_long_about().or(sub.get_about()).map(ToString::to_string).unwrap_or_default();
        let is_shown = |arg: &&Arg| !arg.is_hide_set() && arg.get_id() != "help";
        let args: Vec<&Arg> = sub.get_arguments().filter(is_shown).collect();
        let is_required = |arg: &&&Arg| arg.is_positional();
        let operands: String = args.iter().filter(is_required).map(|arg| format!(" {}", operand(arg))).collect();
        let usage = format!("rlaunch {} [OPTIONS]{operands}", sub.get_name());
        text.push_str(&format!(
            "\n## `rlaunch {}`\n\n{}.\n\n```text\n{usage}\n```\n\n",
            sub.get_name(),
            marked(about.trim_end_matches('.'))
        ));
        text.push_str("| argument | meaning |\n|---|---|\n");
        for arg in args {
            let name = if arg.is_positional() { operand(arg) } else { format!("{}{}", long(arg), spaced(&value(arg))) };
            let name = arg.get_short().map_or(name.clone(), |short| format!("-{short}, {name}"));
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("| `{name}` | {} |\n", marked(&help).replace('|', "\\|")));
        }
    }
    text
}

/// A page with the variables that set options, and those that change rlaunch otherwise.
fn variable_page() -> String {
    let mut rows: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut add = |options: &'static [Opt], command: &str, page: &str| {
        for opt in options {
            for variable in opt.env {
                let link = format!("[`--{0}`]({page}#--{0}) of {command}", opt.name);
                rows.entry(variable).or_default().push(link);
            }
        }
    };
    add(paddle_options::OPTIONS, "`python -m rlaunch`", "launch.md");
    add(torchrun_options::OPTIONS, "`rlaunch-run`", "run.md");
    let mut text = format!(
        "# Environment variables that set options\n\n{GENERATED}\n\n[Variables of ranks](../environment.md) lists those \
         that rlaunch sets.\n\n| variable | sets |\n|---|---|\n"
    );
    for (variable, links) in rows {
        text.push_str(&format!("| `{variable}` | {} |\n", links.join(", ")));
    }
    text.push_str("\n## Other variables\n\n| variable | effect |\n|---|---|\n");
    for (variable, effect) in OTHER_VARIABLES {
        text.push_str(&format!("| `{variable}` | {effect} |\n"));
    }
    text
}

/// Variables that change rlaunch and set no option.
const OTHER_VARIABLES: [(&str, &str); 5] = [
    (
        "RLAUNCH_HISTORY",
        "number of ended jobs that `rlaunch ps --all` knows (default: 200); `0` keeps none ([where](../running-jobs.md#jobs-that-have-ended))",
    ),
    ("RLAUNCH_INSTALL", "programs that call torchrun or Paddle's launchers run on rlaunch ([how](../install.md))"),
    ("RLAUNCH_RUNTIME_DIR", "folder of the control sockets of running jobs (default: `/tmp/rlaunch-UID`)"),
    (
        "RLAUNCH_SLURM_KILL_WAIT",
        "Slurm's KillWait in seconds (default: 30; [how to set it](../slurm.md#a-job-that-asks-whether-to-stop))",
    ),
    ("RLAUNCH_STORE_WAIT", "with `0`, ranks do not wait for the store of rank 0 ([why they do](../frameworks.md))"),
];

/// A page with the exit statuses, from the table that the help shows.
fn exit_status_page() -> String {
    let mut text = format!(
        "# Exit statuses\n\n{GENERATED}\n\n## Jobs\n\n`python -m rlaunch` and `rlaunch-run` exit with one of these. [What to \
         do](../operations.md#by-exit-status) says how to react to each.\n\n| status | meaning |\n|---|---|\n"
    );
    let mut rows: Vec<(String, String)> = Vec::new();
    for line in exit_code::HELP.lines().skip(1) {
        match (line.trim().split_once("  "), rows.last_mut()) {
            (Some((status, meaning)), _) => rows.push((status.to_owned(), meaning.trim().to_owned())),
            (None, Some((_, meaning))) => *meaning = format!("{meaning} {}", line.trim()),
            (None, None) => {}
        }
    }
    for (status, meaning) in rows {
        text.push_str(&format!("| {status} | {} |\n", marked(&meaning)));
    }
    text.push_str(
        "\nWith [`rlaunch-run --exit-code-compat`](run.md#--exit-code-compat), every failure is 1, as in torchrun; 0 and 2 \
         stay.\n\n## Running jobs\n\n[`rlaunch`](rlaunch.md) exits with 0 when it has done what it was asked for. It exits with 1 \
         if there is no such job, its launcher refuses, or `rlaunch doctor` finds an error, and with 2 for an invalid command line. `rlaunch launch` and `rlaunch \
         run` have the status of their job.\n",
    );
    text
}

/// `--name`.
fn long(arg: &Arg) -> String {
    arg.get_long().map(|name| format!("--{name}")).unwrap_or_default()
}

/// The value of an option in a usage; empty for a flag.
fn value(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    if arg.get_action().takes_values() { names.join(" ") } else { String::new() }
}

fn spaced(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" {text}") }
}

/// A positional argument in a usage.
fn operand(arg: &Arg) -> String {
    let name = value(arg);
    let name = if name.is_empty() { arg.get_id().as_str().to_uppercase() } else { name };
    if arg.is_required_set() { name } else { format!("[{name}]") }
}

/// A text of the help in Markdown: options and variables in code font.
fn marked(text: &str) -> String {
    let is_code = |word: &str| {
        let is_upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        word.starts_with("--") && word.len() > 2 || word.contains('_') && word.chars().all(is_upper)
    };
    let mark = |word: &str| {
        let core = word.trim_matches([',', '.', ';', ':', '(', ')', '`']);
        if is_code(core) && !word.contains('`') {
            word.replace(core, &format!("`{core}`"))
        } else {
            word.replace('<', "&lt;")
        }
    };
    text.split(' ').map(mark).collect::<Vec<_>>().join(" ")
}
