//! `rlaunch doctor`: checks this machine before a job. `gather` collects facts, `checks` judges them, `nodes` compares
//! this machine with others, `output` shows what was found.

mod checks;
mod facts;
mod finding;
mod gather;
mod nodes;
mod output;

use crate::cli::common::interpreter::{self, Interpreter};
use crate::cli::common::startup::print_output;
use finding::Level;
use std::path::Path;

/// The options of the command.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoctorOptions<'a> {
    /// The log folder of the job, instead of PADDLE_LOG_DIR and `log`.
    pub log_dir: Option<&'a Path>,
    /// Where nodes find each other, beside what the variables say.
    pub master: Option<&'a str>,
    /// How many nodes run the command at once.
    pub nodes: Option<u32>,
    /// A warning counts as an error does.
    pub strict: bool,
    /// Print JSON.
    pub json: bool,
}

/// Checks this machine and prints the findings. Whether a job may start: there is no error and, if `strict`, no warning.
pub(super) fn run(options: DoctorOptions<'_>, interpreter: Interpreter) -> bool {
    let Interpreter { executable, version, path } = interpreter.clone();
    let python = interpreter::look(executable.display().to_string(), version, path);
    let facts = gather::facts(options.log_dir, options.master, python);
    let mut findings = checks::findings(&facts);
    if let (Some(count), Some(master)) = (options.nodes, options.master) {
        findings.extend(nodes::check((count as usize, master), &facts.vars, &interpreter));
    }
    print_output(&match options.json {
        true => format!("{:#}\n", output::json(&findings)),
        false => output::text(&findings),
    });
    output::worst(&findings) < if options.strict { Level::Warning } else { Level::Error }
}
