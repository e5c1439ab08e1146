"""Decisions about runs: create, advance, evaluate, cancel, restore and end them."""
