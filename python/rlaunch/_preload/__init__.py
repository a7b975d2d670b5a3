"""Preload servers (zygotes): each imports modules once and forks ranks, which start without importing."""
