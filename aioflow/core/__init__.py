"""Decisions: deterministic, without I/O or asyncio. Time and random numbers are arguments.

A *turn* is one pass of the engine loop: it processes some inputs in a ``Transaction``, which
collects the row changes (the *batch*) and the effects. The engine commits the batch and then
dispatches the effects.
"""
