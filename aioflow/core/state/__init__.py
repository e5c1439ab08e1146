"""The engine's memory: runs, tasks, triggers, the outbox and accounts."""
