//! `rlaunch ps`: jobs as a table of 80 columns.

use super::name::{SHORT, file_name, script};
use crate::cli::control::status_table::{columns, heading, since, widths};
use crate::model::plain_text::escape;
use crate::probe::net;
use crate::report::job_status::JobStatus;
use crate::report::wording::COLUMNS;
use crate::run::record::history::EndedJob;
use serde_json::{Value, json};
use std::path::Path;

/// Characters of a job's id.
const MAX_JOB: usize = 14;
/// Characters of a state with its ranks or its exit status.
const MAX_STATE: usize = 25;
/// The fewest characters of a script and of a folder.
const MIN_CELL: usize = 7;
const GAP: &str = "...";
/// The cell of a script; that of a folder is the last one.
const SCRIPT: usize = 4;

/// One line a job. `silent`: launchers that do not answer; `ended`: jobs of the past.
pub fn text(jobs: &[JobStatus], silent: &[i32], ended: &[EndedJob]) -> String {
    let mut rows = vec![heading(&["PID", "JOB", "STATE", "SINCE", "SCRIPT", "FOLDER"])];
    let row = |pid: i32, id: &str, state: String, at: f64, command: &[String], folder: String| {
        let script = escape(file_name(script(command).unwrap_or("-")));
        vec![
            pid.to_string(),
            short_id(&escape(id)),
            begin(&escape(&state), MAX_STATE),
            since(at),
            script,
            escape(&folder),
        ]
    };
    rows.extend(jobs.iter().map(|job| {
        let alive = job.ranks.iter().filter(|rank| rank.is_alive()).count();
        let state = format!("{} ({alive} of {})", job.state(), job.ranks.len());
        row(job.launcher, &job.job_id, state, job.started, &job.command, in_home(&job.working_dir))
    }));
    let unknown = |pid: &i32| [&pid.to_string(), "-", "does not answer"].map(str::to_owned).to_vec();
    rows.extend(silent.iter().map(unknown));
    // A home may be on several machines.
    let host = net::host_name();
    rows.extend(ended.iter().map(|job| {
        let outcome = job.outcome_in_words();
        let state = if job.exit_status == 0 { outcome } else { format!("{outcome} ({})", job.exit_status) };
        let folder = in_home(&job.working_dir);
        let folder = if job.host == host { folder } else { format!("{}:{folder}", job.host) };
        row(job.launcher, &job.job_id, state, job.ended, &job.command, folder)
    }));
    let widths = widths(&rows);
    let used: usize = widths.iter().take(SCRIPT).map(|width| width + 2).sum();
    let rest = COLUMNS.saturating_sub(used + 2);
    let for_script = widths.get(SCRIPT).map_or(0, |width| (*width).min(rest / 2)).max(MIN_CELL);
    let for_folder = rest.saturating_sub(for_script).max(MIN_CELL);
    for row in &mut rows {
        if let [_, _, _, _, script, folder] = &mut row[..] {
            (*script, *folder) = (begin(script, for_script), end(folder, for_folder));
        }
    }
    columns(&rows)
}

/// The jobs for programs. Launchers that do not answer are left out.
pub fn json(jobs: &[JobStatus], ended: &[EndedJob]) -> Value {
    let ended = ended.iter().map(|job| {
        let mut job = json!(job);
        job["phase"] = "ended".into();
        job
    });
    jobs.iter().map(|job| json!(job)).chain(ended).collect()
}

/// The beginning of a UUID or of another long id.
fn short_id(id: &str) -> String {
    let is_uuid = id.len() == 36 && id.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
    begin(id, if is_uuid { SHORT + GAP.len() } else { MAX_JOB })
}

/// A folder with `~` for the user's home.
pub fn in_home(folder: &Path) -> String {
    let home = std::env::var_os("HOME").filter(|home| home.len() > 1);
    match home.and_then(|home| folder.strip_prefix(home).ok().map(Path::to_owned)) {
        Some(rest) if rest.as_os_str().is_empty() => "~".to_owned(),
        Some(rest) => format!("~/{}", rest.display()),
        None => folder.display().to_string(),
    }
}

/// At most so many characters from the beginning of a text.
fn begin(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - GAP.len()).chain(GAP.chars()).collect()
}

/// At most so many characters from the end of a text.
fn end(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    GAP.chars().chain(text.chars().skip(length + GAP.len() - most)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_eighty_columns_at_most() {
        let job = JobStatus {
            job_id: "2e58a464-d7ce-4b42-b998-01fcf72c2221".into(),
            launcher: 4_194_304,
            command: ["python3", "-u", "/a/a_script_of_a_long_name.py"].map(str::to_owned).to_vec(),
            working_dir: "/data/a/folder/that/is/far/down/in/the/tree/of/ü/experiments".into(),
            ..JobStatus::default()
        };
        let ended = EndedJob {
            outcome: "supervisor_lost".into(),
            exit_status: 137,
            job_id: "x".repeat(99),
            ..EndedJob::default()
        };
        let text = text(&[job], &[9], &[ended]);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(text.contains(" 2e58a464...  ") && text.lines().nth(1).unwrap().ends_with("ments"), "{text}");
    }
}
