"""The engine: takes inputs, decides in ``core``, commits one batch and dispatches its effects."""
