"""Decisions about clearing and marking tasks of runs."""
