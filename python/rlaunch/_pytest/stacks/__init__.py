"""Stacks of ranks: collected, parsed, grouped, and without pytest's frames."""
