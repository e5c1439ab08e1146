"""What a DAG file imports, by way of the facade: describing work, never doing it."""

from __future__ import annotations
