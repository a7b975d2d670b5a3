//! Jobs that have ended: which one a user means, and what is left of it.

pub(super) mod find;
pub(super) mod job_folder;
pub(super) mod show;
