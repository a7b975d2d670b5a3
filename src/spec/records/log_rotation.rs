//! `--log_max_size` and `--log_backups`: log rotation.

use crate::spec::error::SpecError;
use crate::spec::options::OptValues;
use std::time::Duration;

/// How logs are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRotationSpec {
    /// Approximate maximum size of a log, in bytes.
    pub max_size: u64,
    /// Number of older parts of a log to keep.
    pub backups: u32,
    /// For a log that keeps the lines that the console has not shown yet, because no other file has them: how long a console that
    /// shows nothing is waited for once the log has its maximum size.
    pub until_shown: Option<Duration>,
}

/// Minimum size: the log always holds the last lines, which explain a failure.
const LEAST: u64 = 1 << 20;

/// Reads and checks both options; `None`: no rotation.
pub fn check(values: &OptValues) -> Result<Option<LogRotationSpec>, SpecError> {
    let backups = values.int("log_backups")?.unwrap_or(0);
    let Some(backups) = u32::try_from(backups).ok().filter(|n| *n <= 1000) else {
        return Err(values.error("log_backups", "is not a number of files", "give 0 to 1000"));
    };
    let Some(text) = values.text("log_max_size").filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    match bytes(text) {
        Some(max_size) if max_size >= LEAST => Ok(Some(LogRotationSpec { max_size, backups, until_shown: None })),
        Some(_) => Err(values.error("log_max_size", "is too small for a log", "give 1M or more")),
        None => Err(values.error(
            "log_max_size",
            "is not a size",
            "give bytes, or a number with K, M, G or T, such as 100M",
        )),
    }
}

/// Reads a size: `1048576`, `512K`, `1.5G`, `100MB`, `2GiB`. All units are powers of 1024.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_uppercase();
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let power = match unit {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 1,
        "M" | "MB" | "MIB" => 2,
        "G" | "GB" | "GIB" => 3,
        "T" | "TB" | "TIB" => 4,
        _ => return None,
    };
    let number: f64 = number.trim().parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0)?;
    let size = number * 1024f64.powi(power);
    // Below 2^53 a float is exact.
    (size <= 9e15).then_some(size as u64)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes() {
        let sizes = ["1048576", "512K", "1.5g", " 100 MB ", "2GiB", "0", "7b"].map(bytes);
        let wanted = [1 << 20, 512 << 10, 3 << 29, 100 << 20, 2 << 30, 0, 7].map(Some);
        assert_eq!(sizes, wanted);
        for text in ["", "M", "-1M", "1X", "inf", "nan", "1e30", "1 000M", "10000T", "ÄM"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
