"""The engine: it takes inputs, decides in ``core``, commits one batch, dispatches its effects."""
