"""Choose the seeds of a randomized test for ``make test``; the nightly ring runs all."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ("seeds",)


def seeds(sampled: int, nightly: int) -> list[Any]:
    """Return the seeds below ``nightly``; all but the first ``sampled`` are marked nightly."""
    later = range(sampled, nightly)
    return [*range(sampled), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in later)]
