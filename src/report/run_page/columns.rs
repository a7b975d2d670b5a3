//! Columns of numbers in the table of ranks: names, units, order. A field that is new in the records gets a column, too.

use super::event_text::seconds;
use super::rank_rows::RankRow;
use crate::report::wording::sized;
use std::collections::BTreeSet;

/// The fields that come first, in this order.
const FIRST: [(&str, &str); 7] = [
    ("seconds", "Wall time"),
    ("cpu_seconds", "CPU time"),
    ("peak_memory_bytes", "Peak RSS"),
    ("disk_read_bytes", "Disk read"),
    ("disk_written_bytes", "Disk written"),
    ("major_faults", "Major faults"),
    ("swept", "Swept"),
];
/// Columns beside these.
const MOST_OTHERS: usize = 12;

/// A column: the name of its field and its title.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    pub field: String,
    pub title: String,
    /// The largest number in it.
    pub most: f64,
}

/// The columns of the numbers that any rank has.
pub(super) fn columns(rows: &[RankRow]) -> Vec<Column> {
    let fields: BTreeSet<&str> = rows.iter().flat_map(|row| row.numbers.keys()).map(String::as_str).collect();
    let first = FIRST.into_iter().filter(|(field, _)| fields.contains(field));
    let known = |field: &str| FIRST.iter().any(|(known, _)| *known == field);
    let others = fields.iter().filter(|field| !known(field)).take(MOST_OTHERS);
    let all =
        first.map(|(field, title)| (field, title.to_owned())).chain(others.map(|field| (*field, title_of(field))));
    let most = |field| rows.iter().filter_map(|row| row.numbers.get(field)).copied().fold(0.0, f64::max);
    all.map(|(field, title)| Column { field: field.to_owned(), title, most: most(field) }).collect()
}

/// `gpu_idle_seconds` becomes `GPU idle`: the cell has the unit.
fn title_of(field: &str) -> String {
    let name = ["_seconds", "_bytes", "_percent"].iter().find_map(|unit| field.strip_suffix(unit)).unwrap_or(field);
    let word = |word: &str| match word {
        "cpu" | "gpu" | "io" | "rss" | "oom" => word.to_uppercase(),
        other => other.to_owned(),
    };
    let title = name.split('_').map(word).collect::<Vec<_>>().join(" ");
    let mut rest = title.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

impl Column {
    /// A number of this column with its unit.
    pub fn cell(&self, number: f64) -> String {
        if self.field == "seconds" || self.field.ends_with("_seconds") {
            seconds(number)
        } else if self.field.ends_with("_bytes") {
            sized(number as u64)
        } else if self.field.ends_with("_percent") {
            format!("{number:.0} %")
        } else if number.fract() == 0.0 && number < 1e15 {
            format!("{number:.0}")
        } else {
            format!("{number:.3}")
        }
    }

    /// Whether its cells have a bar that compares the ranks.
    pub fn has_bars(&self) -> bool {
        self.most > 0.0 && (self.field.ends_with("seconds") || self.field.ends_with("_bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProcessLabel;

    fn row(rank: usize, numbers: &[(&str, f64)]) -> RankRow {
        RankRow {
            label: ProcessLabel::rank(rank),
            local_rank: None,
            log: None,
            status: String::new(),
            exit: None,
            why: None,
            attempt: None,
            pid: None,
            numbers: numbers.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect(),
        }
    }

    #[test]
    fn a_column_appears_where_any_rank_has_its_number() {
        let rows =
            [row(0, &[("swept", 0.0)]), row(1, &[("seconds", 3.5), ("gpu_idle_seconds", 90.0), ("x_ratio", 0.5)])];
        let columns = columns(&rows);
        let shown: Vec<_> = columns.iter().map(|column| (column.title.as_str(), column.cell(column.most))).collect();
        let wanted = [("Wall time", "3.5 s"), ("Swept", "0"), ("GPU idle", "1 min 30 s"), ("X ratio", "0.500")];
        assert_eq!(shown, wanted.map(|(title, cell)| (title, cell.to_owned())));
    }
}
