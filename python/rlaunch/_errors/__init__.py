"""Errors of ranks: error files, failed ranks, exceptions that are torch's classes too."""
