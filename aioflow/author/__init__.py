"""What a DAG file imports, through the facade ``aioflow``: describes work and never runs it."""

from __future__ import annotations
