"""Decisions about triggers: assignment, firing, migration, isolation, runs started by events."""
