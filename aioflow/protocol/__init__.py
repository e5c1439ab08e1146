"""Messages between components: inputs, requests, effects, commands, reports, outbox rows."""
