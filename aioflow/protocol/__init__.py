"""Messages across boundaries: inputs, requests, effects, commands, reports, outbox rows."""
