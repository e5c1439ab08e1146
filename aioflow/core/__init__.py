"""Decisions: deterministic, without I/O or asyncio. Time and random numbers are arguments."""
