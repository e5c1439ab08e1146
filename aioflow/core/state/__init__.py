"""What the engine's memory holds: runs, tasks, triggers, the outbox, accounts."""
