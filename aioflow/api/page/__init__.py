"""Queries and JSON schemas for views that only the web page shows."""
