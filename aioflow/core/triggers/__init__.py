"""Decisions about triggers: assign to hosts, fire, migrate, isolate, and start runs from events."""
