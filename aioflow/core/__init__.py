"""Decisions: deterministic, without I/O, clock, randomness or asyncio; these are arguments."""
