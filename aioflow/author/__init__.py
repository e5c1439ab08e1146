"""The API for DAG files, published through ``aioflow``. It describes work and never runs it."""

from __future__ import annotations
