"""Comparison of aioflow with other systems: see ``benchmarks/peers/README.md``."""

from __future__ import annotations
