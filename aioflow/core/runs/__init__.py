"""Decisions about runs: create, advance, evaluate, cancel, restore, end."""
