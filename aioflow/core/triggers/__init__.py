"""Decisions about triggers: assign to hosts, fire, migrate, isolate; runs that events start."""
