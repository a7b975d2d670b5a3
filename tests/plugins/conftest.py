"""The tests of `suite` fail on purpose, in sessions of their own."""

collect_ignore = ["suite"]
