"""What a user would pick instead, measured beside aioflow: see ``benchmarks/peers/README.md``."""

from __future__ import annotations
