"""One try of a task: its arguments, items, body, durable calls and outcome."""

from __future__ import annotations
