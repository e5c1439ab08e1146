"""Choose which seeds of a drawn test run in ``make test``; the nightly ring runs all."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ("seeds",)


def seeds(sampled: int, nightly: int) -> list[Any]:
    """Return parameters: seeds below ``nightly``, of which all but ``sampled`` are marked so."""
    later = range(sampled, nightly)
    return [*range(sampled), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in later)]
