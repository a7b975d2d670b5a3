//! `rlaunch status` of a job that has ended.

use super::find::Ended;
use super::job_folder::JobFolderError;
use crate::cli::control::jobs::table::in_home;
use crate::cli::control::status_table::{ago, columns, heading};
use crate::model::plain_text::escape;
use crate::report::run_page::rank_rows;
use crate::report::wording::sized;
use serde_json::{Value, json};

/// The job, its folders, why it failed, and a line for each rank.
pub fn status(ended: &Ended) -> Result<String, JobFolderError> {
    let mut text = format!("{}\n", ended.describe());
    if let Some(job) = &ended.job {
        text += &format!("folder: {}\n", escape(&in_home(&job.working_dir)));
    }
    let run = match &ended.run {
        Ok(run) => run,
        Err(JobFolderError::Gone { folder, .. }) => {
            return Ok(text + &format!("logs: no more in {}\n", escape(&folder.display().to_string())));
        }
        Err(_) => return Ok(text + "logs: none were kept\n"),
    };
    let (record, _) = run.read()?;
    text += &format!("logs: {}\n", escape(&run.logs.display().to_string()));
    if let Some(reason) = record.result().and_then(|result| result["reason"].as_str()) {
        text += &format!("reason: {}\n", escape(reason));
    }
    let earlier = record.describe_failures().map(|line| format!("{}\n", escape(&line)));
    text.extend(earlier);
    let mut table = vec![heading(&["RANK", "STATE", "EXIT", "RAN FOR", "CPU TIME", "PEAK MEMORY"])];
    table.extend(rank_rows(&record).iter().map(|row| {
        let number = |name: &str, shown: &dyn Fn(f64) -> String| row.number(name).map_or("-".to_owned(), shown);
        let exit = row.exit_text().unwrap_or_else(|| "-".to_owned());
        let memory = number("peak_memory_bytes", &|bytes| sized(bytes as u64));
        let status = escape(&row.status);
        vec![row.label.to_string(), status, exit, number("seconds", &ago), number("cpu_seconds", &ago), memory]
    }));
    Ok(if table.len() > 1 { text + &columns(&table) } else { text })
}

/// The fields of the history, and result.json.
pub fn json(ended: &Ended) -> Result<Value, JobFolderError> {
    let result = match &ended.run {
        Ok(run) => run.read()?.0.result().cloned().unwrap_or_default(),
        Err(_) => Value::Null,
    };
    let known = ["version", "job_id", "host", "outcome", "exit_status", "log_dir"];
    let of_result = || known.iter().map(|name| ((*name).to_owned(), result[*name].clone())).collect();
    let mut all = ended.job.as_ref().map_or_else(|| Value::Object(of_result()), |job| json!(job));
    // The launcher of records without a result was killed, or runs on another machine.
    let has_ended = ended.job.is_some() || !result.is_null();
    all["phase"] = if has_ended { "ended" } else { "unknown" }.into();
    all["result"] = result;
    Ok(all)
}
