"""Logs as lines: those of a task, and those of a whole run in the order of time."""
