"""What crosses a boundary: inputs, requests, effects, commands to children, reports, the outbox."""
