//! Reports about ranks: invariants over any bytes, the causes of known texts, the failure report.

mod blame;
mod failure_report;
mod invariants;
mod run_page;
mod uncaught;
mod verdict;
