"""The rank's side of a marked test: a pytest session of one test."""
