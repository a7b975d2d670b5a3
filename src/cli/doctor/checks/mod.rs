//! What the facts of a machine mean for a job. Pure: facts in, findings out.

mod devices;
mod folders;
mod limits;
mod network;
mod python;
mod system;
mod variables;

#[cfg(test)]
mod sound;

use crate::cli::doctor::facts::Facts;
use crate::cli::doctor::finding::Finding;

/// All findings, by topic.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    [
        system::check(&facts.system),
        limits::check(facts),
        folders::check(facts),
        devices::check(facts),
        python::check(facts),
        network::check(facts),
        variables::check(facts),
    ]
    .concat()
}
