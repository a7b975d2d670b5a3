//! Which jobs there are, and which one a user means.

pub(super) mod find;
pub(super) mod name;
pub(super) mod table;
