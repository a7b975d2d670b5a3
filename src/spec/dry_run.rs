//! `--dry_run`: the form in which the launcher prints the plan instead of starting it.

/// The form of the printed plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// A table.
    Table,
    /// JSON.
    Json,
}
