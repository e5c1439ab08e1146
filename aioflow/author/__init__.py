"""The API of DAG files, public through the facade ``aioflow``: describes work, never runs it."""

from __future__ import annotations
