"""Queries and JSON schemas of views that the web page alone shows."""
