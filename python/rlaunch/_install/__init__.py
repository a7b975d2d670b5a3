"""Installs rlaunch in place of functions of Paddle and torch."""
