"""Seeded simulation of a node. One random generator makes all choices, and any commit may fail.

A *seed* is one simulated history, determined by the seed of its random generator. An *incarnation*
or *life* is the time of a node from one start to its end or crash. A *turn* is one pass of the
engine loop, and a *batch* is what a turn commits. The *ledger* records what user code did,
independent of the database.
"""
