"""Logs as lines: the log of a task, and the log of a run in chronological order."""
