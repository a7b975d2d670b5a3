//! The options that keep logs short, checked.

use super::SpecError;
use super::options::Values;

/// How logs are kept short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// About how many bytes a log may have.
    pub max_size: u64,
    /// How many older parts of it are kept.
    pub backups: u32,
    /// Whether what people have not been shown yet stays: nowhere else is it.
    pub until_shown: bool,
}

/// So that the end of a log, by which a failure is explained, is always in it.
const LEAST: u64 = 1 << 20;

/// Reads and checks them; `None` if logs may grow.
pub fn check(values: &Values) -> Result<Option<Rotation>, SpecError> {
    let backups = values.int("log_backups")?.unwrap_or(0);
    let Some(backups) = u32::try_from(backups).ok().filter(|n| *n <= 1000) else {
        return Err(values.error("log_backups", "is no number of files", "give 0 to 1000"));
    };
    let Some(text) = values.text("log_max_size").filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    match bytes(text) {
        Some(max_size) if max_size >= LEAST => Ok(Some(Rotation { max_size, backups, until_shown: false })),
        Some(_) => Err(values.error("log_max_size", "is too short for a log", "give 1M or more")),
        None => {
            Err(values.error("log_max_size", "is no size", "give bytes, or a number with K, M, G or T, such as 100M"))
        }
    }
}

/// `1048576`, `512K`, `1.5G`, `100MB`, `2GiB`: a unit is 1024 times the one before, whatever it is called.
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
    // 2^53: up to there a float holds every byte.
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
