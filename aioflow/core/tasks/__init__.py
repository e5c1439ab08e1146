"""Decisions about tasks: trigger rules, tries, retries, expansion, durable calls and streams."""
