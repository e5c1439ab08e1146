"""Explanations of waits: the root cause of a wait, sentences about it, and the longest waits."""
