"""Pure decisions: no I/O, clock, randomness or asyncio. Time, randomness and ids are arguments."""
