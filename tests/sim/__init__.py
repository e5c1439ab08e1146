"""Seeded simulation of a node: one random generator makes all choices, and any commit may fail."""
