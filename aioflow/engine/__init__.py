"""The engine: take inputs, decide in ``core``, commit one batch, dispatch its effects."""
