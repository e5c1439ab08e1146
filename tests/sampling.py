"""Selection of the examples of a parametrized test for ``make test``; nightly runs use all."""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import Any

import pytest

__all__ = ("sampled", "seeds")


def seeds(sampled: int, nightly: int) -> list[Any]:
    """Return the seeds below ``nightly``; all but the first ``sampled`` are marked nightly."""
    later = range(sampled, nightly)
    return [*range(sampled), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in later)]


def sampled(values: Collection[Any], sample: Container[Any]) -> list[Any]:
    """Return the values; all but those in the sample are marked nightly."""
    found = [
        value if value in sample else pytest.param(value, marks=pytest.mark.nightly)
        for value in values
    ]
    assert any(value in sample for value in values), f"nothing of {sample} is left"
    return found
