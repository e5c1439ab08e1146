"""Deciding, pure: no I/O, no clock, no dice, no asyncio. Time, chance and ids are arguments."""
