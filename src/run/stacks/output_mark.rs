//! How long a rank has been silent, by change: a file server's clock and the wall clock may differ or be set, so that the time of a
//! file says nothing for certain.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// A file as it was at a look: device, inode, size, time of the last change in seconds and nanoseconds.
type FileMark = (u64, u64, u64, i64, i64);

/// The output of a rank at a look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputMark {
    files: Vec<Option<FileMark>>,
    /// What its processes have written in all, if that counts.
    written: Option<u64>,
}

impl OutputMark {
    /// That of these files at present.
    pub fn new(files: impl IntoIterator<Item = impl AsRef<Path>>, written: Option<u64>) -> Self {
        let mark = |file: &Path| {
            let data = std::fs::metadata(file).ok()?;
            Some((data.dev(), data.ino(), data.size(), data.mtime(), data.mtime_nsec()))
        };
        Self { files: files.into_iter().map(|file| mark(file.as_ref())).collect(), written }
    }
}

/// What looks have seen of a rank's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputSeen {
    /// The output at the last look.
    pub mark: OutputMark,
    /// Seconds for which it has been so: since the first look that has seen it so.
    pub at_least: f64,
    /// Seconds since the look before that one, which has seen it differ.
    pub at_most: Option<f64>,
}

impl OutputSeen {
    /// The seconds nearest to these that agree with what was seen.
    pub fn limit(&self, seconds: f64) -> f64 {
        seconds.min(self.at_most.unwrap_or(f64::INFINITY)).max(self.at_least)
    }
}

/// The output of the ranks of an attempt at the looks so far. Times are monotonic.
#[derive(Debug, Default)]
pub struct OutputHistory(BTreeMap<usize, Seen>);

#[derive(Debug)]
struct Seen {
    mark: OutputMark,
    /// When the mark was first seen.
    since: Duration,
    /// When another one was last seen.
    before: Option<Duration>,
    /// When it was last looked at.
    looked: Duration,
}

impl OutputHistory {
    /// Forgets all: another attempt begins.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// A look has seen this.
    pub fn note(&mut self, now: Duration, marks: BTreeMap<usize, OutputMark>) {
        for (local_rank, mark) in marks {
            let new = |before| Seen { mark: mark.clone(), since: now, before, looked: now };
            let seen = self.0.entry(local_rank).or_insert_with(|| new(None));
            if seen.mark != mark {
                *seen = new(Some(seen.looked));
            }
            seen.looked = now;
        }
    }

    /// What is known of a rank's output.
    pub fn of(&self, local_rank: usize, now: Duration) -> Option<OutputSeen> {
        let Seen { mark, since, before, .. } = self.0.get(&local_rank)?;
        let ago = |time: Duration| now.saturating_sub(time).as_secs_f64();
        Some(OutputSeen { mark: mark.clone(), at_least: ago(*since), at_most: before.map(ago) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_the_time_without_a_change_whatever_the_times_of_the_files_are() {
        let mark = |size, mtime| OutputMark { files: vec![Some((1, 2, size, mtime, 0)), None], written: None };
        let at = Duration::from_secs;
        let mut history = OutputHistory::default();
        let mut look = |now, mark| {
            history.note(at(now), BTreeMap::from([(3, mark)]));
            history.of(3, at(now + 1)).map(|seen| (seen.at_least, seen.at_most)).unwrap_or_default()
        };
        assert_eq!(look(10, mark(5, 0)), (1.0, None), "the start is no change");
        assert_eq!(look(20, mark(5, 0)), (11.0, None));
        assert_eq!(look(30, mark(6, 0)), (1.0, Some(11.0)), "the same time: a coarse clock");
        assert_eq!(look(35, mark(6, 0)), (6.0, Some(16.0)));
        assert_eq!(
            look(40, mark(6, -3600)),
            (1.0, Some(6.0)),
            "the same size: a heartbeat, by a clock that was set back"
        );
        assert_eq!(history.of(4, at(50)), None);
        let seen = history.of(3, at(50)).unwrap();
        assert_eq!([3600.0, 12.0, 0.0].map(|by_clock| seen.limit(by_clock)), [15.0, 12.0, 10.0]);
        history.clear();
        assert_eq!(history.of(3, at(50)), None);
    }
}
